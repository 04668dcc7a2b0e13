"""Fixed seeds and one thread for every test."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _fixed_seed():
    torch.set_num_threads(1)
    torch.manual_seed(0)
