"""The runs of a table, carried out side by side and continued where they stopped: `reproduce`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from neuralfunctionals.data import RunDirectory, WeightDataset
from neuralfunctionals.recipes.catalog import changed_fields, find_run
from neuralfunctionals.recipes.datasets import dataset_for
from neuralfunctionals.recipes.run import SCALES, Run
from neuralfunctionals.recipes.tables import TABLES, Planned
from neuralfunctionals.report.finished import read_runs


def reproduce(
    name: str,
    out: str | os.PathLike[str],
    *,
    scale: str = "small",
    samples: bool = False,
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
        scale: `tiny`, `small`, `long` or `paper`.
        samples: Whether to learn from the embedded samples instead of the full image sets.
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
    every = [_Job(planned, planned.at(scale, samples=samples, limit=limit), out, stores) for planned in table.runs]
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
        if self.planned.encoder is not None:
            return self.out / f"{self.run.name}-of-{self.planned.encoder.model}{_suffix(self.planned.encoder)}"
        return self.out / (self.run.name + _suffix(self.planned))

    @property
    def store(self) -> str | os.PathLike[str] | None:
        """The store of networks or latents to learn from, if it is not the run's own."""
        if self.planned.encoder is not None:
            return self.out / f"latents-of-{self._autoencoder.name}"
        return self.stores.get(self.run.recipe)

    @property
    def _autoencoder(self) -> Path:
        assert self.planned.encoder is not None
        encoder = find_run(self.planned.encoder.recipe, scale=self.run.scale, model=self.planned.encoder.model)
        return self.out / (replace(encoder, seed=self.run.seed).name + _suffix(self.planned.encoder))

    def carry_out(self, threads: int) -> None:
        if self.planned.encoder is not None:
            encode = ["encode", self._autoencoder, "--out", self.store, "--workers", threads]
            self._call(encode, threads)
        words = ["--scale", self.run.scale, "--model", self.run.model_name, "--out", self.path]
        words += ["--training.threads", threads, *([] if self.store is None else ["--data", self.store])]
        words += [
            f"--{name}={value if isinstance(value, str) else json.dumps(value)}"
            for name, value in changed_fields(self.run).items()
        ]
        begun = ["--resume"] if RunDirectory(self.path).is_run else []
        self._call(["train", self.run.recipe, *words, *begun], threads)

    def _call(self, words: Sequence[object], threads: int) -> None:
        command = [sys.executable, "-m", "neuralfunctionals.cli", *map(str, words)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        result = subprocess.run(command, capture_output=True, text=True, env=environment)
        if result.returncode:
            lines = result.stderr.strip().splitlines() or [f"exit code {result.returncode}"]
            raise ValueError(f"The run {self.path.name} failed: {lines[-1].removeprefix('nf: ')}")


def _suffix(planned: Planned) -> str:
    """What tells a run from the recipe's own."""
    return "".join(f"-{name.rpartition('.')[2]}-{value}" for name, value in planned.changes)
