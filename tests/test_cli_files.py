"""Commands on files that are too large, oddly named or damaged: one line each, and nothing left behind."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from commands import nf_command, run
from neuralfunctionals.cli import main
from neuralfunctionals.data.formats.network_files import read_networks, write_networks
from neuralfunctionals.files.budget import MAX_MEMORY
from neuralfunctionals.inr import Siren
from neuralfunctionals.weight_space import WeightSpaceFeatures


@pytest.fixture(autouse=True)
def _own_limit(monkeypatch):
    """The option sets the variable for the whole process: here it is taken back."""
    monkeypatch.setenv(MAX_MEMORY, "2G")


def save_network(folder, name="a.pth"):
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)).state_dict(), folder / name)
    return folder


def refused(capsys, *words):
    code, out, err = run(capsys, *words)
    assert code == 2
    assert not out
    assert err.startswith("nf: ")
    assert err.count("\n") == 1
    return err


def test_the_limit_is_an_option_that_the_message_names(capsys, tmp_path):
    np.savez_compressed(tmp_path / "a.npz", images=np.zeros((4, 3000, 3000), np.uint8))
    fit = ("fit", "--images", tmp_path / "a.npz", "--out", tmp_path / "s")
    assert "--max-memory 1G or NF_MAX_MEMORY=1G" in refused(capsys, *fit, "--max-memory", "30M")
    assert os.environ[MAX_MEMORY] == "30M"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.npz"]
    for size in ("lots", "0", "-3G"):
        assert f"such as 500M or 8G, but got '{size}'" in refused(capsys, *fit, f"--max-memory={size}")


def test_a_wrong_limit_in_the_environment_is_told(capsys, monkeypatch):
    monkeypatch.setenv(MAX_MEMORY, "many")
    assert "such as 500M or 8G, but got 'many'" in refused(capsys, "data", "info", "somewhere")


def test_every_command_takes_the_limit(capsys):
    for command in (["fit"], ["data", "import"], ["edit"], ["serve"]):
        assert "--max-memory SIZE" in run(capsys, *command, "--help")[1]


OUT_OF_MEMORY = """
import resource, sys
from neuralfunctionals.cli import main
import neuralfunctionals.data.inr_dataset
size = int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1]) << 10
resource.setrlimit(resource.RLIMIT_AS, (size + (300 << 20),) * 2)
main(sys.argv[1:])
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc")
def test_where_memory_ends_a_line_says_so(tmp_path):
    np.savez(tmp_path / "a.npz", images=np.zeros((60, 2000, 2000), np.uint8))
    words = ["fit", "--images", tmp_path / "a.npz", "--out", tmp_path / "s", "--limit", "60", "--shard-size", "60"]
    result = subprocess.run([sys.executable, "-c", OUT_OF_MEMORY, *map(str, words)], capture_output=True, text=True)
    assert result.returncode == 2, result.stderr
    assert "not enough memory" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "name", ["[bold]x[/bold]", "[/closed]", "a\x1b[31mred", "line\nbreak", "тест", " ", "[link=x]y"]
)
def test_names_are_shown_as_they_are(capsys, tmp_path, name):
    save_network(tmp_path / name)
    store = tmp_path / f"{name}-store"
    assert main(["data", "import", "state-dicts", str(tmp_path / name), "--out", str(store)]) == 0
    assert main(["data", "info", str(store)]) == 0
    out = capsys.readouterr().out
    expected = name if name.isprintable() else name.encode("unicode_escape").decode()
    assert "".join(f"{expected}-store".split()) in "".join(out.split())  # long lines are broken
    assert "\x1b[31m" not in out
    assert "there is no such file" in refused(capsys, "data", "import", "npz", tmp_path / f"{name}-none", "--out", "x")


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are bytes on Linux")
def test_names_that_are_no_text_are_shown_too(tmp_path):
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(folder)
    save_network(tmp_path, "a.pth")
    os.rename(tmp_path / "a.pth", folder + b"/net\xff1.pth")
    command = [*nf_command("data", "import", "state-dicts"), folder, "--out", folder + b"-out"]
    result = subprocess.run(command, capture_output=True)
    assert result.returncode == 0, result.stderr
    for words in (["--json"], []):
        info = subprocess.run([*nf_command("data", "info"), folder + b"-out", *words], capture_output=True)
        assert info.returncode == 0, info.stderr
        assert b"xe9" in info.stdout
    (tmp_path / "b.pth").write_bytes(b"damaged")
    os.rename(tmp_path / "b.pth", folder + b"/net\xff0.pth")
    command = [*nf_command("data", "import", "state-dicts"), folder, "--out", tmp_path / "s"]
    result = subprocess.run(command, capture_output=True)
    assert result.returncode == 2
    assert result.stderr.startswith(b"nf: Refused ")
    assert result.stderr.count(b"\n") == 1


def test_long_messages_are_cut(capsys, tmp_path):
    layers = {f"{'x' * 50}{chr(97 + n % 26)}{chr(97 + n // 26)}.weight": torch.zeros(3, 3) for n in range(200)}
    torch.save(layers, tmp_path / "a.pth")
    err = refused(capsys, "data", "import", "state-dicts", tmp_path, "--out", tmp_path / "s")
    assert "Several orders" in err
    assert len(err) < 2100


@pytest.mark.parametrize("ending", [".pth", ".safetensors", ".npz"])
def test_edits_that_are_not_finite_are_not_written(capsys, tmp_path, ending):
    sirens = WeightSpaceFeatures.from_modules([Siren(seed=3)])
    for size in (1e19, 1e30, 1e37):
        write_networks(tmp_path / f"a{ending}", sirens * size)
        words = ("edit", "digits-dilate", "--weights", tmp_path / f"a{ending}", "--out", tmp_path / f"b{ending}")
        code, _, err = run(capsys, *words)
        assert code == 2
        assert err.count("\n") == 1
        assert not (tmp_path / f"b{ending}").exists()
    write_networks(tmp_path / f"a{ending}", sirens)
    assert run(capsys, *words)[0] == 0
    assert bool(read_networks(tmp_path / f"b{ending}").tensor.isfinite().all())


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
@pytest.mark.timeout(300)
def test_pipes_in_place_of_files_are_refused_at_once(capsys, tmp_path):
    for ending in ("pth", "npz", "npy", "png"):
        os.mkfifo(tmp_path / f"a.{ending}")
    for words in (
        ("edit", "digits-dilate", "--weights", tmp_path / "a.pth", "--out", tmp_path / "b.pth"),
        ("data", "import", "npz", tmp_path / "a.npz", "--out", tmp_path / "s"),
        ("data", "import", "state-dicts", tmp_path, "--out", tmp_path / "s"),
        ("fit", "--images", tmp_path / "a.npy", "--out", tmp_path / "s"),
        ("fit", "--images", tmp_path, "--out", tmp_path / "s"),
    ):
        refused(capsys, *words)
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".npy", ".npz", ".png", ".pth"]
