"""Tables and pictures from run directories."""

from pathlib import Path

import pytest
import torch

from neuralfunctionals.errors import UserError
from neuralfunctionals.report import draw_curves, draw_task, results_table, write_records
from neuralfunctionals.report.finished import read_runs
from neuralfunctionals.report.records import _thin
from neuralfunctionals.run_directory import RunDirectory

ROOT = Path(__file__).parents[2]


def write_run(path, recipe, model, seed, mse, *, finished=True, no_edit=0.5):
    """The files that reports read, as training leaves them."""
    directory = RunDirectory(path)
    directory.write_config({"format": 1, "run": {"model": {}, "task": {}}, "data": {}})
    directory.write_curve([{"step": s, "seconds": s / 2, "val/mse": mse * 20 / s} for s in (10, 20)])
    generator = torch.Generator().manual_seed(seed)
    pictures = {name: torch.rand(6, 28, 28, 1, generator=generator) for name in ("original", "target", "edited")}
    directory.write_samples(pictures)
    if finished:
        split = {"mse": mse, "mse_no_edit": no_edit}
        result = {"recipe": recipe, "model": model, "seed": seed, "parameters": 1234, "training_seconds": 10.0}
        directory.write_result({**result, "train": split, "val": split, "test": split})
    return path


@pytest.fixture
def runs(tmp_path):
    chosen = [("nft", 0, 0.1), ("nft", 1, 0.2), ("nft", 2, 0.3), ("nfn-np", 0, 0.4)]
    paths = [write_run(tmp_path / f"d{i}", "edit/mnist-dilate", *one) for i, one in enumerate(chosen)]
    return read_runs([*paths, write_run(tmp_path / "e", "edit/mnist-erode", "nft", 0, 0.05)])


def cells_of(table):
    """What Markdown readers see of a table."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.to_markdown().splitlines()]


def test_the_table_has_means_standard_errors_and_the_papers_numbers(runs):
    lines = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in results_table(runs).to_markdown().splitlines()
    ]
    assert lines[2][:2] == ["edit/mnist-dilate", "no edit"]
    assert lines[2][5:7] == ["0.5000", "0.5000"]
    spread = "0.2000 ± 0.0577"
    assert lines[3] == [
        "edit/mnist-dilate",
        "nft",
        "weights only",
        "1,234",
        "3",
        spread,
        spread,
        "0.0473",
        "0.0510",
        "10",
    ]
    assert lines[4][1:7] == ["nfn-np", "weights only", "1,234", "1", "0.4000", "0.4000"]
    assert lines[6][:2] == ["edit/mnist-erode", "nft"]


def test_models_measured_on_other_networks_get_their_own_baseline(tmp_path):
    chosen = [("nft", 0.5), ("nfn-np", 0.5), ("nfn-hnp", 0.7)]
    runs = [
        write_run(tmp_path / model, "edit/mnist-dilate", model, 0, 0.1, no_edit=no_edit) for model, no_edit in chosen
    ]
    lines = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in results_table(read_runs(runs)).to_markdown().splitlines()
    ]
    assert [line[1] for line in lines[2:]] == ["no edit", "nft", "nfn-np", "no edit", "nfn-hnp"]
    assert [lines[2][5], lines[5][5]] == ["0.5000", "0.7000"]


def test_pictures_are_drawn_for_every_recipe(runs, tmp_path):
    sizes = []
    for chosen in (runs[:1], runs):
        files = draw_task(chosen, tmp_path)
        assert [file.name for file in files] == ["edit_curves.png", "edits.png"]
        sizes.append([file.stat().st_size for file in files])
    assert all(many > 1.3 * one > 0 for one, many in zip(*sizes, strict=True))
    draw_curves(runs, tmp_path / "mse.png", metric="mse")
    assert (tmp_path / "mse.png").read_bytes() == files[0].read_bytes()


def test_records_give_the_same_table_and_curves_in_one_file(runs, tmp_path):
    write_records(runs, tmp_path / "runs.jsonl")
    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) == len(runs)
    kept = read_runs([tmp_path / "runs.jsonl"])
    assert results_table(kept) == results_table(runs)
    assert [run.curve for run in kept] == [run.curve for run in runs]
    write_records(kept, tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "runs.jsonl").read_bytes()
    assert [file.name for file in draw_task(kept, tmp_path)] == ["edit_curves.png"]  # samples stay behind
    (tmp_path / "bad.jsonl").write_text('{"name": "a"}\n')
    with pytest.raises(UserError, match="bad.jsonl, line 1: expected the name config, but it is missing"):
        read_runs([tmp_path / "bad.jsonl"])


@pytest.mark.parametrize("file", sorted((ROOT / "docs" / "records").glob("*.jsonl")), ids=lambda file: file.stem)
def test_the_tables_of_the_docs_come_out_of_their_records(file):
    text = (ROOT / "docs" / "results.md").read_text()
    table = results_table(read_runs([file]))
    league = table.names.index("league")
    for row in table.rows:
        cells = [cell for place, cell in enumerate(row) if place != league]
        assert f"| {' | '.join(cells)} |" in text


def test_records_keep_every_validation_and_means_of_many_losses(runs, tmp_path):
    directory = runs[0].directory
    rows = [{"step": step, "seconds": 0.5 * step, "lr": 1e-3, "loss": float(step)} for step in range(1, 451)]
    validated = [{"step": step, "seconds": 0.5 * step, "lr": 1e-3, "val/mse": 0.25} for step in (225, 450)]
    kept = _thin(sorted(rows + validated, key=lambda row: row["step"]))
    losses = [row for row in kept if "loss" in row]
    assert [row for row in kept if "loss" not in row] == validated
    assert len(losses) == 90
    assert losses[0] == {"step": 5, "seconds": 2.5, "lr": 1e-3, "loss": 3.0}
    assert kept[-1] == validated[-1]
    config = directory.read_config()
    directory.write_config({**config, "data": {"path": "/home/someone/digits"}})
    write_records(read_runs([directory.path]), tmp_path / "one.jsonl")
    assert read_runs([tmp_path / "one.jsonl"])[0].config["data"] == {"path": "digits"}


def test_refuses_runs_that_have_not_ended(tmp_path):
    write_run(tmp_path / "begun", "edit/mnist-dilate", "nft", 0, 0.1, finished=False)
    with pytest.raises(ValueError, match="is not finished. Resume it with nf train"):
        read_runs([tmp_path / "begun"])
    with pytest.raises(ValueError, match="Expected at least one finished run"):
        read_runs([])
