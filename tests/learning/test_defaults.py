"""The default model of each recipe learns: on embedded images in minutes, and on full sets if they are there.

Floors and ceilings are what was measured, less three standard errors over seeds and test networks. Full sets are found
by `NF_DATA_ROOT`; `make test-learn` runs those tests.
"""

import os

import pytest

from neuralfunctionals.config import with_steps, with_values
from neuralfunctionals.registry import find_run
from neuralfunctionals.runs import execute


def train(recipe, steps, out, *, images=None, **values):
    run = with_steps(find_run(recipe, scale="small"), steps)
    run = with_values(run, {"training.threads": 1, "training.ema_decay": 0.98, **values})
    if images is not None:
        run = with_values(run, {"data.images": images})
    return execute(run, out, progress=False)["test"]


@pytest.mark.slow
def test_the_default_classifier_learns_from_embedded_digits(tmp_path):
    assert train("classify/mnist", 500, tmp_path, images="mnist-sample")["accuracy"] > 0.48


@pytest.mark.slow
def test_the_default_autoencoder_learns_from_embedded_digits(tmp_path):
    assert train("inr2array/mnist", 500, tmp_path, images="mnist-sample")["mse"] < 0.21


@pytest.mark.slow
def test_the_default_editor_learns_from_embedded_digits(tmp_path):
    assert train("edit/mnist-dilate", 300, tmp_path, images="mnist-sample")["mse"] < 0.13


needs_full_sets = pytest.mark.skipif(
    not os.environ.get("NF_DATA_ROOT"), reason="needs the full image sets: set NF_DATA_ROOT to where they are"
)


@pytest.mark.learn
@pytest.mark.timeout(3600)
@needs_full_sets
@pytest.mark.parametrize(
    ("recipe", "steps", "metric", "is_good"),
    [
        ("classify/mnist", 2500, "accuracy", lambda value: value >= 0.8),
        ("inr2array/mnist", 2500, "mse", lambda value: value <= 0.13),
        ("edit/mnist-dilate", 900, "mse", lambda value: value <= 0.12),
    ],
)
def test_default_models_learn_from_full_sets(recipe, steps, metric, is_good, tmp_path):
    value = train(recipe, steps, tmp_path, **{"training.ema_decay": 0.99})[metric]
    assert is_good(value), value
