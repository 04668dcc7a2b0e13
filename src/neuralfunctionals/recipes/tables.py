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
from neuralfunctionals.recipes import editing, generalization, reconstruction
from neuralfunctionals.recipes.catalog import RECIPES, find_run
from neuralfunctionals.recipes.datasets import dataset_for
from neuralfunctionals.recipes.run import SAMPLES, SCALES, DataConfig, Run
from neuralfunctionals.report import (
    classification_table,
    draw_accuracies,
    draw_curves,
    draw_edits,
    draw_latents,
    draw_predictions,
    draw_reconstructions,
    edit_table,
    generalization_table,
    reconstruction_table,
)
from neuralfunctionals.report.finished import FinishedRun, read_runs


@dataclass(frozen=True)
class Planned:
    """One run of a table."""

    recipe: str
    model: str
    seed: int = 0
    encoder: str | None = None
    """The autoencoder, of the same images and seed, whose latents it reads."""

    def at(self, scale: str, *, full_images: bool, limit: int | None) -> Run:
        """The run at a scale."""
        run = replace(find_run(self.recipe, scale=scale, model=self.model), seed=self.seed)
        data = replace(run.data, images=RECIPES[self.recipe].images) if full_images else run.data
        images = "limit" if isinstance(data, DataConfig) else "limit_images"
        return replace(run, data=data if limit is None else replace(data, **{images: limit}))


@dataclass(frozen=True)
class PaperTable:
    """Which runs make a table, and how it is drawn."""

    summary: str
    runs: tuple[Planned, ...]
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


def _draw_reconstruction(runs: Sequence[FinishedRun], out: Path) -> str:
    draw_reconstructions(runs, out / "reconstructions.png")
    draw_curves(runs, out / "reconstruction_curves.png")
    return reconstruction_table(runs)


def _draw_classification(runs: Sequence[FinishedRun], out: Path) -> str:
    autoencoders = [run for run in runs if run.recipe.startswith("inr2array/")]
    classifiers = [run for run in runs if run.recipe.startswith("classify/")]
    draw_curves(classifiers, out / "curves.png", metric="accuracy")
    latents = next(run for run in classifiers if run.model == "inr2array-nft")
    draw_latents(WeightDataset(latents.config["data"]["path"]), out / "latents.png", split="test")
    return f"{classification_table(classifiers)}\n{_draw_reconstruction(autoencoders, out)}"


def _seeds(recipe: str, first: str, count: int) -> range:
    """The paper's main task gets several seeds."""
    return range(count if recipe == first else 1)


