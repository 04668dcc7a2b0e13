import pytest

from neuralfunctionals.data import FitPlan, WeightDataset, ZooPlan, fit_dataset, make_zoo, open_images


@pytest.fixture(scope="session")
def sirens(tmp_path_factory):
    """Eighty digits as networks, fitted once."""
    path = tmp_path_factory.mktemp("data") / "sirens"
    fit_dataset(FitPlan.make(open_images("mnist-sample"), limit=80, recipe="fast"), path, workers=1)
    return WeightDataset(path)


@pytest.fixture(scope="session")
def zoo(tmp_path_factory):
    """Forty trained CNNs with their accuracies."""
    path = tmp_path_factory.mktemp("data") / "zoo"
    images = open_images("mnist-sample")
    make_zoo(ZooPlan.make(images, count=40, epochs=4, batch_size=64, limit_images=600), path, workers=1)
    return WeightDataset(path)
