"""From networks to latents by the command, as people call it."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from commands import run
from neuralfunctionals.cli import main
from neuralfunctionals.data import WeightDataset
from neuralfunctionals.runs import open_run
from neuralfunctionals.studies import TABLES

# Dies by SIGKILL while it encodes, as a machine that is switched off.
KILLED = """
import os, signal, sys
from neuralfunctionals.runs import encode
done = 0
def report(total, count):
    global done
    done += count
    if done >= total // 2:
        os.kill(os.getpid(), signal.SIGKILL)
encode(*sys.argv[1:], workers=1, progress=report)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Networks and a trained autoencoder."""
    out = tmp_path_factory.mktemp("made")
    assert main(["fit", "--images", "mnist-sample", "--limit", "80", "--recipe", "fast", "--out", str(out / "d")]) == 0
    words = ["train", "inr2array/mnist", "--scale", "tiny", "--model", "nfn", "--data", str(out / "d")]
    assert main([*words, "--task.augment", "turns", "--model.grid_size", "3", "--out", str(out / "run")]) == 0
    return out


def test_latents_are_made_looked_at_and_classified(capsys, made, tmp_path):
    code, result, err = run(capsys, "encode", made / "run", "--data", made / "d", "--out", tmp_path / "l", "--json")
    assert code == 0, err
    assert (result["items"], result["items_encoded"], result["latent_shape"]) == (80, 80, [9, 8])
    code, again, _ = run(capsys, "encode", made / "run", "--out", tmp_path / "l", "--json")
    assert (code, again["items_encoded"]) == (0, 0)
    code, info, err = run(capsys, "data", "info", tmp_path / "l", "--json")
    assert code == 0, err
    assert (info["kind"], info["spec"], info["splits"]) == ("latents", None, {"train": 64, "val": 8, "test": 8})
    assert run(capsys, "data", "verify", tmp_path / "l")[0] == 0
    words = ["train", "classify/mnist", "--scale", "tiny", "--data", tmp_path / "l", "--out", tmp_path / "c"]
    code, result, err = run(capsys, *words, "--task.mixup_alpha", "1.0", "--model.num_blocks", "2", "--json")
    assert code == 0, err
    assert result["model"] == "latent"
    code, measured, err = run(capsys, "evaluate", tmp_path / "c", "--json")
    assert code == 0, err
    assert {name: measured[name] for name in result["test"]} == result["test"]


def test_the_canonical_form_can_be_asked_for(capsys, made, tmp_path):
    for recipe, model in (("classify/mnist", "dws"), ("inr2array/mnist", "nft")):
        out = tmp_path / model
        words = ["train", recipe, "--scale", "tiny", "--model", model, "--data", made / "d", "--out", out]
        code, _, err = run(capsys, *words, "--canonical", "sine", "--training.steps", "10", "--json")
        assert code == 0, err
        assert json.loads((out / "run.json").read_text())["run"]["canonical"] == "sine"
        assert run(capsys, "evaluate", out)[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["encode", "nowhere", "--out", "l"], "Expected the directory of a run, but nowhere has no run.json"),
        (["encode", "{run}", "--data", "nowhere", "--out", "l"], "Expected a store at nowhere"),
        (["encode", "{run}", "--out", "l", "--workers", "0"], "--workers of at least 1"),
        (
            ["train", "classify/mnist", "--model", "latent", "--scale", "tiny"],
            "needs latents: make them with nf encode",
        ),
        (["train", "classify/mnist", "--canonical", "cosine"], "canonical"),
    ],
)
def test_refuses_in_one_line(capsys, monkeypatch, made, tmp_path, words, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *[word.format(run=made / "run") for word in words])
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert not out
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_killed_and_continued_gives_the_same_bytes(capsys, made, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert run(capsys, "encode", made / "run", "--out", whole)[0] == 0
    command = [sys.executable, "-c", KILLED, *map(str, (made / "run", made / "d", killed))]
    dead = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True)
    assert dead.returncode == -signal.SIGKILL, dead.stderr.decode()
    code, result, _ = run(capsys, "encode", made / "run", "--out", killed, "--json")
    assert code == 0
    assert 0 < result["items_encoded"] < 80
    assert len(WeightDataset(killed)) == 80
    assert {p.name: p.read_bytes() for p in killed.iterdir()} == {p.name: p.read_bytes() for p in whole.iterdir()}


@pytest.mark.slow
def test_a_table_trains_autoencoders_and_classifiers_on_their_latents(capsys, monkeypatch, tmp_path):
    table = TABLES["table1"]
    assert len(set(table.runs)) == len(table.runs) == 68
    chosen = [r for r in table.runs if r.recipe.endswith("/mnist") and r.seed == 0 and not r.changes]
    chosen = [r for r in chosen if (r.encoder or r).model in ("nft", "nfn", "dws", "render-cnn")]
    assert [r.model for r in chosen] == ["nfn", "nft", "dws", "nft", "render-cnn", "latent", "latent"]
    monkeypatch.setitem(TABLES, "table1", replace(table, runs=tuple(chosen)))
    code, result, err = run(
        capsys, "reproduce", "table1", "--scale", "tiny", "--out", tmp_path, "--jobs", "2", "--json"
    )
    assert code == 0, err
    assert result["runs"] == len(chosen)
    text = (tmp_path / "table.md").read_text()
    assert all(
        words in text for words in ("| inr2array-nft |", "| inr2array-nfn |", "98.5", "0.027 ± 0.003", "| dws |")
    )
    pictures = ("reconstructions", "inr2array_curves", "classify_curves", "latents")
    assert all((tmp_path / f"{name}.png").stat().st_size > 10_000 for name in pictures)
    config = open_run(tmp_path / "classify-mnist-tiny-latent-seed0-of-nft").directory.read_config()
    assert config["data"]["encoder"]["model"] == "nft"
