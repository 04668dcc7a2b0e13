"""The paper's tables as lists of runs, carried out side by side and continued where they stopped: `reproduce`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from neuralfunctionals.data import RunDirectory, WeightDataset
from neuralfunctionals.recipes import editing, generalization
from neuralfunctionals.recipes.catalog import RECIPES, find_run
from neuralfunctionals.recipes.datasets import dataset_for
from neuralfunctionals.recipes.run import SCALES, DataConfig, Run
from neuralfunctionals.report import (
    draw_accuracies,
    draw_curves,
    draw_edits,
    draw_predictions,
    edit_table,
    generalization_table,
)
from neuralfunctionals.report.finished import FinishedRun, read_runs


@dataclass(frozen=True)
class PaperTable:
    """Which runs make a table, and how it is drawn."""

    summary: str
    runs: tuple[tuple[str, str, int], ...]
    """Recipe, model and seed."""
    draw: Callable[[Sequence[FinishedRun], Path], str]
    """Writes the pictures and returns the table."""


def _draw_editing(runs: Sequence[FinishedRun], out: Path) -> str:
    draw_edits(runs, out / "edits.png")
    draw_curves(runs, out / "curves.png")
    return edit_table(runs)


def _draw_generalization(runs: Sequence[FinishedRun], out: Path) -> str:
    draw_predictions(runs, out / "predictions.png")
    draw_curves(runs, out / "curves.png", metric="kendall_tau")
    zoos = {run.recipe: run.directory.read_config()["data"]["path"] for run in runs}
    draw_accuracies({recipe: WeightDataset(path) for recipe, path in zoos.items()}, out / "accuracies.png")
    return generalization_table(runs)


_EDITORS = ("nfn-np", "nfn-hnp", "nft")
_TABLE_2 = PaperTable(
    "Tables 2 and 4, Figure 4: error of edited INRs",
    tuple(
        (recipe, model, seed)
        for recipe in editing.TASKS
        for seed in (range(3) if recipe == "edit/mnist-dilate" else range(1))
        for model in _EDITORS
    ),
    _draw_editing,
)
_TABLE_3 = PaperTable(
    "Table 3: rank correlation of predicted and true test accuracies of CNNs",
    tuple(
        (recipe, model, seed)
        for recipe in generalization.IMAGES
        for seed in range(2)
        for model in generalization.MODELS
    ),
    _draw_generalization,
)
TABLES: dict[str, PaperTable] = {"table2": _TABLE_2, "table3": _TABLE_3, "table4": _TABLE_2, "figure4": _TABLE_2}
"""What can be reproduced."""


def reproduce(
    name: str,
    out: str | os.PathLike[str],
    *,
    scale: str = "small",
    full_images: bool = False,
    limit: int | None = None,
    stores: Mapping[str, str | os.PathLike[str]] | None = None,
    jobs: int = 1,
    fitting: Callable[[int, int, Sequence[float]], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Carries out the runs of a table that are missing, and draws it.

    Args:
        name: One of `TABLES`.
        out: A directory that gets one run directory for each run, `table.md` and pictures; one begun is continued.
        scale: `tiny`, `small` or `paper`.
        full_images: Whether small scales use the full image sets instead of the embedded samples.
        limit: This many images of each set.
        stores: Stores of networks for some recipes, instead of what they would make.
        jobs: Runs at the same time; they share the machine's cores.
        fitting: Called while networks are fitted, see `dataset_for`.
        progress: Called with the number of runs done and in all.
    """
    if name not in TABLES or scale not in SCALES:
        expected = f"one of {sorted(TABLES)} at a scale of {list(SCALES)}"
        raise ValueError(f"Expected a table, {expected}, but got '{name}' at '{scale}'.")
    if jobs < 1:
        raise ValueError(f"Expected at least one job, but got {jobs}.")
    table, out = TABLES[name], Path(out)
    runs = [_plan(recipe, scale, model, seed, full_images, limit) for recipe, model, seed in table.runs]
    paths = [out / run.name for run in runs]
    report = progress or (lambda done, total: None)
    stores = dict(stores or {})
    unknown = stores.keys() - {run.recipe for run in runs}
    if unknown:
        raise ValueError(f"Expected stores for recipes of {name}, but got one for '{min(unknown)}'.")
    for path in stores.values():
        WeightDataset(path)
    for config in dict.fromkeys(run.data for run in runs if run.recipe not in stores):
        dataset_for(config, progress=fitting)
    left = [(run, path) for run, path in zip(runs, paths, strict=True) if not RunDirectory(path).is_finished]
    done = len(runs) - len(left)
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with ThreadPoolExecutor(jobs) as pool:
        report(done, len(runs))
        for _ in pool.map(lambda job: _carry_out(job[0], job[1], stores.get(job[0].recipe), threads=threads), left):
            done += 1
            report(done, len(runs))
    text = table.draw(read_runs(paths), out)
    (out / "table.md").write_text(text)
    return {"table": name, "runs": len(runs), "out": os.fspath(out), "markdown": text}


def _plan(recipe: str, scale: str, model: str, seed: int, full_images: bool, limit: int | None) -> Run:
    run = replace(find_run(recipe, scale=scale, model=model), seed=seed)
    data = replace(run.data, images=RECIPES[recipe].images) if full_images else run.data
    images = "limit" if isinstance(data, DataConfig) else "limit_images"
    return replace(run, data=data if limit is None else replace(data, **{images: limit}))


def _carry_out(run: Run, path: Path, store: str | os.PathLike[str] | None, *, threads: int) -> None:
    """One run in a process of its own: what it does to torch's threads and random numbers stays there."""
    begun = RunDirectory(path).is_run
    options = {
        "--scale": run.scale,
        "--model": run.model_name,
        "--out": os.fspath(path),
        "--seed": run.seed,
        "--training.threads": threads,
        **{f"--data.{field}": value for field, value in asdict(run.data).items() if value is not None},
        **({} if store is None else {"--data": os.fspath(store)}),
    }
    command = [sys.executable, "-m", "neuralfunctionals.cli", "train", run.recipe]
    command += [str(word) for option in options.items() for word in option] + (["--resume"] if begun else [])
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    if result.returncode:
        lines = result.stderr.strip().splitlines() or [f"exit code {result.returncode}"]
        raise ValueError(f"The run {path.name} failed: {lines[-1].removeprefix('nf: ')}")
