"""A model and a task of somebody's own, in a package of theirs, through every command."""

import json
import os
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

import neuralfunctionals as nf
from commands import nf_command, run
from neuralfunctionals import registry
from neuralfunctionals.data import WeightDataset
from neuralfunctionals.inr import Siren
from neuralfunctionals.run_directory import RunDirectory

MODEL = """
import torch
from torch import nn


class MyModel(nn.Module):
    \"\"\"An MLP on all weights.\"\"\"

    def __init__(self, spec, *, out_channels: int, width: int = 4):
        super().__init__()
        self.width = width
        self.layers = nn.Sequential(nn.Linear(spec.num_entries, width), nn.ReLU(), nn.Linear(width, out_channels))

    def forward(self, features):
        return self.layers(features.to_vectors())
"""
TASK = """
from dataclasses import dataclass

import torch

from neuralfunctionals.tasks import Column, ModelSettings, Picture, Recipe, Task, TaskDefinition


@dataclass(frozen=True)
class BrightnessConfig:
    power: float = 2.0
    \"\"\"Of the error.\"\"\"


class BrightnessTask(Task):
    \"\"\"How bright the picture of a network is.\"\"\"

    metric = "error"

    def __init__(self, model, *, power: float = 2.0, optimizer=None, seed=0):
        super().__init__(model, optimizer=optimizer, seed=seed)
        self.power = power

    def prepare(self, items):
        return items.features, items.image.float().mean((1, 2, 3)) / 255

    def loss(self, batch):
        return (self.predict(batch[0]) - batch[1]).abs().pow(self.power).mean()

    def score(self, batch):
        return {"error": (self.predict(batch[0]) - batch[1]).abs()}

    def predict(self, networks):
        return self.model(networks)[:, 0]

    def samples(self, items):
        features, brightness = self.prepare(items)
        return {"true": brightness, "predicted": self.predict(features).detach()}

    def encode(self, networks, form=None):
        return self.model(networks)[:, None].detach()

TASK = TaskDefinition(
    BrightnessTask,
    config=BrightnessConfig,
    recipes={"digits": Recipe("the brightness of digits")},
    settings={"own_package.models.MyModel": ModelSettings(small={"width": 5}, steps=20, batch_size=8)},
    title="Brightness",
    question="How bright is it?",
    columns=(Column("test error", "test", "error"),),
    pictures=(Picture("Bright and brighter", "As predicted.", ("predicted", "true"), kind="scatter"),),
)
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A package outside of ours, importable as one that is installed."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "own_package").mkdir()
    for name, text in (("__init__", ""), ("models", MODEL), ("brightness", TASK)):
        (folder / "own_package" / f"{name}.py").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *sys.path]))
        yield folder


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "digits"
    plan = nf.data.FitPlan.make(nf.data.open_images("mnist-sample"), recipe="fast", limit=40)
    nf.data.fit_dataset(plan, path)
    return path


@pytest.fixture(scope="module")
def trained(package, digits, tmp_path_factory):
    """A run of their task with their model, begun by the command."""
    out = tmp_path_factory.mktemp("runs") / "run"
    words = ["train", "own_package.brightness/digits", "--data", digits, "--out", out, "--task.power", "1.5"]
    done = subprocess.run(nf_command(*words, "--model.width", "6", "--json"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out, json.loads(done.stdout.splitlines()[-1])


def test_every_command_takes_a_run_of_a_task_and_a_model_of_ones_own(trained, digits, tmp_path, capsys):
    out, result = trained
    config = RunDirectory(out).read_config()["run"]
    assert (config["model"], config["task"]) == ({"width": 6}, {"power": 1.5})
    assert (result["metric"], result["steps"]) == ("error", 20)
    assert run(capsys, "evaluate", out, "--json")[1]["error"] == result["test"]["error"]
    code, encoded, err = run(capsys, "encode", out, "--out", tmp_path / "latents", "--json")
    assert (code, encoded["latent_shape"]) == (0, [1, 1]), err
    torch.save(Siren().state_dict(), tmp_path / "siren.pth")
    weights = ["--weights", tmp_path / "siren.pth"]
    code, predicted, err = run(capsys, "predict", out, *weights, "--json")
    assert (code, len(predicted["accuracies"])) == (0, 1), err
    words = ["sweep", "own_package.brightness/digits", "--data", digits, "--trials", "1", "--out", tmp_path / "sweep"]
    code, swept, err = run(capsys, *words, "--json")
    assert code == 0, err
    assert swept["best"].keys() == {"optimizer.lr"}
    code, _, err = run(capsys, "report", out, tmp_path / "sweep" / swept["run"], "--out", tmp_path / "page.html")
    assert code == 0, err
    page = (tmp_path / "page.html").read_text()
    assert "How bright is it?" in page
    assert page.count("data:image/png") == 2


def test_the_run_opens_in_python_with_their_classes(trained):
    out, result = trained
    opened = nf.runs.open_run(out)
    assert (type(opened.task).__name__, opened.task.power) == ("BrightnessTask", 1.5)
    assert nf.runs.measure(opened.task, WeightDataset(opened.data), "test") == result["test"]
    assert nf.from_pretrained(out).width == 6


def test_a_class_of_tasks_is_enough_and_a_model_may_be_registered_by_one_line(package, digits, tmp_path, monkeypatch):
    import own_package.brightness
    import own_package.models

    task, model = own_package.brightness.BrightnessTask, own_package.models.MyModel
    values = {"training.steps": 10, "training.val_every": 5, "training.batch_size": 8, "canonical": "sine"}
    nf.experiment(task, model, digits, tmp_path / "run", values={**values, "model.width": 3}, progress=False)
    opened = nf.runs.open_run(tmp_path / "run")
    assert opened.task.power == 2.0
    assert isinstance(opened.task.model, nf.models.Canonical)
    assert opened.task.model.model.width == 3
    monkeypatch.setitem(nf.runs.MODELS, "mine", registry.ModelEntry("MyModel", networks=False))
    monkeypatch.setattr(nf.models, "MyModel", model, raising=False)
    result = nf.experiment("classify/mnist", "mine", digits, tmp_path / "b", scale="tiny", progress=False)
    assert result["model"] == "mine"
    assert nf.runs.open_run(tmp_path / "b").run.model_name == "mine"


class Own(nn.Module, nf.models.Pretrained):
    """A model that knows its own arguments."""

    def __init__(self, spec, out_channels=10):
        super().__init__()
        self.spec, self.read = spec, nn.Linear(spec.num_entries, out_channels)

    def forward(self, features):
        return self.read(features.to_vectors())


def test_a_model_that_is_there_already_is_trained_on(digits, tmp_path):
    dataset = WeightDataset(digits)
    model, values = Own(dataset.spec), {"task.decode_size": 0, "canonical": "none"}
    before = model.read.weight.clone()
    result = nf.experiment("classify/mnist", model, dataset, tmp_path / "run", scale="tiny", values=values)
    assert not torch.equal(model.read.weight, before)
    opened = nf.runs.open_run(tmp_path / "run")
    assert nf.runs.measure(opened.task, dataset, "test") == result["test"]


class Listed(nf.tasks.Task):
    """A task with a list as the default of a setting."""

    metric = "error"

    def __init__(self, model, *, weights: list[float] = [1.0, 0.0], optimizer=None, seed=0):  # noqa: B006
        super().__init__(model, optimizer=optimizer, seed=seed)
        self.weights = weights

    def prepare(self, items):
        return items.features, items.label.float()

    def loss(self, batch):
        return self.score(batch)["error"].mean()

    def score(self, batch):
        return {"error": (self.weights[0] * self.model(batch[0])[:, 0] - batch[1]).abs()}


def test_registered_models_train_on_a_task_of_ones_own(digits, tmp_path):
    values = {"training.steps": 2, "training.val_every": 2, "training.batch_size": 8}
    nf.experiment(Listed, "statnn", digits, tmp_path / "run", scale="tiny", values=values, progress=False)
    opened = nf.runs.open_run(tmp_path / "run")
    assert (type(opened.task.model).__name__, opened.task.weights) == ("StatNN", [1.0, 0.0])
    with pytest.raises(nf.UserError, match="one of neuron-graph, .*statnn.*, but got 'statn'. Did you mean statnn"):
        nf.experiment(Listed, "statn", digits, tmp_path / "other", progress=False)


def test_a_selection_from_a_store_is_refused(digits, tmp_path):
    few = WeightDataset(digits).select(range(20))
    with pytest.raises(nf.UserError, match="all 40 networks of the store at .* got 20 of them.*training.limit"):
        nf.experiment("classify/mnist", "dws", few, tmp_path / "run", scale="tiny", progress=False)
    assert not (tmp_path / "run").exists()


class Waits(Own):
    """A model that is not built before another run has got as far as a test wants."""

    def __init__(self, spec, out_channels=10):
        self.reached.set()
        assert self.resume.wait(120)
        super().__init__(spec, out_channels)


@pytest.mark.parametrize("moment", ["training", "finished"])
def test_of_two_runs_that_start_in_one_directory_the_slower_is_refused(digits, tmp_path, monkeypatch, moment):
    for name in ("reached", "resume"):
        monkeypatch.setattr(Waits, name, threading.Event(), raising=False)
    values = {"task.decode_size": 0, "canonical": "none"}
    errors = []

    def start_slowly():
        try:
            nf.experiment("classify/mnist", Waits, digits, tmp_path, scale="tiny", values={**values, "seed": 1})
        except nf.UserError as error:
            errors.append(str(error))

    slow = threading.Thread(target=start_slowly)

    def resume():
        Waits.resume.set()
        slow.join()

    def report(done, total):
        if moment == "training" and done == 1:
            resume()

    slow.start()
    assert Waits.reached.wait(120)
    result = nf.experiment("classify/mnist", Own, digits, tmp_path, scale="tiny", values=values, progress=report)
    resume()
    assert errors == [f"Another process has started a run in {tmp_path} meanwhile. Choose another directory."]
    assert RunDirectory(tmp_path).read_result() == result


def test_a_model_of_another_frequency_is_standardized_on_the_networks_that_it_sees(digits, tmp_path):
    dataset = WeightDataset(digits)
    model = nf.models.NFN(nf.NetworkSpec.siren(dataset.spec.widths, 15.0), channels=[2], standardize=True)
    values = {"training.steps": 2, "training.val_every": 2, "canonical": "none"}
    nf.experiment("edit/mnist-dilate", model, digits, tmp_path / "run", scale="tiny", values=values, progress=False)
    (layer,) = (m for m in model.modules() if isinstance(m, nf.layers.Standardize))
    converted = nf.inr.convert(dataset.split("train")[:].features, nf.inr.SirenForm(15.0))
    for group, mean, deviation in zip(converted.split(), layer.mean, layer.deviation, strict=True):
        torch.testing.assert_close(mean, group.mean()[None])
        torch.testing.assert_close(deviation, group.std(correction=0)[None])


def test_refuses_what_cannot_be_built_or_saved(package, digits, tmp_path):
    cases = [
        ("classify/mnist", "own_package.models.Missing", {}, "has no attribute 'Missing'"),
        ("classify/mnist", "no_package.Model", {}, "no module 'no_package'"),
        ("classify/mnist", "own_package.models.MyModel", {"model.depth": 3}, "unexpected keyword argument 'depth'"),
        ("classify/mnist", "nft", {"task.classes": 3}, "Expected a field of task, one of num_classes"),
        ("own_package.models/digits", "nft", {}, "a module with a TASK, or a class of tasks"),
        ("classify/mnist", nn.Linear(2, 2), {}, "Derive it from nf.models.Pretrained"),
    ]
    for task, model, values, message in cases:
        with pytest.raises(nf.UserError, match=message):
            nf.experiment(task, model, digits, tmp_path / "r", scale="tiny", values=values, progress=False)
    assert not (tmp_path / "r").exists()


def test_nothing_is_imported_for_directories_of_others_or_the_hub(trained, tmp_path, monkeypatch):
    from neuralfunctionals.imports import import_for_file, imports_for

    out, _ = trained
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    for act in (nf.runs.open_run, nf.from_pretrained):
        with pytest.raises(nf.UserError, match="needs to import own_package.* but belongs to another user"):
            act(out)
    with imports_for(None), pytest.raises(nf.UserError, match="only allowed for directories that you own"):
        import_for_file("own_package.models.MyModel")


def test_a_bug_in_ones_own_code_keeps_its_traceback(package, digits, tmp_path, capsys):
    (package / "own_package" / "broken.py").write_text(
        "from own_package.brightness import BrightnessTask\n\n\nclass Broken(BrightnessTask):\n"
        "    def loss(self, batch):\n        raise ValueError('not the user')\n"
    )
    words = ["train", "own_package.broken.Broken", "--scale", "tiny", "--model", "own_package.models.MyModel"]
    code, _, err = run(capsys, *words, "--data", digits, "--out", tmp_path / "run")
    assert code == 1
    assert "Traceback (most recent call last)" in err
    assert "ValueError: not the user" in err
    assert err.splitlines()[-1].startswith("nf: this is a bug in neuralfunctionals. Please report the lines above")
