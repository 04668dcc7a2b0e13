"""Finished runs, grouped as tables and pictures need them: `FinishedRun`, `read_runs`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from neuralfunctionals.data import RunDirectory

_FREE = {"accelerator", "devices", "nodes", "threads", "compile"}
"""Where and how fast a run was computed."""


@dataclass(frozen=True)
class FinishedRun:
    """What tables and pictures show of a run."""

    directory: RunDirectory
    result: dict[str, Any]
    mark: str = ""
    """What tells it from runs of the same model with other settings."""

    @property
    def recipe(self) -> str:
        return self.result["recipe"]

    @property
    def family(self) -> str:
        """The kind of task: the recipe's first word."""
        return self.recipe.partition("/")[0]

    @property
    def model(self) -> str:
        """The model's name; of a reader of latents that of their autoencoder; and what the paper's does not have."""
        run, encoder = self.config["run"], self.config["data"].get("encoder")
        name = self.result["model"] if encoder is None else f"inr2array-{encoder['model']}"
        name += f", {run['model']['probes']} probes" if run["model"].get("probes") else ""
        reads_sines = self.family in ("classify", "inr2array", "edit") and encoder is None
        name += ", raw weights" if reads_sines and run.get("canonical") == "none" else ""
        return name + self.mark

    @property
    def league(self) -> str:
        """Whether the model reads weights only or asks the function; models of one league are compared."""
        return self.result.get("league", "weights only")

    @property
    def scale(self) -> str:
        return self.result.get("scale", "")

    @cached_property
    def config(self) -> dict[str, Any]:
        """What `run.json` says, with all that tables and pictures look for."""
        config, file = self.directory.read_config(), self.directory.config_file
        run, data = config.get("run", {}), config.get("data", {})
        missing = [name for name in ("model", "task") if name not in run]
        encoder = data.get("encoder", {"model": ""})
        if missing or not isinstance(encoder.get("model"), str):
            what = f"run.{missing[0]}" if missing else "data.encoder.model"
            raise ValueError(f"{file}: expected the name {what}. Expected what nf train wrote.")
        return {**config, "data": data}

    @cached_property
    def sample_names(self) -> tuple[str, ...]:
        """The arrays that it kept for pictures."""
        return tuple(self.directory.read_samples()) if self.directory.samples_file.exists() else ()

    @property
    def task(self) -> dict[str, Any]:
        """The task's own settings."""
        return self.config["run"]["task"]

    @property
    def setting(self) -> dict[str, Any]:
        """All that decides what is computed, but the seed and the number of threads."""
        run = self.config["run"]
        training = {name: value for name, value in run["training"].items() if name not in _FREE}
        # Latents of one seed come from the autoencoder of that seed.
        made = {name: value for name, value in self.config["data"].items() if name not in ("path", "encoder")}
        return {**{name: value for name, value in run.items() if name != "seed"}, "training": training, "made": made}


def read_runs(paths: Iterable[str | os.PathLike[str]]) -> list[FinishedRun]:
    """The runs in these directories."""
    directories = [RunDirectory(path).require() for path in paths]
    if not directories:
        raise ValueError("Expected at least one finished run, but got none.")
    runs = [FinishedRun(directory, directory.read_result()) for directory in directories]
    for run in runs:
        if not {"recipe", "model"} <= run.result.keys():
            file = run.directory.result_file
            raise ValueError(f"Expected the result of nf train, but {file} has other contents.")
    return runs


def group(runs: Iterable[FinishedRun], *, by: str) -> dict[str, list[FinishedRun]]:
    """Runs by recipe or model, in the order in which they come."""
    groups: dict[str, list[FinishedRun]] = {}
    for run in runs:
        groups.setdefault(getattr(run, by), []).append(run)
    return groups
