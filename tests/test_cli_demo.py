"""The demo, as people start, stop and repeat it."""

import json
import os
import signal
import subprocess
import time

import pytest

from commands import nf_command, run

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def test_the_demo_ends_with_a_table_and_a_report_and_repeats_nothing(tmp_path, capsys):
    out = tmp_path / "demo"
    code, result, err = run(capsys, "demo", "--scale", "tiny", "--out", out, "--json")
    assert code == 0, err
    assert result["networks"] == 2 * 64
    assert result["unseen_networks"] == 64
    rows = [(row["task"], row["model"], row.get("trained")) for row in result["results"]]
    assert rows == [
        ("edit", "no edit", None),
        ("edit", "neuron-graph", "now"),
        ("edit", "neuron-graph", "shipped"),
        ("classify", "chance", None),
        ("classify", "nfn-hnp", "now"),
        ("classify", "neuron-graph", "now"),
        ("classify", "nft-states", "now"),
        ("classify", "neuron-graph", "shipped"),
    ]
    assert {row["league"] for row in result["results"] if "league" in row} == {"weights only"}
    no_edit, _, shipped = (row["test_mse"] for row in result["results"][:3])
    assert shipped < 0.5 * no_edit
    assert result["results"][-1]["test_accuracy"] > 0.8
    assert result["shuffled"]["weights"] > 0.1
    assert max(result["shuffled"]["pictures"], result["shuffled"]["answers"]) < 1e-3
    assert "digits" in err
    assert "20/20" in err
    page = (out / "report.html").read_text()
    assert page.count("data:image/png") == 4
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/*") if path.is_file()}
    code, text, _ = run(capsys, "demo", "--scale", "tiny", "--out", out)
    assert code == 0
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/*") if path.is_file()} == before
    for words in ("no edit", "nfn-hnp", "chance", "Shuffling neurons", "report.html"):
        assert words in text


def test_refuses_in_one_line_what_is_no_demo(tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("mine")
    for words, message in (
        (["--out", tmp_path], "has other files"),
        (["--out", tmp_path / "thesis.txt"], "is a file"),
        (["--out", tmp_path / "new", "--scale", "paper"], "Expected a scale, one of small, tiny, but got 'paper'"),
    ):
        code, _, err = run(capsys, "demo", *words)
        assert code == 2
        assert message in err
        assert err.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ctrl_c_stops_all_processes_cleanly_and_a_second_run_finishes(tmp_path):
    out = tmp_path / "demo"
    process = subprocess.Popen(
        nf_command("demo", "--scale", "tiny", "--out", out),
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored in the background of a shell
    )
    while not list(out.glob("*/run.json")) and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert err.strip().splitlines()[-1].startswith("nf: interrupted. Finished work is kept")
    assert "Traceback" not in err
    assert not (out / "report.html").exists()
    finished = set(out.glob("*/result.json"))
    assert len(finished) < 4
    time.sleep(2)
    assert set(out.glob("*/result.json")) == finished  # nothing goes on in the background
    again = nf_command("demo", "--scale", "tiny", "--out", out, "--json")
    done = subprocess.run(again, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout.splitlines()[-1])["results"]) == 8
    assert (out / "report.html").exists()
