"""Tables and pictures of predicted accuracies, from run directories written by hand."""

import pytest
import torch

from neuralfunctionals.data import WeightDataset, ZooPlan, make_zoo, open_images
from neuralfunctionals.report import draw_accuracies, draw_curves, draw_predictions, results_table
from neuralfunctionals.report.finished import read_runs
from neuralfunctionals.run_directory import RunDirectory


def write_run(path, recipe, model, seed, tau):
    directory = RunDirectory(path)
    directory.write_config({"run": {"model": {}, "task": {}}, "data": {}})
    true = torch.rand(200, generator=torch.Generator().manual_seed(seed))
    noise = torch.randn(200, generator=torch.Generator().manual_seed(seed + 1))
    directory.write_samples({"true": true, "predicted": (true + 0.1 * noise).clamp(0, 1)})
    directory.write_curve([{"step": step, "seconds": step / 10, "val/kendall_tau": tau - 1 / step} for step in (5, 10)])
    metrics = {"kendall_tau": tau, "r2": 0.8, "l1": 0.03}
    directory.write_result(
        {
            "recipe": recipe,
            "model": model,
            "seed": seed,
            "parameters": 1234,
            "training_seconds": 60.0,
            **dict.fromkeys(("train", "val", "test"), metrics),
        }
    )
    return path


@pytest.fixture
def runs(tmp_path):
    wanted = [("cifar10-grey", "nft", 0), ("cifar10-grey", "nft", 1), ("cifar10-grey", "neuron-graph", 0)]
    wanted += [("svhn-grey", "statnn", 0)]
    return read_runs(
        write_run(tmp_path / str(place), f"generalization/{recipe}", model, seed, 0.8 + 0.02 * seed)
        for place, (recipe, model, seed) in enumerate(wanted)
    )


def test_the_table_has_the_spread_over_seeds_and_the_papers_numbers(runs):
    lines = results_table(runs).to_markdown().splitlines()
    assert len(lines) == 5
    assert (
        "| nft | weights only | 1,234 | 2 | 0.8100 ± 0.0100 | 0.8100 ± 0.0100 | 0.926 ± 0.001 | 0.8000 ± 0.0000"
        in lines[2]
    )
    assert "| neuron-graph | weights only | 1,234 | 1 | 0.8000 | 0.8000 |  |" in lines[3]
    assert "0.843 ± 0.000" in lines[4]
    assert {line.count("|") for line in lines} == {12}


def test_predictions_and_curves_are_drawn(runs, tmp_path):
    draw_predictions(runs, tmp_path / "predictions.png")
    draw_curves(runs, tmp_path / "curves.png", metric="kendall_tau")
    assert all((tmp_path / name).stat().st_size > 10_000 for name in ("predictions.png", "curves.png"))


def test_the_accuracies_of_one_zoo_or_several_are_drawn(tmp_path):
    plan = ZooPlan.make(open_images("mnist-sample"), count=6, epochs=2, batch_size=64, limit_images=300)
    make_zoo(plan, tmp_path / "zoo", workers=1)
    zoo = WeightDataset(tmp_path / "zoo")
    draw_accuracies(zoo, tmp_path / "one.png")
    draw_accuracies({"first": zoo, "second": zoo}, tmp_path / "two.png")
    assert (tmp_path / "two.png").stat().st_size > (tmp_path / "one.png").stat().st_size > 5000
