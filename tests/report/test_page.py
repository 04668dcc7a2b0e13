"""The page about runs: what is on it, and that it needs and trusts nothing outside itself."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

from commands import run
from neuralfunctionals.cli import main
from neuralfunctionals.data import Store, StoreHeader
from neuralfunctionals.registry import TASKS
from neuralfunctionals.report import read_runs, write_report
from neuralfunctionals.report.finished import tell_apart
from neuralfunctionals.report.pictures import _compare
from neuralfunctionals.run_directory import RunDirectory

HOSTILE = "<script>alert('$x_{')</script>"


def write_run(path, recipe, model, *, seed=0, value=0.25, changes=(), samples=None, made=None):
    """A finished run, as training leaves it; `changes` are fields of its config by their names, `made` of its data."""
    family = TASKS[recipe.partition("/")[0]]
    directory = RunDirectory(path)
    split = {"networks": 10, family.metric: value, "mse_no_edit": 0.5, "r2": 0.1, "l1": 0.2}
    setting = {
        "recipe": recipe,
        "scale": "tiny",
        "model_name": model,
        "model": {"channels": 8},
        "task": {"num_classes": 10},
        "optimizer": {"lr": 0.003},
        "training": {"steps": 20, "batch_size": 8, "threads": 1},
        "canonical": "sine",
        "seed": seed,
        **dict(changes),
    }
    fit = {"optimizer": "adam", "learning_rate": 0.003, "schedule": "cosine", "steps": 400, "stop_psnr_db": 40.0}
    data = {"images": "mnist-sample", "networks": 64, "kind": "fitted sine networks", "recipe": fit, "seed": 0}
    data |= made or {}
    machine = {"python": "3.11.7", "torch": "2.13.0", "lightning": "2.6.6", "cores": 2, "threads": 1}
    code = {"version": "0.1.0", "commit": "0123456789ab"}
    started = "2026-01-02T03:04:05Z"
    directory.write_config({"run": setting, "data": data, "machine": machine, "code": code, "started": started})
    directory.write_curve([{"step": s, "seconds": s / 2, f"val/{family.metric}": value} for s in (10, 20)])
    pictures = {name: torch.rand(4, 8, 8, 1) for name in ("image", "original", "target", "edited", "reconstruction")}
    if samples is None:
        classes = {"label": torch.arange(4), "predicted": torch.tensor([0, 1, 2, 9])}
        samples = {**pictures, **classes, "true": torch.rand(4)} if recipe.startswith("classify") else pictures
        if recipe.startswith("generalization"):
            samples = {"true": torch.rand(9), "predicted": torch.rand(9)}
    if samples:
        directory.write_samples(samples)
    directory.write_result(
        {
            "recipe": recipe,
            "scale": setting["scale"],
            "model": model,
            "seed": seed,
            "parameters": 1234,
            "steps": 20,
            "best_step": 10,
            "training_seconds": 7.0,
            "train": split,
            "val": split,
            "test": split,
        }
    )
    return path


class Page(HTMLParser):
    """What a browser would make of a page: its tags, what they load, and its text."""

    def __init__(self, file):
        super().__init__()
        self.tags, self.addresses, self.text, self.open = [], [], "", []
        self.feed(file.read_text())
        assert not self.open, "tags left open"

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_a_page_of_all_kinds_of_runs_needs_nothing_outside_itself(tmp_path, capsys):
    recipes = ["edit/mnist-dilate", "inr2array/mnist", "classify/mnist", "generalization/svhn-grey"]
    paths = [write_run(tmp_path / str(place), recipe, "nft") for place, recipe in enumerate(recipes)]
    write_report(read_runs(paths), tmp_path / "report.html")
    page = Page(tmp_path / "report.html")
    assert page.tags.count("img") == 8
    assert all(address.startswith("data:image/png;base64,") for address in page.addresses)
    assert "script" not in page.tags
    assert "http" not in re.sub(r"base64,[^\"]*", "", (tmp_path / "report.html").read_text())
    for family in TASKS.values():
        assert family.question in page.text
    for words in ("0.0510", "chance", "0123456789ab", "torch 2.13.0", "rate 0.003", "2026-01-02 03:04"):
        assert words in page.text, words


def test_texts_from_files_stay_texts(tmp_path):
    path = write_run(tmp_path / "<b>run</b>", f"edit/{HOSTILE}", HOSTILE, changes={"canonical": HOSTILE}.items())
    config = json.loads((path / "run.json").read_text())
    for part in ("code", "machine"):
        config[part] = dict.fromkeys(config[part], HOSTILE)
    config["data"] |= {"images": HOSTILE, "kind": HOSTILE, "recipe": dict.fromkeys(config["data"]["recipe"], HOSTILE)}
    config["started"] = config["run"]["optimizer"]["lr"] = HOSTILE
    RunDirectory(path).write_config(config)
    write_report(read_runs([path]), tmp_path / "report.html", title=HOSTILE)
    page = Page(tmp_path / "report.html")
    assert not {"script", "b"} & set(page.tags)
    assert page.text.count(HOSTILE) > 10


def test_runs_that_differ_in_more_than_their_seed_are_told_apart(tmp_path):
    changes = [{}, {}, {"canonical": "none"}, {"scale": "small"}, {"scale": "small", "model": {"channels": 9}}]
    paths = [
        write_run(tmp_path / str(n), "edit/mnist-dilate", "nft", seed=n, changes=c.items())
        for n, c in enumerate(changes)
    ]
    named = [run.model for run in tell_apart(read_runs(paths))]
    assert named == ["nft tiny", "nft tiny", "nft, raw weights", "nft small #1", "nft small #2"]
    assert [run.model for run in tell_apart(read_runs(paths[:2]))] == ["nft", "nft"]


def test_runs_of_one_recipe_on_different_data_share_a_page(tmp_path):
    """Other networks, other numbers of them, other sizes of images: each model stands below what it was given."""
    paths = [
        write_run(
            tmp_path / f"{recipe[:4]}{model}{place}",
            f"{recipe}/mnist-dilate" if recipe == "edit" else f"{recipe}/mnist",
            model,
            samples=some_samples(count, size, seed=seed),
            changes={"data": {"limit": count, "seed": seed}}.items(),
            made={"limit": count, "seed": seed},
        )
        for recipe in ("edit", "inr2array", "classify")
        for place, (model, count, size, seed) in enumerate(
            [("nft", 4, 8, 0), ("nfn-np", 4, 8, 0), ("nft", 3, 8, 1), ("nfn-np", 6, 9, 2), ("nft", 4, 8, 3)]
        )
    ]
    write_report(read_runs(paths), tmp_path / "report.html")
    page = Page(tmp_path / "report.html")
    assert page.tags.count("img") == 6
    assert page.text.count("nft tiny #3") >= 3


def some_samples(count, size, *, seed):
    """What a run keeps of its test networks; the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    names = ("image", "original", "target", "edited", "reconstruction")
    pictures = {name: torch.rand(count, size, size, 1, generator=generator) for name in names}
    return {**pictures, "label": torch.arange(count), "predicted": torch.arange(count)}


