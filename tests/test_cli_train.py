"""The commands that train and use models, as people call them."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch

from commands import nf_command, run
from neuralfunctionals.cli import main
from neuralfunctionals.data.formats.network_files import read_networks, write_networks
from neuralfunctionals.inr import Siren, image_grid
from neuralfunctionals.registry import RECIPES
from neuralfunctionals.report import read_runs
from neuralfunctionals.runs import open_run
from neuralfunctionals.studies import TABLES
from neuralfunctionals.studies.tables import PaperTable, Planned
from neuralfunctionals.weight_space import WeightSpaceFeatures

TRAIN = ("train", "edit/mnist-dilate", "--scale", "tiny")
LONGER = (*TRAIN, "--model", "nfn-np", "--training.steps", "120", "--training.val_every", "10")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    assert main([*TRAIN, "--model", "nft", "--out", str(out), "--model.output_scale", "0.1"]) == 0
    return out


def test_trains_evaluates_and_says_so_in_one_line(capsys, trained):
    code, result, _ = run(capsys, "evaluate", trained, "--split", "val", "--json")
    assert code == 0
    assert result["split"] == "val"
    assert 0 < result["mse"] < 2
    assert result["networks"] == 7


def test_any_field_can_be_set(capsys, tmp_path):
    options = ["--optimizer.lr", "1e-4", "--training.steps=10", "--task.edit", "erode", "--seed", "7"]
    options += ["--task.augment", "none"]
    code, result, err = run(
        capsys, *TRAIN, "--model=nfn-np", "--model.channels", "[3,3]", *options, "--out", tmp_path / "r", "--json"
    )
    assert code == 0, err
    assert (result["steps"], result["seed"], result["model"]) == (10, 7, "nfn-np")
    opened = open_run(tmp_path / "r")
    assert opened.run.optimizer.lr == 1e-4
    assert opened.run.task.edit == "erode"
    assert opened.run.model == {"channels": [3, 3]}


def test_networks_of_the_users_own_store(capsys, tmp_path):
    assert (
        main(["fit", "--images", "fashion-sample", "--limit", "30", "--recipe", "fast", "--out", str(tmp_path / "d")])
        == 0
    )
    capsys.readouterr()
    code, result, err = run(capsys, *TRAIN, "--data", tmp_path / "d", "--out", tmp_path / "r", "--json")
    assert code == 0, err
    assert result["train"]["networks"] == 24
    assert open_run(tmp_path / "r").data == (tmp_path / "d").resolve()


@pytest.mark.parametrize("ending", [".pth", ".safetensors", ".npz"])
def test_edits_networks_of_a_file_into_one_that_loads_back(capsys, trained, tmp_path, ending):
    siren = Siren()
    before, after = tmp_path / f"siren{ending}", tmp_path / f"edited{ending}"
    write_networks(before, WeightSpaceFeatures.from_modules([siren]))
    code, result, err = run(capsys, "edit", trained, "--weights", before, "--out", after, "--json")
    assert code == 0, err
    assert (result["networks"], result["edit"]) == (1, "dilate")
    (loaded,) = read_networks(after).to_modules(siren)
    expected = open_run(trained).task.edit(siren)
    grid = image_grid(28, 28)
    torch.testing.assert_close(loaded(grid), expected(grid))
    assert not torch.allclose(loaded(grid), siren(grid))
    assert run(capsys, "edit", trained, "--weights", before, "--out", after)[0] == 2
    assert run(capsys, "edit", trained, "--weights", before, "--out", after, "--force")[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*TRAIN, "--optimzer.lr", "1"], "got --optimzer.lr. Did you mean --optimizer.lr?"),
        ([*TRAIN, "--training.step", "1"], "got --training.step. Did you mean --training.steps?"),
        ([*TRAIN, "--optimizer.lr", "abc"], "optimizer.lr"),
        ([*TRAIN, "--optimizer.lr", "-1"], "lr to be a positive number, but got -1.0"),
        ([*TRAIN, "--model", "nftt"], "Did you mean nft?"),
        ([*TRAIN, "--scale"], "Expected a value after --scale."),
        (["train"], "Expected RECIPE."),
        (["train", "edit/mnist-dilat"], "Did you mean edit/mnist-dilate?"),
        ([*TRAIN, "--data", "nowhere"], "nowhere"),
        (["evaluate", "nowhere"], "Expected the directory of a run, but nowhere has no run.json"),
        (["edit", "nowhere", "--weights", "a.pth", "--out", "b.pth"], "Expected the directory of a run"),
        (["reproduce", "table9"], "Expected a table"),
        ([*TRAIN, "--training.loggers", "WandbLoger", "--out", "r"], "Did you mean WandbLogger?"),
        ([*TRAIN, "--training.callbacks", "EarlyStopping", "--out", "r"], "missing a required argument: 'monitor'"),
    ],
)
def test_refuses_in_one_line_what_the_user_can_put_right(capsys, monkeypatch, tmp_path, words, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *words)
    assert code == 2
    assert message in err
    assert err.startswith("nf: ")
    assert err.count("\n") == 1
    assert not out
    assert not list(tmp_path.iterdir())


def test_refuses_networks_that_do_not_fit(capsys, trained, tmp_path):
    write_networks(tmp_path / "wide.pth", WeightSpaceFeatures.from_modules([Siren([2, 8, 1])]))
    code, _, err = run(capsys, "edit", trained, "--weights", tmp_path / "wide.pth", "--out", tmp_path / "out.pth")
    assert (code, (tmp_path / "out.pth").exists()) == (2, False)
    assert "The model takes networks" in err
    (tmp_path / "broken.pth").write_bytes(b"not weights")
    code, _, err = run(capsys, "edit", trained, "--weights", tmp_path / "broken.pth", "--out", tmp_path / "out.pth")
    assert code == 2
    assert "Nothing in it was run" in err or "nothing in it was run" in err


def test_help_lists_every_field_with_its_meaning(capsys):
    code, out, _ = run(capsys, *TRAIN, "--model", "nfn-np", "--help")
    assert code == 0
    for text in ("--optimizer.lr", "Peak learning rate", "--training.steps", "--model.channels", "--task.edit"):
        assert text in out


def test_recipes_are_listed(capsys):
    code, out, _ = run(capsys, "recipes")
    assert code == 0
    assert "edit/mnist-dilate" in out
    assert "--scale paper" in out


def test_recipes_are_listed_without_torch_and_nothing_is_cut():
    code = "import sys; from neuralfunctionals.cli import main; main(['recipes']); sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "COLUMNS": "40"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name, recipe in RECIPES.items():
        (line,) = [line for line in done.stdout.splitlines() if line.split()[:1] == [name]]
        assert ", ".join([*recipe.models, *recipe.latent_models]) in line


def rows(path):
    with open(path / "metrics.csv") as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


@pytest.mark.slow
def test_two_processes_give_the_losses_of_one(tmp_path):
    options = [*TRAIN, "--training.log_every", "1", "--training.accelerator", "cpu"]
    options += ["--task.augment", "none"]  # each process draws its own
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for devices in (1, 2):
        words = [*options, "--devices", str(devices), "--out", tmp_path / str(devices)]
        done = subprocess.run(nf_command(*words), env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    one, two = rows(tmp_path / "1"), rows(tmp_path / "2")
    assert len(one) == len(two) == 22
    for first, second in zip(one, two, strict=True):
        for name in first:
            assert bool(first[name]) == bool(second[name])
            assert not first[name] or float(first[name]) == pytest.approx(float(second[name]), abs=1e-5)


def stop(out, sent, *words):
    """Starts a training, stops it by a signal after its first checkpoint; its exit code and standard error."""
    process = subprocess.Popen(
        nf_command(*words, "--out", out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored in the background of a shell
    )
    while not (out / "checkpoints" / "last.ckpt").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(sent)
    _, err = process.communicate(timeout=120)
    assert not (out / "result.json").exists()
    return process.returncode, err


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A training that was never stopped."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    done = subprocess.run(nf_command(*LONGER, "--out", out), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


def assert_same_run(out, whole):
    assert rows(out) == rows(whole)
    files = [p / "model" / "model.safetensors" for p in (out, whole)]
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.slow
def test_a_killed_command_is_continued_to_the_same_model(tmp_path, whole):
    out = tmp_path / "killed"
    stop(out, signal.SIGKILL, *LONGER)
    done = subprocess.run(nf_command(*LONGER, "--out", out, "--resume"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert_same_run(out, whole)


@pytest.mark.slow
def test_ctrl_c_stops_cleanly_and_the_command_repeated_continues(capsys, tmp_path, whole):
    out = tmp_path / "run"
    code, err = stop(out, signal.SIGINT, *LONGER)
    assert code == 130
    message = "nf: interrupted. Finished work is kept: repeat the command to resume."
    assert err.strip().splitlines()[-1] == message
    assert re.search(r"training: \d+/120 \(\d+%\), [\d.e+]+ steps/s, \d:\d\d:\d\d left, loss \d\.\d+", err)
    code, _, err = run(capsys, *LONGER, "--out", out, "--optimizer.lr", "0.5")
    assert (code, err.count("\n")) == (2, 1)
    assert re.search(r"was started with optimizer.lr [\d.]+, but now it is 0.5", err)
    done = subprocess.run(nf_command(*LONGER, "--out", out, "--json"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert_same_run(out, whole)
    steps = [int(line.split()[1].partition("/")[0]) for line in done.stderr.splitlines() if line.startswith("training")]
    assert steps[0] > 10  # the first are not repeated
    assert steps[-1] == 120
    code, _, err = run(capsys, *LONGER, "--out", out)
    assert (code, "has a finished run" in err) == (2, True)
    result = run(capsys, *LONGER, "--out", out, "--resume", "--json")[1]
    assert result == json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_table_is_reproduced_and_continued(capsys, monkeypatch, tmp_path):
    out, table = tmp_path / "table", TABLES["table2"]
    assert len(table.runs) == 30
    chosen = [run for run in table.runs if run.recipe in ("edit/mnist-erode", "edit/mnist-dilate")]
    monkeypatch.setitem(TABLES, "table2", replace(table, runs=tuple(chosen)))
    code, result, err = run(capsys, "reproduce", "table2", "--scale", "tiny", "--out", out, "--jobs", "2", "--json")
    assert code == 0, err
    assert result["runs"] == 12
    text = (out / "table.md").read_text()
    assert text == result["markdown"]
    assert len(read_runs([out / "records.jsonl"])) == 12
    assert text.count("edit/mnist-dilate") == 7
    assert "| neuron-graph, 128 probes | asks the function |" in text
    assert "0.0510" in text
    assert all((out / name).stat().st_size > 10_000 for name in ("edits.png", "edit_curves.png"))
    times = {p: p.stat().st_mtime_ns for p in out.glob("*/result.json")}
    assert len(times) == 12
    assert run(capsys, "reproduce", "table2", "--scale", "tiny", "--out", out, "--json")[0] == 0
    assert {p: p.stat().st_mtime_ns for p in out.glob("*/result.json")} == times


@pytest.mark.slow
def test_runs_that_were_recorded_elsewhere_are_not_repeated(capsys, monkeypatch, tmp_path):
    autoencoder = Planned("inr2array/mnist", "nft")
    classifier = Planned("classify/mnist", "latent", encoder=autoencoder)
    monkeypatch.setitem(TABLES, "table5", PaperTable("an autoencoder and a classifier", (autoencoder, classifier)))

    def reproduce(name, *options):
        words = ("reproduce", "table5", "--scale", "tiny", "--out", tmp_path / name, "--json", *options)
        code, result, err = run(capsys, *words)
        assert code == 0, err
        return result["markdown"], {path.parent.name for path in (tmp_path / name).glob("*/result.json")}

    text, both = reproduce("here")
    assert len(both) == 2
    records = tmp_path / "here/records.jsonl"
    assert reproduce("elsewhere", "--records", records) == (text, set())
    assert (tmp_path / "elsewhere/records.jsonl").read_bytes() == records.read_bytes()
    first, second = records.read_text().splitlines()
    for recorded, repeated in ((first, both), (second, {"inr2array-mnist-tiny-nft-seed0"})):
        records.write_text(f"{recorded}\n")
        assert reproduce(f"with {len(repeated)} repeated", "--records", records)[1] == repeated
    records.write_text(first.replace('"batch_size":8', '"batch_size":4') + f"\n{second}\n")
    assert reproduce("other settings", "--records", records)[1] == {"inr2array-mnist-tiny-nft-seed0"}
