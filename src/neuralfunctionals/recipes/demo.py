"""The demo: digits become networks, and models that see their weights alone edit them and read them: `run_demo`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
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
from neuralfunctionals.recipes.execute import execute, measure, open_run
from neuralfunctionals.recipes.run import DataConfig, Run, with_steps, with_values
from neuralfunctionals.report import read_runs, write_report
from neuralfunctionals.weight_space import NeuronPermutation

SCALES = ("small", "tiny")
_NETWORKS, _UNSEEN, _REPORT = "digits", "unseen", "report.html"


@dataclass(frozen=True)
class DemoRun:
    """A training of the demo."""

    recipe: str
    model: str
    steps: int


RUNS: dict[str, DemoRun] = {
    "reader-with-attention": DemoRun("classify/mnist", "nft-states", steps=300),
    "editor": DemoRun("edit/mnist-dilate", "neuron-graph", steps=400),
    "reader": DemoRun("classify/mnist", "neuron-graph", steps=700),
    "reader-to-compare": DemoRun("classify/mnist", "nfn-hnp", steps=300),
}
"""What is trained, longest first."""
SHIPPED_MODELS = {"edit": "digits-dilate", "classify": "digits-classify"}
"""The models that come with the package and do the same, trained for longer on more networks."""
_METRICS = {"edit": "mse", "classify": "accuracy"}


def describe(name: str, scale: str = "small") -> Run:
    """One of the demo's runs in full.

    Args:
        name: One of `RUNS`.
        scale: `small`, or `tiny`, which proves the pipeline alone.
    """
    chosen = RUNS[name]
    run = find_run(chosen.recipe, scale=scale, model=chosen.model)
    if scale == "tiny":
        return with_values(run, {"training.threads": 1})
    run = with_steps(run, chosen.steps)
    return with_values(
        run, {"data": DataConfig(images="mnist-sample"), "training.threads": 1, "training.ema_decay": 0.98}
    )


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
    data = describe("editor", scale).data
    assert isinstance(data, DataConfig)
    unseen = replace(data, images="mnist-unseen", fit="default")  # as shipped models know them
    num_networks = sum(
        _fit(out / name, name, config, report) for name, config in ((_NETWORKS, data), (_UNSEEN, unseen))
    )
    _train_all(out, scale, report)
    shown = read_runs(out / name for name in reversed(RUNS))
    write_report(shown, out / _REPORT, title="The demo: networks read and edited")
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
        raise ValueError(f"Expected a new directory or that of an earlier demo, but {out} holds other files.")
    if out.exists() and not out.is_dir():
        raise ValueError(f"Expected a directory for the demo, but {out} is a file. Name another with --out.")


def _fit(out: Path, name: str, data: DataConfig, report: Callable[[str, int, int], None]) -> int:
    """The networks that are missing; returns how many there are."""
    plan = FitPlan.make(open_images(data.images), recipe=data.fit, limit=data.limit)
    total, done = plan.header.num_items, len(WeightDataset(out)) if _has_networks(out) else 0

    def advance(count: int, psnr_db: Sequence[float]) -> None:
        nonlocal done
        done += count
        report(name, done, total)

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
    """How every model does on networks of digits that none has seen, below what is had without one."""
    unseen = WeightDataset(out / _UNSEEN)
    rows: list[dict[str, Any]] = []
    for task, without in (("edit", "no edit"), ("classify", "chance")):
        metric = _METRICS[task]
        names = [name for name in reversed(RUNS) if RUNS[name].recipe.startswith(f"{task}/")]
        for name, training in [*((out / name, "now") for name in names), (SHIPPED_MODELS[task], "shipped")]:
            opened = open_run(name)
            measured = measure(opened.task, unseen, "test", batch_size=100)
            if not rows or rows[-1]["task"] != task:
                value = 0.1 if task == "classify" else measured["mse_no_edit"]
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
    """The largest changes of weights, pictures and the reader's answers when neurons of test networks are shuffled."""
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
