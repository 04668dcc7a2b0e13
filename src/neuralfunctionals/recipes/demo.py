"""The demo: digits become networks, and models that see their weights alone edit them and read them: `run_demo`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from neuralfunctionals.data import FitPlan, RunDirectory, Store, WeightDataset, fit_dataset, open_images
from neuralfunctionals.inr import render_images
from neuralfunctionals.inr.fit import num_cores
from neuralfunctionals.recipes.catalog import find_run
from neuralfunctionals.recipes.execute import execute, open_run
from neuralfunctionals.recipes.run import DataConfig, Run
from neuralfunctionals.report import read_runs, write_report
from neuralfunctionals.weight_space import NeuronPermutation

SCALES = ("small", "tiny")
_NETWORKS, _REPORT = "digits", "report.html"


@dataclass(frozen=True)
class DemoRun:
    """A training of the demo."""

    recipe: str
    model: str
    steps: int
    batch_size: int
    lr: float
    canonical: bool = False
    standardize: bool = False
    """Whether the model sees each layer's weights relative to their spread over the training networks."""


RUNS: dict[str, DemoRun] = {
    "editor": DemoRun("edit/mnist-dilate", "neuron-graph", steps=600, batch_size=32, lr=5e-3, canonical=True),
    "reader": DemoRun("classify/mnist", "neuron-graph", steps=1000, batch_size=32, lr=3e-3, canonical=True),
    "editor-to-compare": DemoRun("edit/mnist-dilate", "nfn-hnp", steps=1200, batch_size=16, lr=1e-2, standardize=True),
    "reader-to-compare": DemoRun("classify/mnist", "nfn-hnp", steps=600, batch_size=16, lr=1e-3, standardize=True),
}
"""What is trained, longest first: for each task our best model and one to compare it with, for about as long."""


