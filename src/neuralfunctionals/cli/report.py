"""`nf report`: one HTML page about finished runs."""

from __future__ import annotations

import os
from typing import Any

from neuralfunctionals.cli.command import Add, Command

# Torch and everything that needs it is imported inside the functions, so that --help is fast.


def _add_report_arguments(add: Add) -> None:
    text = "directories of finished runs, names of nf models, records of runs (.jsonl), and stores of latents"
    add("runs", nargs="+", metavar="RUN", help=text)
    add("--out", required=True, metavar="FILE", help="the page, such as report.html; an earlier report is replaced")
    add("--force", action="store_true", help="also replace a file that is not a report")


def _report(runs: list[str], out: str, *, force: bool) -> dict[str, Any]:
    from neuralfunctionals.data import Store, WeightDataset
    from neuralfunctionals.report import read_runs, write_report
    from neuralfunctionals.report.latent_map import map_of
    from neuralfunctionals.run_directory import RunDirectory
    from neuralfunctionals.shipped import find_shipped

    paths = [os.fspath(find_shipped(path)) for path in runs]
    stores = [path for path in paths if not RunDirectory(path).is_run and Store.is_at(path)]
    latents = {os.path.basename(os.path.abspath(path)): map_of(WeightDataset(path)) for path in stores}
    chosen = [path for path in paths if path not in stores]
    found = read_runs(chosen) if chosen else []
    write_report(found, out, latents=latents, force=force)
    return {"runs": len(found), "latents": len(latents), "bytes": os.path.getsize(out), "out": out}


COMMANDS = {
    "report": Command(
        "Write one HTML page about finished runs: tables, pictures, curves, and how they were made.",
        "nf report /tmp/run --out /tmp/report.html",
        _add_report_arguments,
        _report,
    ),
}
