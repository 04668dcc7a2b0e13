"""The demo: fits networks to digits, and trains models that edit and classify them by their weights: `run_demo`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from neuralfunctionals.config import DataConfig, Run, with_steps, with_values
from neuralfunctionals.data import Store, WeightDataset
from neuralfunctionals.errors import UserError, require_choice
from neuralfunctionals.inr import render_images
from neuralfunctionals.machine import num_cores
from neuralfunctionals.registry import TASKS, find_run
from neuralfunctionals.report import read_runs, write_report
from neuralfunctionals.run_directory import RunDirectory
from neuralfunctionals.runs.datasets import dataset_for
from neuralfunctionals.runs.execute import measure, open_run
from neuralfunctionals.runs.workers import Job, carry_out
from neuralfunctionals.weight_space import NeuronPermutation

SCALES = ("small", "tiny")
_NETWORKS, _UNSEEN, _REPORT = "digits", "unseen", "report.html"


@dataclass(frozen=True)
class DemoRun:
    """A training run of the demo."""

    recipe: str
    model: str
    steps: int


RUNS: dict[str, DemoRun] = {
    "reader-with-attention": DemoRun("classify/mnist", "nft-states", steps=300),
    "editor": DemoRun("edit/mnist-dilate", "neuron-graph", steps=400),
    "reader": DemoRun("classify/mnist", "neuron-graph", steps=700),
    "reader-to-compare": DemoRun("classify/mnist", "nfn-hnp", steps=300),
}
"""The training runs, longest first."""
SHIPPED_MODELS = {"edit": "digits-dilate", "classify": "digits-classify"}
"""The shipped models for the same tasks, trained for longer on more networks."""


def describe(name: str, scale: str = "small") -> Run:
    """The full config of one of the demo's runs.

    Args:
        name: One of `RUNS`.
        scale: `small`, or `tiny`, which only tests the pipeline.
    """
    chosen = RUNS[name]
    run = find_run(chosen.recipe, scale=scale, model=chosen.model)
    if scale == "tiny":
        return with_values(run, {"training.threads": 1})
    values = {"data": DataConfig(images="mnist-sample"), "training.threads": 1, "training.ema_decay": 0.98}
    return with_values(with_steps(run, chosen.steps), values)


def run_demo(
    out: str | os.PathLike[str],
    *,
    scale: str = "small",
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """Fits networks to the embedded digits, trains the models of `RUNS`, and writes a report; keeps finished work.

    Args:
        out: The output directory; an unfinished demo is resumed.
        scale: `small`, or `tiny`, which only tests the pipeline.
        progress: Called with the name of the current work, and its networks or steps done and in total.
    """
    require_choice("a scale,", scale, SCALES)
    started, out = time.perf_counter(), Path(out)
    _require_own(out)
    out.mkdir(parents=True, exist_ok=True)
    report = progress or (lambda name, done, total: None)
    data = describe("editor", scale).data
    assert isinstance(data, DataConfig)
    unseen = replace(data, images="mnist-unseen", fit="default")  # as for the shipped models
    num_networks = sum(_fit(out / name, config, report) for name, config in ((_NETWORKS, data), (_UNSEEN, unseen)))
    _train_all(out, scale, report)
    shown = read_runs(out / name for name in reversed(RUNS))
    write_report(shown, out / _REPORT, title="The demo: classifying and editing networks")
    return {
        "networks": num_networks,
        "unseen_networks": len(WeightDataset(out / _UNSEEN)),
        "results": _results(out),
        "shuffled": _shuffle(out),
        "elapsed_seconds": round(time.perf_counter() - started, 1),
        "report": os.fspath(out / _REPORT),
    }


def _require_own(out: Path) -> None:
    known = {_NETWORKS, _UNSEEN, _REPORT, *RUNS}
    if out.is_dir() and any(path.name not in known and not path.name.startswith(".") for path in out.iterdir()):
        raise UserError(f"Expected a new directory or that of an earlier demo, but {out} has other files.")
    if out.exists() and not out.is_dir():
        raise UserError(f"Expected a directory for the demo, but {out} is a file. Choose another with --out.")


def _fit(out: Path, data: DataConfig, report: Callable[[str, int, int], None]) -> int:
    """Fits the missing networks; returns their total number."""
    done = len(WeightDataset(out)) if Store.is_at(out) and Store(out).shards else 0

    def advance(total: int, count: int, psnr_db: Sequence[float]) -> None:
        nonlocal done
        done += count
        report(out.name, done, total)

    return len(dataset_for(data, out, progress=advance))


def _train_all(out: Path, scale: str, report: Callable[[str, int, int], None]) -> None:
    """Carries out the unfinished runs, in one process per core, each with one thread."""
    left = [name for name in RUNS if not RunDirectory(out / name).is_finished]
    count = min(num_cores(), len(left))
    for name in left:
        report(name, 0, describe(name, scale).training.steps)
    jobs = [Job(describe(name, scale), out / name, out / _NETWORKS) for name in left]
    carry_out([jobs[start::count] for start in range(count)], processes=count, threads=1, progress=report)


def _results(out: Path) -> list[dict[str, Any]]:
    """The metric of every model on networks of unseen digits, after the baseline without a model."""
    unseen = WeightDataset(out / _UNSEEN)
    rows: list[dict[str, Any]] = []
    for task, shipped in SHIPPED_MODELS.items():
        metric = TASKS[task].metric
        names = [name for name in reversed(RUNS) if RUNS[name].recipe.startswith(f"{task}/")]
        for name, training in [*((out / name, "now") for name in names), (shipped, "shipped")]:
            opened = open_run(name)
            measured = measure(opened.task, unseen, "test", batch_size=100)
            if not rows or rows[-1]["task"] != task:
                baseline = TASKS[task].baseline
                assert baseline is not None
                without, value = baseline
                value = measured[value] if isinstance(value, str) else value(asdict(opened.run.task))
                rows.append({"task": task, "model": without, f"test_{metric}": value})
            result = opened.directory.read_result()
            rows.append(
                {
                    "task": task,
                    "model": result["model"],
                    "trained": training,
                    "league": result["league"],
                    f"test_{metric}": measured[metric],
                    "parameters": result["parameters"],
                    "training_networks": result["training_networks"],
                    "training_seconds": result["training_seconds"],
                }
            )
    return rows


@torch.inference_mode()
def _shuffle(out: Path) -> dict[str, float]:
    """The largest changes of weights, pictures and classifier outputs when neurons of test networks are shuffled."""
    test_set = WeightDataset(out / _UNSEEN).split("test")
    networks = test_set[: min(8, len(test_set))].features
    assert networks is not None
    shuffled = NeuronPermutation.random(networks.spec, generator=torch.Generator().manual_seed(0))(networks)
    reader = open_run(out / "reader").task
    reader.model.eval()
    pairs = {
        "weights": (networks.tensor, shuffled.tensor),
        "pictures": (render_images(networks, 28, 28), render_images(shuffled, 28, 28)),
        "answers": (reader(networks), reader(shuffled)),
    }
    return {name: float((before - after).abs().max()) for name, (before, after) in pairs.items()}
