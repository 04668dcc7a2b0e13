"""Damaged files through the commands: one line that names the file and the remedy, and nothing passed on."""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

from commands import run
from neuralfunctionals.cli import main
from neuralfunctionals.run_directory import RunDirectory

TRAIN = ["train", "inr2array/mnist", "--scale", "tiny", "--model", "nfn", "--model.grid_size", "2"]
TRAIN += ["--training.steps", "4", "--training.val_every", "2"]

# Dies by SIGKILL at the moment when a file gets its name.
KILLED = """
import os, signal, sys
from neuralfunctionals.cli import main
def dying(move):
    def die(source, target):
        if os.fspath(target).endswith(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGKILL)
        move(source, target)
    return die
os.replace, os.link = dying(os.replace), dying(os.link)
main(sys.argv[2:])
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Networks and a trained autoencoder."""
    out = tmp_path_factory.mktemp("made")
    assert main(["fit", "--images", "mnist-sample", "--limit", "40", "--recipe", "fast", "--out", str(out / "d")]) == 0
    assert main([*TRAIN, "--data", str(out / "d"), "--out", str(out / "run")]) == 0
    return out


@pytest.fixture
def copies(made, tmp_path):
    """Copies of both, to be damaged."""
    shutil.copytree(made, tmp_path / "made")
    return tmp_path / "made"


def flip(file, place=-1):
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)


def assert_refused(capsys, *words, names):
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, ""), (words, err)
    for name in names:
        assert name in err, (words, err)
    assert err.count("\n") == 1


def test_a_flipped_store_is_refused_by_every_command_that_reads_it(capsys, copies, tmp_path):
    flip(copies / "d" / "00001.safetensors")
    names = ["00001.safetensors is damaged: its checksum does not match", "repeat the command that made the store"]
    out = tmp_path / "out"
    for words in (
        ["data", "info", copies / "d"],
        ["data", "export", "npz", copies / "d", "--out", out],
        ["data", "export", "state-dicts", copies / "d", "--out", out],
        ["encode", copies / "run", "--data", copies / "d", "--out", out],
        ["evaluate", copies / "run", "--data", copies / "d"],
        [*TRAIN, "--data", copies / "d", "--out", out],
    ):
        assert_refused(capsys, *words, names=names)
        assert not list(tmp_path.glob("out/*.safetensors"))
        shutil.rmtree(out, ignore_errors=True)
    for file in (copies / "d").glob("00001.*"):
        file.unlink()
    fit = ["fit", "--images", "mnist-sample", "--limit", "40", "--recipe", "fast", "--out", copies / "d"]
    assert run(capsys, *fit)[0] == 0
    assert run(capsys, "data", "export", "npz", copies / "d", "--out", tmp_path / "a.npz")[0] == 0