def test_runs_on_different_stores_are_no_seeds_of_one_another(tmp_path):
    made = [{"source": "mine"}, {"source": "theirs"}, {"source": "mine", "path": "moved"}]
    paths = [write_run(tmp_path / str(n), "edit/mnist-dilate", "nft", seed=n, made=m) for n, m in enumerate(made)]
    named = [run.model for run in tell_apart(read_runs(paths))]
    assert named == ["nft tiny #1", "nft tiny #2", "nft tiny #1"]


def test_only_models_of_the_same_networks_stand_below_each_other(tmp_path):
    chosen = {"nft": (4, 8, 0), "nfn-np": (4, 8, 0), "nfn-hnp": (3, 8, 0), "dws": (4, 8, 1), "spatial-nfn": (3, 8, 0)}
    paths = [
        write_run(tmp_path / model, "edit/mnist-dilate", model, samples=some_samples(count, size, seed=seed))
        for model, (count, size, seed) in chosen.items()
    ]
    compared = _compare(read_runs(paths), ("original", "target"), num_samples=8)
    assert {title: list(samples) for title, samples in compared.items()} == {
        "edit/mnist-dilate, test set 1": ["nft", "nfn-np"],
        "edit/mnist-dilate, test set 2": ["nfn-hnp", "spatial-nfn"],
        "edit/mnist-dilate, test set 3": ["dws"],
    }
    for samples in compared.values():
        counts = {len(values) for of_model in samples.values() for values in of_model.values()}
        assert len(counts) == 1


def test_runs_without_samples_are_reported_without_those_pictures(tmp_path):
    path = write_run(tmp_path / "r", "edit/mnist-dilate", "nft", samples={})
    write_report(read_runs([path]), tmp_path / "report.html")
    page = Page(tmp_path / "report.html")
    assert page.tags.count("img") == 1
    assert "No picture. The files for it are missing from 1 run of 1" in page.text


def test_shipped_models_are_reported_by_their_names(tmp_path, capsys):
    code, result, err = run(capsys, "report", "digits-dilate", "cnn-accuracy", "--out", tmp_path / "r.html", "--json")
    assert (code, result["runs"]) == (0, 2), err
    assert "digits-dilate" in Page(tmp_path / "r.html").text


def test_a_report_is_replaced_and_other_files_are_not(tmp_path, capsys):
    path = write_run(tmp_path / "r", "edit/mnist-dilate", "nft", samples={})
    out = tmp_path / "report.html"
    for _ in range(2):
        assert run(capsys, "report", path, "--out", out)[0] == 0
    out.write_text("my own notes")
    code, _, err = run(capsys, "report", path, "--out", out)
    assert (code, out.read_text()) == (2, "my own notes")
    assert "is not a report. Choose another file, or replace it with --force." in err
    assert run(capsys, "report", path, "--out", out, "--force")[0] == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r", "report.html"]


