"""Finished runs, read from run directories or records: `FinishedRun`, `read_runs`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from neuralfunctionals.config import DataConfig, without_free
from neuralfunctionals.errors import UserError
from neuralfunctionals.imports import import_for_file, imports_for
from neuralfunctionals.registry import TASKS, find_task
from neuralfunctionals.report.records import RECORDS, read_records
from neuralfunctionals.run_directory import RunDirectory
from neuralfunctionals.tasks.definition import TaskDefinition


@dataclass(frozen=True)
class FinishedRun:
    """A finished run, for tables and pictures."""

    name: str
    """Name of its directory."""
    config: dict[str, Any]
    """The contents of `run.json`."""
    result: dict[str, Any]
    """The contents of `result.json`."""
    curve: Sequence[dict[str, Any]] = field(default=(), repr=False)
    directory: RunDirectory | None = None
    """The run directory, with the samples; None for a record."""
    mark: str = ""
    """Suffix that distinguishes it from runs of the same model with other settings."""

    @property
    def recipe(self) -> str:
        return self.result["recipe"]

    @property
    def family(self) -> str:
        """The name of the task: the first part of the recipe."""
        return self.recipe.partition("/")[0]

    @cached_property
    def task(self) -> TaskDefinition:
        """The definition of its task; only the metric, if it is a user's task that cannot be imported here."""
        try:
            if "." in self.family:
                with imports_for(None if self.directory is None else self.directory.path):
                    import_for_file(self.family)
            return find_task(self.recipe)
        except UserError:
            if "." not in self.family or "metric" not in self.result:
                raise
            better = bool(self.result.get("higher_is_better"))
            return TaskDefinition("", metric=self.result["metric"], higher_is_better=better, title=self.family)

    @property
    def model(self) -> str:
        """Display name; latent classifiers use their autoencoder's. Probes and raw weights are marked."""
        run, encoder = self.config["run"], self.config["data"].get("encoder")
        name = self.result["model"] if encoder is None else f"inr2array-{encoder['model']}"
        name += f", {run['model']['probes']} probes" if run["model"].get("probes") else ""
        reads_sines = self.task.data is DataConfig and encoder is None and self.league == "weights only"
        name += ", raw weights" if reads_sines and run.get("canonical") == "none" else ""
        return name + self.mark

    @property
    def league(self) -> str:
        """Whether the model only sees the weights or also runs the networks; only models of one league are compared."""
        return self.result.get("league", "weights only")

    @property
    def scale(self) -> str:
        return self.result.get("scale", "")

    @property
    def batch_size(self) -> int:
        """Networks per step."""
        return self.config["run"]["training"].get("batch_size", 1)

    @cached_property
    def samples(self) -> dict[str, Tensor]:
        """The arrays that it saved for pictures."""
        if self.directory is None or not self.directory.samples_file.exists():
            return {}
        return self.directory.read_samples()

    @property
    def baseline(self) -> tuple[str, float] | None:
        """The test metric without a model, and its name."""
        if self.task.baseline is None:
            return None
        name, value = self.task.baseline
        found = self.result["test"].get(value) if isinstance(value, str) else value(self.config["run"]["task"])
        return None if found is None else (name, found)

    @property
    def setting(self) -> dict[str, Any]:
        """Everything that determines the result, except the seed."""
        run = without_free(self.config["run"])
        # The encoder is left out, because each seed has its own.
        made = {name: value for name, value in self.config["data"].items() if name not in ("path", "encoder")}
        return {**{name: value for name, value in run.items() if name != "seed"}, "made": made}


def read_runs(paths: Iterable[str | os.PathLike[str]]) -> list[FinishedRun]:
    """Reads and checks the runs of directories and records (`.jsonl`)."""
    runs = [run for path in paths for run in _read(Path(path))]
    if not runs:
        raise UserError("Expected at least one finished run, but got none.")
    for run in runs:
        _require_readable(run)
    return runs


def _read(path: Path) -> list[FinishedRun]:
    if path.suffix == RECORDS and path.is_file():
        return [FinishedRun(r["name"], _config(r["config"], path), r["result"], r["curve"]) for r in read_records(path)]
    directory = RunDirectory(path).require()
    config = _config(directory.read_config(), directory.config_file)
    result = directory.read_result()
    try:
        run = FinishedRun(path.name, config, result, directory.read_curve(), directory)
        _ = run.samples
    except ValueError as error:
        raise UserError(
            f"Cannot read the curve and samples of {path}: {error} Expected files written by nf train."
        ) from error
    return [run]


def _config(config: dict[str, Any], file: Path) -> dict[str, Any]:
    """The contents of `run.json`, with all fields that tables and pictures need."""
    run, data = config.get("run", {}), config.get("data", {})
    missing = [name for name in ("model", "task") if name not in run]
    if missing or not isinstance(data.get("encoder", {"model": ""}).get("model"), str):
        what = f"run.{missing[0]}" if missing else "data.encoder.model"
        raise UserError(f"{file}: expected the name {what}, as written by nf train.")
    return {**config, "run": {"training": {}, **run}, "data": data}


def _require_readable(run: FinishedRun) -> None:
    """Raises an error unless the run has everything that tables and pictures need."""
    where = run.name if run.directory is None else run.directory.result_file
    needed = {"recipe", "model", "train", "val", "test", "parameters", "seed", "training_seconds"}
    if not needed <= run.result.keys():
        missing = min(needed - run.result.keys())
        raise UserError(f"Expected the result of nf train, but {where} has other contents: no {missing}.")
    if "." not in run.family and run.family not in TASKS:
        raise UserError(f"Expected a run of {', '.join(TASKS)}, but {where} is one of '{run.recipe}'.")
    for split in ("train", "val", "test"):
        if run.task.metric not in run.result[split]:
            raise UserError(f"Expected {run.task.metric} for '{split}' in {where}.")
    if not all("seconds" in row for row in run.curve):
        raise UserError(f"Cannot read the curve and samples of {where}: rows of the curve have no seconds.")


def tell_apart(runs: Sequence[FinishedRun]) -> list[FinishedRun]:
    """Marks the runs where needed, so that runs share a name only if they differ only in the seed."""
    marked = list(runs)
    for describe in (lambda run: str(run.scale), lambda run: ""):
        settings: dict[tuple[str, str], list[object]] = {}
        for run in marked:
            known = settings.setdefault((run.recipe, run.model), [])
            known += [run.setting] if run.setting not in known else []
        marked = [
            replace(run, mark=f"{run.mark} {describe(run) or '#' + str(known.index(run.setting) + 1)}")
            if len(known := settings[run.recipe, run.model]) > 1
            else run
            for run in marked
        ]
    return marked


def group(runs: Iterable[FinishedRun], *, by: str) -> dict[str, list[FinishedRun]]:
    """Groups runs by family, recipe or model, and keeps their order."""
    groups: dict[str, list[FinishedRun]] = {}
    for run in runs:
        groups.setdefault(getattr(run, by), []).append(run)
    return groups
