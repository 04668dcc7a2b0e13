import pytest

from neuralfunctionals.data import FitPlan, WeightDataset, fit_dataset, open_images


@pytest.fixture(scope="session")
def sirens(tmp_path_factory):
    """Eighty digits as networks, fitted once."""
    path = tmp_path_factory.mktemp("data") / "sirens"
    fit_dataset(FitPlan.make(open_images("mnist-sample"), limit=80, recipe="fast"), path, workers=1)
    return WeightDataset(path)
