"""Carries out the runs of a table in parallel, and resumes stopped ones: `reproduce`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from neuralfunctionals.config import SCALES, Run, ZooConfig, with_values, without_free
from neuralfunctionals.data import WeightDataset
from neuralfunctionals.errors import UserError, require_choice
from neuralfunctionals.machine import num_cores
from neuralfunctionals.report import (
    FinishedRun,
    Table,
    draw_accuracies,
    draw_task,
    read_runs,
    results_table,
    write_records,
)
from neuralfunctionals.report.finished import group
from neuralfunctionals.run_directory import RunDirectory
from neuralfunctionals.runs.datasets import dataset_for
from neuralfunctionals.runs.workers import Job, carry_out
from neuralfunctionals.studies.tables import TABLES, Planned


def reproduce(
    name: str,
    out: str | os.PathLike[str],
    *,
    scale: str = "small",
    samples: bool = False,
    limit: int | None = None,
    stores: Mapping[str, str | os.PathLike[str]] | None = None,
    records: Sequence[str | os.PathLike[str]] = (),
    jobs: int = 1,
    fitting: Callable[[int, int, Sequence[float]], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Carries out the missing runs of a table, and writes the table and its pictures.

    Args:
        name: One of `TABLES`.
        out: The output directory, with a run directory for each run, `table.md`, pictures, and `records.jsonl` with
            config, result and curve of every run; an unfinished table is resumed.
        scale: `tiny`, `small`, `long` or `paper`.
        samples: Whether to train on the embedded samples instead of the full image sets.
        limit: Number of images to use from each set.
        stores: Stores of networks by recipe, to use instead of making them.
        records: Records of runs that were carried out elsewhere (`.jsonl`); those with the same name and settings are
            not repeated.
        jobs: Number of runs in parallel; they share the machine's cores.
        fitting: Called while networks are fitted; see `dataset_for`.
        progress: Called with the number of runs done and in total.
    """
    require_choice("a table,", name, TABLES)
    require_choice("a scale,", scale, SCALES)
    if jobs < 1:
        raise UserError(f"Expected at least one job, but got {jobs}.")
    table, out, stores = TABLES[name], Path(out), stores or {}
    unknown = stores.keys() - {planned.recipe for planned in table.runs}
    if unknown:
        raise UserError(f"Expected stores for recipes of {name}, but got one for '{min(unknown)}'.")
    for path in stores.values():
        WeightDataset(path)
    threads = max(1, num_cores() // jobs)
    every = []
    for planned in table.runs:
        run = with_values(planned.at(scale, samples=samples, limit=limit), {"training.threads": threads})
        every.append(_job(planned, run, out, stores.get(run.recipe)))
    known = _find_records(every, read_runs(records) if records else [])
    missing = [job for job in every if not RunDirectory(job.out).is_finished]
    needed = {job.encoder for job in missing if job.out not in known}  # records have no models
    left = [job for job in missing if job.out not in known or job.out in needed]
    for config in dict.fromkeys(job.run.data for job in left if job.data is None):
        dataset_for(config, progress=fitting)
    report, done = progress or (lambda done, total: None), len(every) - len(left)
    report(done, len(every))
    steps = {job.out.name: job.run.training.steps for job in left}

    def advance(name: str, at: int, total: int) -> None:
        nonlocal done
        if at == total and steps.pop(name, None):
            done += 1
            report(done, len(every))

    for reads_latents in (False, True):  # latents come from the table's own autoencoders
        chosen = [[job] for job in left if (job.encoder is not None) == reads_latents]
        carry_out(chosen, processes=jobs, threads=threads, progress=advance)
    known |= {job.out: read_runs([job.out])[0] for job in every if RunDirectory(job.out).is_finished}
    runs = [known[job.out] for job in every]
    out.mkdir(parents=True, exist_ok=True)
    tables = _draw(runs, out)
    text = "\n".join(table.to_markdown() for table in tables)
    (out / "table.md").write_text(text)
    write_records(runs, out / "records.jsonl")
    rows = [{"names": table.names, "rows": table.rows} for table in tables]
    return {"table": name, "runs": len(every), "out": os.fspath(out), "markdown": text, "tables": rows}


def _find_records(jobs: Sequence[Job], runs: Sequence[FinishedRun]) -> dict[Path, FinishedRun]:
    """The recorded runs that have the name and settings of a job, by its directory."""
    recorded = {(run.name, _settings(run.config["run"])): run for run in runs}
    named = {job.out: (job.out.name, _settings(job.run.to_dict())) for job in jobs}
    return {out: recorded[key] for out, key in named.items() if key in recorded}


def _settings(run: Mapping[str, Any]) -> str:
    return json.dumps(without_free(run), sort_keys=True)


def _draw(runs: Sequence[FinishedRun], out: Path) -> list[Table]:
    """Writes the pictures of each task, and returns the tables."""
    for of_task in group(runs, by="family").values():
        draw_task(of_task, out)
    zoos = {run.recipe: run.config["data"]["path"] for run in runs if run.directory and run.task.data is ZooConfig}
    if zoos:
        draw_accuracies({recipe: WeightDataset(path) for recipe, path in zoos.items()}, out / "accuracies.png")
    return [results_table(of_task) for of_task in group(runs, by="family").values()]


def _job(planned: Planned, run: Run, out: Path, store: str | os.PathLike[str] | None) -> Job:
    """A run of the table and its directory; each has its own process, threads and random numbers."""
    if planned.encoder is None:
        return Job(run, out / (run.name + _suffix(planned)), None if store is None else Path(store))
    encoder = out / (planned.encoder.at(run.scale).name + _suffix(planned.encoder))
    path = out / f"{run.name}-of-{planned.encoder.model}{_suffix(planned.encoder)}"
    return Job(run, path, out / f"latents-of-{encoder.name}", encoder)


def _suffix(planned: Planned) -> str:
    """The suffix of a run's directory that names its differences from the recipe."""
    return "".join(f"-{name.rpartition('.')[2]}-{value}" for name, value in planned.changes)