@pytest.mark.parametrize("name", ["run.json", "result.json", "metrics.csv", "samples.safetensors"])
def test_a_flipped_file_of_a_run_is_refused_by_the_report(capsys, copies, tmp_path, name):
    file = copies / "run" / name
    flip(file, len(file.read_bytes()) // 2)
    assert_refused(
        capsys, "report", copies / "run", "--out", tmp_path / "r.html", names=[f"run/{name} is damaged", "--force"]
    )
    assert not (tmp_path / "r.html").exists()


@pytest.mark.parametrize("name", ["model/model.safetensors", "model/config.json", "run.json"])
def test_a_flipped_model_is_refused_by_every_command_that_uses_it(capsys, copies, tmp_path, name):
    file = copies / "run" / name
    flip(file, len(file.read_bytes()) // 2)
    for words in (["evaluate", copies / "run"], ["encode", copies / "run", "--out", tmp_path / "l"]):
        assert_refused(capsys, *words, names=[f"run/{name} is damaged", "Restore it from a copy"])
    assert not (tmp_path / "l").exists()


def test_damaged_files_without_checksums_are_named_too(capsys, copies):
    """Runs of older releases have no SHA256SUMS: what cannot be read is still one line."""
    (copies / "run" / "SHA256SUMS").unlink()
    assert run(capsys, "evaluate", copies / "run")[0] == 0
    for name, content in {
        "run.json": b'{"run": {"recipe": "edit/mnist-dilate", "training": {"steps": -1}}}',
        "model/config.json": b'{"class": "Inr2Array", "channels": 1e999}',
        "model/model.safetensors": b"\x08\0\0\0\0\0\0\0{       ",
    }.items():
        good = (copies / "run" / name).read_bytes()
        (copies / "run" / name).write_bytes(content)
        assert_refused(capsys, "evaluate", copies / "run", names=[f"run/{name}"])
        (copies / "run" / name).write_bytes(good)
    assert run(capsys, "evaluate", copies / "run")[0] == 0


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["run", "training", "steps"], "4", 'run.training.steps: expected an integer, but got "4"'),
        (["run", "training", "steps"], -4, "run.training: Expected training.steps to be at least 1, but got -4"),
        (["run", "training", "colour"], 1, 'run.training: expected the names .*, but got "colour"'),
        (["run", "seed"], 10**40, "at most 64 bits"),
        (
            ["run", "recipe"],
            "cook/soup",
            "run.recipe: Expected a task, one of classify, edit, generalization, inr2array, but got 'cook'",
        ),
        (["run", "recipe"], "edit/soup", "run"),
        (["run", "recipe"], 7, "run.recipe"),
        (
            ["run", "model_name"],
            "no-such",
            "Expected a model, one of neuron-graph, nft-states, nft, nfn, but got 'no-such'",
        ),
        (["run"], [], "run: expected an object"),
        (["data", "omega"], "x", 'data.omega: expected a number, but got "x"'),
        (["data", "path"], 5, "data.path: expected a string"),
        (["data"], 5, "data: expected an object, but got 5"),
        (["more"], 5, 'expected the names code, data, .*, but got "more"'),
    ],
)
def test_refuses_a_run_that_says_what_cannot_be(capsys, copies, path, value, message):
    file = copies / "run" / "run.json"
    (copies / "run" / "SHA256SUMS").unlink()
    config = json.loads(file.read_text())
    part = config
    for name in path[:-1]:
        part = part[name]
    part[path[-1]] = value
    file.write_text(json.dumps(config))
    code, out, err = run(capsys, "evaluate", copies / "run")
    assert (code, out) == (2, "")
    assert re.search(message, err), err
    assert err.count("\n") == 1
    assert "run.json" in err


@pytest.mark.parametrize("name", ["last.ckpt", "best.ckpt"])
def test_a_flipped_checkpoint_is_refused_when_a_run_is_continued(capsys, copies, name):
    (copies / "run" / "result.json").unlink()  # as if it had been killed before its end
    words = [*TRAIN, "--data", copies / "d", "--out", copies / "run"]
    file = copies / "run" / "checkpoints" / name
    good = file.read_bytes()
    for place in (200, len(good) // 2, len(good) - 30):
        bad = bytearray(good)
        bad[place] ^= 1
        file.write_bytes(bad)
        assert_refused(capsys, *words, "--resume", names=[f"checkpoints/{name} is damaged", "--force"])
    # An older release kept no checksum: what torch notices is one line as well.
    (file.parent / "SHA256SUMS").unlink()
    file.write_bytes(good[: len(good) // 2])
    assert_refused(capsys, *words, "--resume", names=[f"checkpoints/{name} is damaged", "--force"])
    file.write_bytes(good)
    before = RunDirectory(copies / "run").model / "model.safetensors"
    digest = hashlib.sha256(before.read_bytes()).hexdigest()
    assert run(capsys, *words, "--resume")[0] == 0
    assert hashlib.sha256(before.read_bytes()).hexdigest() == digest


def test_a_kill_while_run_json_is_written_leaves_nothing_to_delete_by_hand(capsys, made, tmp_path):
    for name in ("run.json", "SHA256SUMS"):
        out = tmp_path / f"killed-at-{name}"
        words = [*TRAIN, "--data", made / "d", "--out", out]
        command = [sys.executable, "-c", KILLED, f"{out.name}/{name}", *map(str, words)]
        dead = subprocess.run(command, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert dead.returncode == -signal.SIGKILL, dead.stderr.decode()
        assert any(p.name.startswith(".tmp-") for p in out.iterdir())
        code, _, err = run(capsys, *words)
        assert code == 0, err
        assert not list(out.rglob(".tmp-*"))


def test_a_kill_while_an_earlier_run_is_removed_leaves_one_that_can_be_removed_again(capsys, copies):
    run_directory = RunDirectory(copies / "run")
    (copies / "run" / "result.json").unlink()
    shutil.rmtree(copies / "run" / "checkpoints")  # as far as the first command came
    words = [*TRAIN, "--data", copies / "d", "--out", copies / "run"]
    assert_refused(capsys, *words, "--seed", "1", names=["was started with seed 0", "--force"])
    assert run(capsys, *words, "--seed", "1", "--force")[0] == 0
    run_directory.clear()
    assert run_directory.is_free
    assert not list((copies / "run").iterdir())