_EDITORS = ("nfn-np", "nfn-hnp", "nft")
_TABLE_2 = PaperTable(
    "Tables 2 and 4, Figure 4: error of edited INRs",
    tuple(
        Planned(recipe, model, seed)
        for recipe in editing.TASKS
        for seed in _seeds(recipe, "edit/mnist-dilate", 3)
        for model in _EDITORS
    ),
    _draw_editing,
)
_TABLE_3 = PaperTable(
    "Table 3: rank correlation of predicted and true test accuracies of CNNs",
    tuple(
        Planned(recipe, model, seed)
        for recipe in generalization.IMAGES
        for seed in range(2)
        for model in generalization.MODELS
    ),
    _draw_generalization,
)
_ENCODERS = tuple(reconstruction.FUNCTIONALS)
_TABLE_5 = PaperTable(
    "Table 5, Figure 3: error of Inr2Array's reconstructions",
    tuple(
        Planned(f"inr2array/{images}", encoder, seed)
        for images in SAMPLES
        for seed in _seeds(images, "mnist", 3)
        for encoder in _ENCODERS
    ),
    _draw_reconstruction,
)
_CLASSIFIERS = ("dws", "nfn-np", "nfn-hnp", "spatial-nfn", "nft")
_TABLE_1 = PaperTable(
    "Tables 1, 5 and 6, Figure 3: classes of INRs, from weights and from Inr2Array's latents",
    (
        *_TABLE_5.runs,
        *(
            Planned(f"classify/{images}", model, seed)
            for images in SAMPLES
            for seed in _seeds(images, "mnist", 3)
            for model in _CLASSIFIERS
        ),
        *(
            Planned(f"classify/{run.recipe.partition('/')[2]}", "latent", run.seed, encoder=run.model)
            for run in _TABLE_5.runs
        ),
    ),
    _draw_classification,
)
TABLES: dict[str, PaperTable] = {
    "table1": _TABLE_1,
    "table2": _TABLE_2,
    "table3": _TABLE_3,
    "table4": _TABLE_2,
    "table5": _TABLE_5,
    "table6": _TABLE_1,
    "figure3": _TABLE_5,
    "figure4": _TABLE_2,
}
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
    table, out, stores = TABLES[name], Path(out), stores or {}
    unknown = stores.keys() - {planned.recipe for planned in table.runs}
    if unknown:
        raise ValueError(f"Expected stores for recipes of {name}, but got one for '{min(unknown)}'.")
    for path in stores.values():
        WeightDataset(path)
    every = [
        _Job(planned, planned.at(scale, full_images=full_images, limit=limit), out, stores) for planned in table.runs
    ]
    paths = [job.path for job in every]
    for config in dict.fromkeys(job.run.data for job in every if job.store is None):
        dataset_for(config, progress=fitting)
    left = [job for job in every if not RunDirectory(job.path).is_finished]
    report, done = progress or (lambda done, total: None), len(every) - len(left)
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with ThreadPoolExecutor(jobs) as pool:
        report(done, len(every))
        for reads_latents in (False, True):  # latents come from the table's own autoencoders
            chosen = [job for job in left if (job.planned.encoder is not None) == reads_latents]
            for _ in pool.map(lambda job: job.carry_out(threads), chosen):
                done += 1
                report(done, len(every))
    text = table.draw(read_runs(paths), out)
    (out / "table.md").write_text(text)
    return {"table": name, "runs": len(every), "out": os.fspath(out), "markdown": text}


@dataclass(frozen=True)
class _Job:
    """A run and where it goes; each is carried out in a process of its own, with its own threads and random numbers."""

    planned: Planned
    run: Run
    out: Path
    stores: Mapping[str, str | os.PathLike[str]]

    @property
    def path(self) -> Path:
        suffix = "" if self.planned.encoder is None else f"-of-{self.planned.encoder}"
        return self.out / (self.run.name + suffix)

    @property
    def store(self) -> str | os.PathLike[str] | None:
        """The store of networks or latents to learn from, if it is not the run's own."""
        if self.planned.encoder is not None:
            return self.out / f"latents-of-{self._autoencoder.name}"
        return self.stores.get(self.run.recipe)

    @property
    def _autoencoder(self) -> Path:
        recipe = self.run.recipe.replace("classify/", "inr2array/")
        return self.out / replace(self.run, recipe=recipe, model_name=self.planned.encoder or "").name

    def carry_out(self, threads: int) -> None:
        if self.planned.encoder is not None:
            encode = ["encode", self._autoencoder, "--out", self.store, "--workers", threads]
            self._call(encode, threads)
        data: dict[str, Any] = {f"--data.{field}": value for field, value in asdict(self.run.data).items()}
        options = {
            "--scale": self.run.scale,
            "--model": self.run.model_name,
            "--out": self.path,
            "--seed": self.run.seed,
            "--training.threads": threads,
            **{field: value for field, value in data.items() if value is not None},
            **({} if self.store is None else {"--data": self.store}),
        }
        begun = ["--resume"] if RunDirectory(self.path).is_run else []
        self._call(
            ["train", self.run.recipe, *(word for option in options.items() for word in option), *begun], threads
        )

    def _call(self, words: Sequence[object], threads: int) -> None:
        command = [sys.executable, "-m", "neuralfunctionals.cli", *map(str, words)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        result = subprocess.run(command, capture_output=True, text=True, env=environment)
        if result.returncode:
            lines = result.stderr.strip().splitlines() or [f"exit code {result.returncode}"]
            raise ValueError(f"The run {self.path.name} failed: {lines[-1].removeprefix('nf: ')}")
