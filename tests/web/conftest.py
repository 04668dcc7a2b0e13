"""Tiny trained models for the page, and a server for all tests of a session."""

import os

import pytest
from web_server import Server

from neuralfunctionals.cli import main
from neuralfunctionals.cli.serve import open_models

NAMES = ("dilate", "erode", "gradient", "classify", "inr2array")


@pytest.fixture(scope="session")
def models_directory(tmp_path_factory):
    """Run directories with the names that the page asks for: too small to be good, built like the real ones."""
    out = tmp_path_factory.mktemp("models")
    short = ["--scale", "tiny", "--training.steps", "2", "--training.val_every", "2"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NF_CACHE", os.environ.get("NF_CACHE") or str(tmp_path_factory.mktemp("cache")))
        for name in NAMES:
            recipe = f"{name}/mnist" if name in ("classify", "inr2array") else f"edit/mnist-{name}"
            options = ["--canonical", "sine"] if name in ("classify", "inr2array") else ["--model.output_scale", "0.1"]
            assert main(["train", recipe, *short, *options, "--out", str(out / f"digits-{name}")]) == 0
    return out


@pytest.fixture(scope="session")
def models(models_directory):
    return open_models(str(models_directory))


@pytest.fixture(scope="session")
def server(models_directory):
    started = Server(models_directory)
    yield started
    assert started.process.poll() is None, "".join(started.lines)
    started.stop()
