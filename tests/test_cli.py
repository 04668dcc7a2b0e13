import filecmp
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from commands import nf_command, run
from neuralfunctionals.cli import COMMANDS, build_parser

ROOT = Path(__file__).parents[1]


# No bytecode: a process that may write small files only would leave it cut off, for all that come after.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def start(*words):
    """A process that may be killed."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(nf_command(*words), env=ENVIRONMENT, **quiet)


def finish(*words, **options):
    return subprocess.run(nf_command(*words), env=ENVIRONMENT, capture_output=True, text=True, **options)


def succeed(*words):
    done = finish(*words)
    assert done.returncode == 0, done.stderr


def same_files(a, b):
    names = sorted(p.name for p in a.iterdir())
    assert names == sorted(p.name for p in b.iterdir())
    return filecmp.cmpfiles(a, b, names, shallow=False)[0] == names


TRAIN = ("train", "edit/mnist-dilate")
FIT = ("fit", "--images", "mnist-sample", "--limit", "20", "--recipe", "fast", "--shard-size", "8")


@pytest.mark.parametrize("words", [["recipes"], ["--help"], ["train", "edit/mnist-dilate", "--help"]])
def test_a_reader_that_has_seen_enough_causes_no_message(words):
    reads, writes = os.pipe()
    os.close(reads)
    with open(writes, "wb") as closed:
        done = subprocess.run(nf_command(*words), env=ENVIRONMENT, stdout=closed, stderr=subprocess.PIPE, text=True)
    assert done.stderr == ""


def test_fit_info_verify(tmp_path, capsys):
    code, result, err = run(capsys, *FIT, "--out", tmp_path / "s", "--json")
    assert code == 0
    assert result["items"] == result["items_fitted"] == 20
    assert result["psnr_db_min"] >= 40
    assert result["psnr_db_mean"] >= result["psnr_db_min"]
    assert result["items_per_second"] > 0
    assert result["complete"]
    last = [line for line in err.splitlines() if line.startswith("fitting")][-1]
    assert re.match(r"fitting: 20/20 \(100%\), [\d.e+]+ items/s, 0:00:00 left", last)
    _, info, _ = run(capsys, "data", "info", tmp_path / "s", "--json")
    assert info["items"] == 20
    assert info["splits"] == {"train": 16, "val": 2, "test": 2}
    assert info["convention"] == "paper"
    assert info["psnr_db"]["min"] == pytest.approx(result["psnr_db_min"], abs=1e-3)
    assert run(capsys, "data", "verify", tmp_path / "s", "--json")[1] == {"items": 20, "shards": 3, "intact": True}
    again = run(capsys, *FIT, "--out", tmp_path / "s", "--json")[1]
    assert (again["items"], again["items_fitted"]) == (20, 0)
    (tmp_path / "s" / "00001.jsonl").unlink()
    _, again, err = run(capsys, *FIT, "--out", tmp_path / "s", "--json")
    assert again["items_fitted"] == 8
    assert "fitting: 8/8 (100%)" in err


def test_a_table_for_people(tmp_path, capsys):
    code, out, _ = run(capsys, *FIT, "--out", tmp_path / "s")
    assert code == 0
    assert "psnr_db_min" in out
    assert "20" in out


def test_parts_of_the_work_make_the_whole(tmp_path, capsys):
    run(capsys, *FIT, "--out", tmp_path / "whole")
    results = [run(capsys, *FIT, "--out", tmp_path / "parts", "--shard", f"{i}/2", "--json")[1] for i in (1, 2)]
    assert [r["complete"] for r in results] == [False, True]
    assert same_files(tmp_path / "whole", tmp_path / "parts")


def test_import_and_export(tmp_path, capsys):
    run(capsys, *FIT, "--out", tmp_path / "s")
    assert (
        run(capsys, "data", "export", "nfn-sirens", tmp_path / "s", "--out", tmp_path / "e", "--json")[1]["items"] == 20
    )
    result = run(capsys, "data", "import", "nfn-sirens", tmp_path / "e", "--out", tmp_path / "i", "--json")[1]
    assert result["spec"] == "2->32, 32->32, 32->1"
    assert run(capsys, "data", "verify", tmp_path / "i")[0] == 0


ZOO = ("zoo", "--images", "shapes-sample", "--grey", "--count", "10", "--epochs", "2", "--batch-size", "32")
ZOO = (*ZOO, "--limit-images", "200", "--shard-size", "4")


def test_zoo_info_verify_export_import(tmp_path, capsys):
    code, result, err = run(capsys, *ZOO, "--out", tmp_path / "z", "--json")
    assert code == 0
    assert result["items"] == result["items_trained"] == 10
    assert 0 <= result["test_accuracy"]["min"] <= result["test_accuracy"]["max"] <= 1
    assert result["items_per_second"] > 0
    assert result["complete"]
    assert "10/10" in err
    _, info, _ = run(capsys, "data", "info", tmp_path / "z", "--json")
    assert info["kind"] == "trained CNNs"
    assert info["splits"] == {"train": 4, "val": 1, "test": 5}
    assert info["test_accuracy"] == result["test_accuracy"]
    assert (info["train_images"], info["test_images"], info["grey"]) == (180, 20, True)
    assert run(capsys, "data", "verify", tmp_path / "z", "--json")[1] == {"items": 10, "shards": 3, "intact": True}
    again = run(capsys, *ZOO, "--out", tmp_path / "z", "--json")[1]
    assert (again["items"], again["items_trained"]) == (10, 0)
    out = run(capsys, "data", "export", "small-cnn-zoo", tmp_path / "z", "--out", tmp_path / "e", "--json")[1]
    assert out["items"] == 10
    words = ("data", "import", "small-cnn-zoo", tmp_path / "e", "--split", tmp_path / "e" / "split.csv")
    back = run(capsys, *words, "--out", tmp_path / "i", "--json")[1]
    assert back["items"] == 10
    assert run(capsys, "data", "info", tmp_path / "i", "--json")[1]["test_accuracy"] == info["test_accuracy"]


@pytest.mark.parametrize("file", ["store.jsonl", "00001.safetensors", "00001.jsonl"])
def test_damage_is_named(tmp_path, capsys, file):
    run(capsys, *FIT, "--out", tmp_path / "s")
    path = tmp_path / "s" / file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    code, _, err = run(capsys, "data", "verify", tmp_path / "s")
    assert code == 2
    assert file in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fit", "--images", "minst", "--out", "{}/s"], "but got 'minst'"),
        (["fit", "--images", "{}", "--out", "{}/s"], "but found none"),
        (["fit", "--images", "mnist-sample"], "--out|out"),
        (["fit", "--images", "mnist-sample", "--out", "{}/s", "--limit", "few"], "limit"),
        (["fit", "--images", "mnist-sample", "--out", "{}/s", "--limit", "0"], "--limit to be at least 1"),
        (
            ["fit", "--images", "mnist-sample", "--out", "{}/s", "--recipe", "quick"],
            "one of .*fast",
        ),
        (["fit", "--images", "mnist-sample", "--out", "{}/s", "--shard", "3/2"], "--shard I/N"),
        (["fit", "--images", "mnist-sample", "--out", "{}/s", "--hidden", "32,x"], "--hidden as widths"),
        (["fit", "--images", "mnist-sample", "--out", "{}/s", "--psnr", "nan"], "psnr.*nan"),
        (["fit", "--images", "mnist-sample", "--out", "{}/s", "--colour", "red"], "colour"),
        (["zoo", "--images", "mnist-sample", "--out", "{}/s"], "--count|count"),
        (["zoo", "--images", "mnist-sample", "--out", "{}/s", "--count", "0"], "--count to be at least 1"),
        (["zoo", "--images", "mnist-sample", "--out", "{}/s", "--count", "4", "--epochs", "0"], "--epochs to be at"),
        (
            ["zoo", "--images", "mnist-sample", "--out", "{}/s", "--count", "4", "--limit-images", "1"],
            "Use more images",
        ),
        (["zoo", "--images", "mnist-sample", "--out", "{}/s", "--count", "4", "--engine", "tpu"], "but got 'tpu'"),
        (["zoo", "--images", "{}/none", "--out", "{}/s", "--count", "4"], "none of these"),
        (["data", "import", "small-cnn-zoo", "{}", "--out", "{}/s"], r"there is no weights\.npy and no metrics"),
        (["data", "info", "{}/none"], "there is no store.jsonl"),
        (["data", "verify", "{}/none"], "there is no store.jsonl"),
        (["data", "import", "keras", "{}", "--out", "{}/s"], "one of .*nfn-sirens"),
        (["data", "explode"], "Expected a command"),
        (["fly"], "Expected a command .*fit.*but got 'fly'"),
        (["clasify", "x"], "Did you mean classify?"),
        (["data", "inf", "x"], "Did you mean data info?"),
        (["data", "export", "state-dict", "x", "--out", "{}/s"], "Did you mean state-dicts?"),
        (["fit", *FIT[1:], "--out", "{}/s", "--recipe", "fsat"], "Did you mean fast?"),
        (["fit", *FIT[1:], "--out", "{}/s", "--convention", "Paper"], "Did you mean paper?"),
        (["reproduce", "tabel2"], "Did you mean table2?"),
        ([*TRAIN, "--optimizer.name", "adaw"], "one of adam, adamw, but got 'adaw'. Did you mean adamw?"),
        ([*TRAIN, "--unheard-of", "3"], "but got --unheard-of. nf train RECIPE --help lists them all"),
        (["data", "vrify", "x"], "Expected a command .*data verify"),
        (["fit"], "Expected --images NAME.PATH and --out DIR. Try nf fit --help"),
        (["classify"], "Expected RUN. Try"),
        (["fit", "--limit"], "Expected a value after --limit"),
        (["fit", *FIT[1:], "--out", "{}/s", "--limt", "3"], "Unknown option --limt. Did you mean --limit?"),
        (["fit", *FIT[1:], "--out", "{}/s", "--xyzzy"], "Unknown option --xyzzy. Try nf fit --help"),
        (["fit", *FIT[1:], "--out", "{}/s", "word"], "Expected no more arguments, but got 'word'"),
        (["fit", *FIT[1:], "--out", "{}/s", "--limit", "x"], "Expected --limit to be a whole number, but got 'x'"),
        (["fit", *FIT[1:], "--out", "{}/s", "--shard-size", "1.5"], "--shard-size to be a whole number, but got '1.5'"),
        (["fit", *FIT[1:], "--out", "{}/s", "--omega", "nan"], "Expected --omega to be a number, but got 'nan'"),
        (["fit", *FIT[1:], "--out", "{}/s", "--omega", "0"], "positive and finite, but got 0"),
        (["fit", *FIT[1:], "--out", "{}/s", "--omega", "-5"], "positive and finite, but got -5"),
        (["fit", "--images", "mnist-smple", "--out", "{}/s"], "Did you mean mnist-sample?"),
        ([*TRAIN, "--scale"], "Expected a value after --scale"),
        ([*TRAIN, "--canonical", "x"], "Expected --canonical to be one of none, sine, but got 'x'"),
        ([*TRAIN, "--training.limit", "x"], "--training.limit to be a whole number or null, but got 'x'"),
        ([*TRAIN, "--training.compile", "x"], "--training.compile to be true or false, but got 'x'"),
        ([*TRAIN, "--optimizer", '{{"lr": "x"}}'], "Expected --optimizer.lr to be a number, but got 'x'"),
        ([*TRAIN, "--optimizer", "x"], "Expected a field after --optimizer, such as --optimizer.name VALUE"),
        ([*TRAIN, "--training", '{{"stepss": 3}}'], "training has no field 'stepss'. Did you mean steps?"),
        (["report", "digits-dilat", "--out", "{}/r.html"], "Did you mean digits-dilate?"),
    ],
)
def test_mistakes_are_one_clear_line_and_leave_nothing(tmp_path, capsys, words, message):
    code, out, err = run(capsys, *[word.format(tmp_path) for word in words])
    assert code == 2
    assert out == ""
    lines = [line for line in err.splitlines() if line.strip()]
    assert len(lines) == 1, err
    assert re.search(message, lines[0]), err
    assert not list(tmp_path.iterdir())


def test_another_plan_does_not_touch_a_store(tmp_path, capsys):
    run(capsys, *FIT, "--out", tmp_path / "s")
    before = {p.name: p.read_bytes() for p in (tmp_path / "s").iterdir()}
    code, _, err = run(capsys, *FIT, "--out", tmp_path / "s", "--seed", "1")
    assert code == 2
    assert "seed: 0 in the store, 1 requested" in err
    code, _, err = run(capsys, *FIT, "--out", tmp_path / "s", "--limit", "3", "--psnr", "20")
    assert code == 2
    assert re.search(
        r"differently \(limit: \d+ in the store, 3 requested; recipe.stop_psnr_db: 40.0 in the store, 20", err
    )
    assert {p.name: p.read_bytes() for p in (tmp_path / "s").iterdir()} == before


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_with_an_example(name, capsys):
    assert run(capsys, *name.split(), "--help")[0] == 0
    assert run(capsys, name.split()[0], "--help")[0] == 0
    text = build_parser(name).format_help()
    assert f"example: nf {name}" in text
    assert "--json" in text


def test_help_does_not_wait_for_torch():
    code = "import sys; from neuralfunctionals.cli import main; main(['--help']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "nf fit" in done.stdout
    assert subprocess.run([sys.executable, "-m", "neuralfunctionals.cli", "--version"], check=True).returncode == 0


def test_a_full_disk_is_explained_and_the_run_continued(tmp_path):
    """A limit on file sizes stands in for a full disk: only the small header fits."""

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))

    succeed("build")  # the limit leaves no room for compiled kernels, and a store keeps the engine it was begun with
    done = finish(*FIT, "--out", tmp_path / "s", preexec_fn=limit)
    assert done.returncode == 2
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert "repeat the command" in done.stderr
    assert sorted(p.name for p in (tmp_path / "s").iterdir()) == ["store.jsonl"]
    succeed(*FIT, "--out", tmp_path / "s")
    succeed("data", "verify", tmp_path / "s")


@pytest.mark.slow
def test_a_really_full_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", disk], capture_output=True, text=True)
    if mount.returncode:
        pytest.skip(f"cannot mount a small disk here: {mount.stderr.strip()}")
    try:
        done = finish(*FIT, "--limit", "60", "--out", disk / "s")
        assert done.returncode == 2
        assert "No space left on device" in done.stderr
        kept = sorted(p.name for p in (disk / "s").iterdir())
        assert kept[-1] == "store.jsonl"
        assert not [name for name in kept if name.startswith(".")]
        subprocess.run(["mount", "-o", "remount,size=8m", disk], check=True)
        succeed(*FIT, "--limit", "60", "--out", disk / "s")
        succeed("data", "verify", disk / "s")
    finally:
        subprocess.run(["umount", disk], check=True)


LONG = ("fit", "--images", "mnist-sample", "--recipe", "slow", "--limit", "96", "--shard-size", "4", "--workers", "2")


LONG_ZOO = ("zoo", "--images", "mnist-sample", "--count", "24", "--epochs", "10", "--batch-size", "64")
LONG_ZOO = (*LONG_ZOO, "--shard-size", "2", "--workers", "2")


def require_same_bytes_after_kills(tmp_path, words, num_kills):
    succeed(*words, "--out", tmp_path / "whole")
    moments = random.Random(0)
    kills = stores = 0
    while kills < num_kills:
        out = tmp_path / f"killed{stores}"
        process = start(*words, "--out", out)
        # From before the first shard to well into the work, wherever that happens to be on this machine.
        try:
            process.wait(timeout=moments.uniform(0.5, 4.0))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            continue
        assert process.returncode == 0
        assert same_files(tmp_path / "whole", out)
        stores += 1
    out = tmp_path / f"killed{stores}"
    succeed(*words, "--out", out)
    assert same_files(tmp_path / "whole", out)
    succeed("data", "verify", out)


@pytest.mark.slow
def test_killed_twenty_times_and_resumed_the_result_is_the_same(tmp_path):
    require_same_bytes_after_kills(tmp_path, LONG, 20)


@pytest.mark.slow
def test_a_zoo_killed_ten_times_and_resumed_is_the_same(tmp_path):
    require_same_bytes_after_kills(tmp_path, LONG_ZOO, 10)


def descendants(pid):
    """Processes below this one, with their command lines."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = (int(fields[1]), (entry / "cmdline").read_bytes())
            except OSError:
                continue
    found, left = {}, [pid]
    while left:
        above = left.pop()
        for child, (parent, command) in parents.items():
            if parent == above:
                found[child] = command
                left.append(child)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("words", [LONG, LONG_ZOO], ids=["fit", "zoo"])
def test_ray_makes_the_same_bytes_and_survives_a_killed_worker(tmp_path, words):
    pytest.importorskip("ray", reason="needs the extra 'cluster'")
    succeed(*words, "--out", tmp_path / "here")
    process = start(*words, "--out", tmp_path / "ray", "--ray", "local")
    killed = False
    while process.poll() is None and not killed:
        # A worker that is fitting has the task in its title.
        for pid, command in descendants(process.pid).items():
            if command.startswith(b"ray::_run_task") and list((tmp_path / "ray").glob("*.jsonl"))[1:]:
                os.kill(pid, signal.SIGKILL)
                killed = True
                break
        time.sleep(0.02)
    assert process.wait() == 0
    assert killed
    assert same_files(tmp_path / "here", tmp_path / "ray")


def test_no_ray_cluster_is_explained(tmp_path, capsys):
    pytest.importorskip("ray", reason="needs the extra 'cluster'")
    code, _, err = run(capsys, *FIT, "--out", tmp_path / "s", "--ray", "127.0.0.1:9")
    assert code == 2
    assert "127.0.0.1:9" in err