def break_result(path):
    RunDirectory(path).write_result({"recipe": "edit/mnist-dilate"})


def break_config(path):
    RunDirectory(path).write_config({"run": ["edit"]})


def break_samples(path):
    (path / "samples.safetensors").write_bytes(b"no samples")


def break_curve(path):
    (path / "metrics.csv").write_text("step,seconds\nmany,few\n")


def shrink_samples(path):
    RunDirectory(path).write_samples({name: torch.zeros(2) for name in ("original", "target", "edited")})


def drop_metric(path):
    result = RunDirectory(path).read_result()
    RunDirectory(path).write_result({**result, "test": {"mse": 0.1}})


def unfinish(path):
    (path / "result.json").unlink()


def empty(path):
    (path / "run.json").unlink()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (break_result, "Expected the result of nf train, but .*result.json has other contents"),
        (break_config, r"run.json: run: expected an object, but got .*Expected a file written by nf train"),
        (break_samples, "Cannot read the curve and samples of"),
        (break_curve, "Cannot read the curve and samples of"),
        (shrink_samples, "Cannot make 'Before and after' from these runs"),
        (drop_metric, "Cannot make 'Results' from these runs"),
        (unfinish, "is not finished. Resume it with nf train"),
        (empty, "Expected the directory of a run, but .* has no run.json"),
    ],
)
def test_refuses_in_one_line_what_is_no_finished_run(tmp_path, capsys, spoil, message):
    path = write_run(tmp_path / "r", "edit/mnist-dilate", "nft")
    spoil(path)
    code, out, err = run(capsys, "report", path, "--out", tmp_path / "report.html")
    assert (code, out) == (2, "")
    assert re.search(message, err), err
    assert err.count("\n") == 1
    assert not (tmp_path / "report.html").exists()


def test_refuses_other_recipes_missing_directories_and_directories_as_files(tmp_path, capsys):
    path = write_run(tmp_path / "r", "edit/mnist-dilate", "nft")
    result = RunDirectory(path).read_result()
    cases = [
        ([tmp_path / "nowhere", "--out", tmp_path / "a.html"], "nowhere has no run.json"),
        ([path, "--out", tmp_path], "is a directory. Choose a file"),
        ([path, "--out", tmp_path / "none" / "a.html"], "Create it first"),
    ]
    for words, message in cases:
        code, _, err = run(capsys, "report", *words)
        assert code == 2
        assert message in err
        assert err.count("\n") == 1
    RunDirectory(path).write_result({**result, "recipe": "cook/soup"})
    code, _, err = run(capsys, "report", path, "--out", tmp_path / "a.html")
    assert code == 2
    assert "Expected a run of classify, edit, generalization, inr2array, but" in err


def test_real_runs_of_three_kinds_and_a_store_of_latents(tmp_path, capsys):
    fit = ["fit", "--images", "mnist-sample", "--limit", "40", "--recipe", "fast", "--out", tmp_path / "digits"]
    assert main([str(word) for word in fit]) == 0
    chosen = [("edit/mnist-dilate", "neuron-graph"), ("inr2array/mnist", "nfn"), ("classify/mnist", "dws")]
    for recipe, model in chosen:
        words = ["train", recipe, "--scale", "tiny", "--model", model, "--data", tmp_path / "digits"]
        words += ["--out", tmp_path / model, "--training.steps", "10"]
        assert run(capsys, *words)[0] == 0
    assert run(capsys, "encode", tmp_path / "nfn", "--out", tmp_path / "latents")[0] == 0
    paths = [tmp_path / model for _, model in chosen]
    code, result, err = run(capsys, "report", *paths, tmp_path / "latents", "--out", tmp_path / "report.html", "--json")
    assert code == 0, err
    assert (result["runs"], result["latents"]) == (3, 1)
    assert result["bytes"] == (tmp_path / "report.html").stat().st_size
    page = Page(tmp_path / "report.html")
    assert page.tags.count("img") == 8
    assert "32 / 4 / 4" in page.text
    code, result, err = run(capsys, "report", tmp_path / "latents", "--out", tmp_path / "latents.html", "--json")
    assert (code, result["runs"], result["latents"]) == (0, 0, 1), err
    code, _, err = run(capsys, "report", tmp_path / "digits", "--out", tmp_path / "digits.html")
    assert code == 2
    assert "Expected latents and classes" in err


def test_a_store_without_classes_is_refused(tmp_path, capsys):
    tensors = {"latents": np.zeros((9, 4, 6), np.float32), "split": np.full(9, 2, np.int8)}
    Store.create(tmp_path / "s", StoreHeader(9, 9)).write_shard(0, tensors, [{}] * 9)
    code, _, err = run(capsys, "report", tmp_path / "s", "--out", tmp_path / "a.html")
    assert code == 2
    assert "Expected latents and classes" in err
