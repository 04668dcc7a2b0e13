"""Fixed seeds, one thread and an empty cache for every test; what is wrong on purpose is told apart."""

import pytest
import torch
from hypothesis import settings

settings.register_profile("project", deadline=None, derandomize=True)
settings.load_profile("project")


@pytest.fixture(autouse=True)
def _fixed_seed():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """What is made once and kept, is kept for one run of the tests; the user's own stays as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NF_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def pytest_collection_modifyitems(items):
    """Tests that something is refused hand over wrong types, which checked annotations would refuse first."""
    for item in items:
        if "refuse" in item.name:
            item.add_marker("bad_input")