def describe(name: str, scale: str = "small") -> Run:
    """One of the demo's runs in full.

    Args:
        name: One of `RUNS`.
        scale: `small`, or `tiny`, which proves the pipeline alone.
    """
    chosen = RUNS[name]
    run = find_run(chosen.recipe, scale=scale, model=chosen.model)
    model = {**run.model, "standardize": True} if chosen.standardize else run.model
    run = replace(run, model=model, canonical="sine" if chosen.canonical else "none")
    if scale == "tiny":
        return replace(run, training=replace(run.training, threads=1))
    steps = {"steps": chosen.steps, "val_every": chosen.steps // 10, "batch_size": chosen.batch_size, "threads": 1}
    optimizer = replace(run.optimizer, lr=chosen.lr, warmup_steps=chosen.steps // 16)
    return replace(run, training=replace(run.training, **steps), optimizer=optimizer)


def run_demo(
    out: str | os.PathLike[str],
    *,
    scale: str = "small",
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """Fits networks to the embedded digits, trains what `RUNS` lists, and writes a report; what is finished is kept.

    Args:
        out: A directory for all of it; one begun is continued.
        scale: `small`, or `tiny`, which proves the pipeline alone.
        progress: Called with the name of what is done, and its networks or steps finished and in all.
    """
    if scale not in SCALES:
        raise ValueError(f"Expected a scale, one of {', '.join(SCALES)}, but got '{scale}'.")
    started, out = time.perf_counter(), Path(out)
    _require_own(out)
    out.mkdir(parents=True, exist_ok=True)
    report = progress or (lambda name, done, total: None)
    num_networks = _fit(out / _NETWORKS, scale, report)
    _train_all(out, scale, report)
    shown = read_runs(out / name for name in reversed(RUNS))
    write_report(shown, out / _REPORT, title="The demo: networks read and edited")
    return {
        "networks": num_networks,
        "results": _results(out),
        "shuffled": _shuffle(out),
        "elapsed_seconds": round(time.perf_counter() - started, 1),
        "report": os.fspath(out / _REPORT),
    }


def _require_own(out: Path) -> None:
    known = {_NETWORKS, _REPORT, *RUNS}
    if out.is_dir() and any(path.name not in known and not path.name.startswith(".") for path in out.iterdir()):
        raise ValueError(f"Expected a new directory or that of an earlier demo, but {out} holds other files.")
    if out.exists() and not out.is_dir():
        raise ValueError(f"Expected a directory for the demo, but {out} is a file. Name another with --out.")


def _fit(out: Path, scale: str, report: Callable[[str, int, int], None]) -> int:
    """The networks that are missing; returns how many there are."""
    data = describe("editor", scale).data
    assert isinstance(data, DataConfig)
    plan = FitPlan.make(open_images(data.images), recipe=data.fit, limit=data.limit)
    total, done = plan.header.num_items, len(WeightDataset(out)) if _has_networks(out) else 0

    def advance(count: int, psnr_db: Sequence[float]) -> None:
        nonlocal done
        done += count
        report(_NETWORKS, done, total)

    fit_dataset(plan, out, progress=advance)
    return total


def _has_networks(out: Path) -> bool:
    return Store.is_at(out) and Store(out).has_shard(0)


def _train_all(out: Path, scale: str, report: Callable[[str, int, int], None]) -> None:
    """The runs that are left, shared by as many processes as there are cores, each with one thread."""
    left = [name for name in RUNS if not RunDirectory(out / name).is_finished]
    count = min(num_cores(), len(left))
    for name in left:
        report(name, 0, describe(name, scale).training.steps)
    processes: list[subprocess.Popen[str]] = []
    stopped = threading.Event()
    pool = ThreadPoolExecutor(max(1, count))

    def carry_out(names: Sequence[str]) -> None:
        words = [sys.executable, "-c", _WORKER, os.fspath(out), scale, *names]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with tempfile.TemporaryFile("w+") as complaints:
            pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": complaints, "text": True}
            # A session of its own: Ctrl-C stops this process, and this process stops the others.
            with subprocess.Popen(words, env=environment, start_new_session=True, **pipes) as process:
                processes.append(process)
                if stopped.is_set():
                    process.kill()
                assert process.stdout is not None
                for line in process.stdout:
                    name, done, total = line.split()
                    report(name, int(done), int(total))
            if process.returncode:
                complaints.seek(0)
                lines = complaints.read().strip().splitlines() or [f"exit code {process.returncode}"]
                raise ValueError(f"Training in {out} failed: {lines[-1].removeprefix('ValueError: ')}")

    try:
        running = [pool.submit(carry_out, left[start::count]) for start in range(count)]
        for future in wait(running, return_when=FIRST_EXCEPTION).done:
            future.result()
    finally:
        stopped.set()
        for process in processes:
            process.kill()  # at any moment: a run continues from its last validation
        pool.shutdown()


_WORKER = "import sys; from neuralfunctionals.recipes.demo import work; work(*sys.argv[1:])"


def work(out: str, scale: str, *names: str) -> None:
    """Some runs, begun or continued, in a process of their own; prints the steps done and in all."""

    def report(name: str, done: int, total: int) -> None:
        if done % 5 == 0 or done == total:
            print(name, done, total, flush=True)

    for name in names:
        path = Path(out) / name
        begun, data = RunDirectory(path).is_run, Path(out) / _NETWORKS
        execute(describe(name, scale), path, data=data, resume=begun, progress=partial(report, name))


def _results(out: Path) -> list[dict[str, Any]]:
    """The test metrics of every model, below what is had without one."""
    results = {name: RunDirectory(out / name).read_result() for name in RUNS}
    no_edit = results["editor"]["test"]["mse_no_edit"]
    rows: list[dict[str, Any]] = [{"task": "edit", "model": "no edit", "test_mse": no_edit}]
    rows += [_row("edit", name, results, "mse") for name in ("editor-to-compare", "editor")]
    rows += [{"task": "classify", "model": "chance", "test_accuracy": 0.1}]
    rows += [_row("classify", name, results, "accuracy") for name in ("reader-to-compare", "reader")]
    return rows


def _row(task: str, name: str, results: Mapping[str, dict[str, Any]], metric: str) -> dict[str, Any]:
    result, mark = results[name], ", canonical" if RUNS[name].canonical else ""
    return {
        "task": task,
        "model": f"{result['model']}{mark}",
        f"test_{metric}": result["test"][metric],
        "parameters": result["parameters"],
        "training_seconds": result["training_seconds"],
    }


@torch.inference_mode()
def _shuffle(out: Path) -> dict[str, float]:
    """The largest changes of weights, pictures and the reader's answers when neurons of test networks are shuffled."""
    test_set = WeightDataset(out / _NETWORKS).split("test")
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
