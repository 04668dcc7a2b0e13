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

    @property
    def recipe(self) -> str:
        return self.result["recipe"]

    @property
    def model(self) -> str:
        return self.result["model"]


def read_runs(paths: Iterable[str | os.PathLike[str]]) -> list[FinishedRun]:
    """The runs in these directories."""
    directories = [RunDirectory(path).require() for path in paths]
    if not directories:
        raise ValueError("Expected at least one finished run, but got none.")
    return [FinishedRun(directory, directory.read_result()) for directory in directories]


def group(runs: Iterable[FinishedRun], *, by: str) -> dict[str, list[FinishedRun]]:
    """Runs by recipe or model, in the order in which they come."""
    groups: dict[str, list[FinishedRun]] = {}
    for run in runs:
        groups.setdefault(getattr(run, by), []).append(run)
    return groups
