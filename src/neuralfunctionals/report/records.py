"""Many runs, without models and samples, in one JSON Lines file: `read_records`, `write_records`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, TypedDict

from neuralfunctionals.errors import UserError
from neuralfunctionals.files.strict_json import JsonError, conform, parse_json
from neuralfunctionals.files.writing import write_whole
from neuralfunctionals.run_directory import RunConfig, RunResult

if TYPE_CHECKING:
    from neuralfunctionals.report.finished import FinishedRun

RECORDS = ".jsonl"
"""Extension of such files."""
_LOSSES = 100
"""Maximum number of rows of losses to keep of a curve."""


class _Curve(TypedDict):
    """The rows of `metrics.csv`, with null for empty cells."""

    names: list[str]
    rows: list[list[float | None]]


class _Record(TypedDict):
    """One line."""

    name: str
    config: RunConfig
    result: RunResult
    curve: _Curve


def write_records(runs: Iterable[FinishedRun], out: str | os.PathLike[str]) -> None:
    """Writes config, result and curve of finished runs, one line each.

    The losses of a long curve are averaged over several rows to keep the line small; every validation is kept.

    Args:
        runs: Finished runs, as returned by `read_runs`.
        out: The file, whose name ends in `.jsonl`; `read_runs` and `nf report` read it like run directories.
    """
    lines = []
    for run in runs:
        curve = _thin(run.curve)
        names = list(dict.fromkeys(name for row in curve for name in row))
        rows = [[row.get(name) for name in names] for row in curve]
        data = run.config["data"]
        if "path" in data:  # the full path means nothing on other machines
            data = {**data, "path": Path(data["path"]).name}
        record = {"config": {**run.config, "data": data}, "result": run.result, "curve": {"names": names, "rows": rows}}
        lines.append(json.dumps({"name": run.name, **record}, separators=(",", ":")))
    write_whole(Path(out), "".join(f"{line}\n" for line in lines).encode())


def _thin(curve: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Averages the losses to at most `_LOSSES` rows; keeps all validations."""
    training = [row for row in curve if "loss" in row]
    size = max(1, -(-len(training) // _LOSSES))
    kept = [row for row in curve if "loss" not in row]
    for start in range(0, len(training), size):
        part = training[start : start + size]
        kept.append({**part[-1], "loss": mean(row["loss"] for row in part)})
    kept.sort(key=lambda row: (row["step"], "loss" not in row))
    return [{n: float(f"{x:.6g}") if isinstance(x, float) else x for n, x in row.items()} for row in kept]


def read_records(file: Path) -> list[dict[str, Any]]:
    """Reads the runs of a file: `name`, `config`, `result`, and `curve` as rows of named cells."""
    found = []
    for number, line in enumerate(file.read_text().splitlines(), 1):
        where = f"{file}, line {number}"
        try:
            record = conform(parse_json(line, where), _Record, where)
        except JsonError as error:
            raise UserError(f"{error} Expected a file written by write_records.") from error
        names, rows = record["curve"]["names"], record["curve"]["rows"]
        curve = [{n: cell for n, cell in zip(names, row, strict=False) if cell is not None} for row in rows]
        found.append({**record, "curve": curve})
    return found
