"""Finished runs, grouped as tables and pictures need them: `FinishedRun`, `read_runs`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from neuralfunctionals.data import RunDirectory


@dataclass(frozen=True)
class FinishedRun:
    """What tables and pictures show of a run."""

    directory: RunDirectory
    result: dict[str, Any]
    config: dict[str, Any]

    @property
    def recipe(self) -> str:
        return self.result["recipe"]

    @property
    def model(self) -> str:
        """The model's name; of a reader of latents that of their autoencoder; and what the paper's does not have."""
        run, encoder = self.config["run"], self.config["data"].get("encoder")
        name = self.result["model"] if encoder is None else f"inr2array-{encoder['model']}"
        name += " with messages" if run["model"].get("message_passing") else ""
        name += ", augmented" if run["task"].get("augment") else ""
        return name + (", canonical" if run.get("canonical") == "sine" else "")


def read_runs(paths: Iterable[str | os.PathLike[str]]) -> list[FinishedRun]:
    """The runs in these directories."""
    directories = [RunDirectory(path).require() for path in paths]
    if not directories:
        raise ValueError("Expected at least one finished run, but got none.")
    return [FinishedRun(directory, directory.read_result(), directory.read_config()) for directory in directories]


def group(runs: Iterable[FinishedRun], *, by: str) -> dict[str, list[FinishedRun]]:
    """Runs by recipe or model, in the order in which they come."""
    groups: dict[str, list[FinishedRun]] = {}
    for run in runs:
        groups.setdefault(getattr(run, by), []).append(run)
    return groups
