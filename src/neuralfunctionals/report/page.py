"""An HTML page about finished runs, in one file: `write_report`."""

from __future__ import annotations

import base64
import json
import os
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from neuralfunctionals.errors import UserError
from neuralfunctionals.files.writing import write_whole
from neuralfunctionals.report.finished import FinishedRun, group, tell_apart
from neuralfunctionals.report.latent_map import Points, draw_points
from neuralfunctionals.report.origins import data_table, machines, run_table
from neuralfunctionals.report.pictures import draw_curves, draw_picture, drawable
from neuralfunctionals.report.tables import results_table
from neuralfunctionals.tasks.definition import Picture

_GENERATOR = '<meta name="generator" content="neuralfunctionals">'
_STYLE = Path(__file__).with_name("style.css")
_WIDE = 620
"""Pictures wider than this are not shrunk on a phone, but scrolled."""


def write_report(
    runs: Sequence[FinishedRun],
    out: str | os.PathLike[str],
    *,
    latents: Mapping[str, Points] | None = None,
    title: str = "Learning from the weights of networks",
    force: bool = False,
) -> None:
    """Writes the page, with questions, data, tables, pictures and provenance of runs, possibly of several tasks.

    Args:
        runs: Finished runs; see `read_runs`.
        out: The file, written atomically; an earlier report is replaced.
        latents: Maps of further latents by title; see `map_of`.
        title: The page's title.
        force: Whether to replace a file that is not a report.
    """
    out = Path(out)
    _require_replaceable(out, force=force)
    if not runs and not latents:
        raise UserError("Expected at least one finished run or store of latents, but got none.")
    runs = tell_apart(runs)
    parts = [_header(title, runs, latents or {})]
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder) / "picture.png"
        parts += [_section(own, scratch) for _, own in sorted(group(runs, by="family").items())]
        parts += [_latents_section(latents, scratch)] if latents else []
    parts += [_origins(runs)] if runs else []
    body = "\n".join(parts)
    page = (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n{_GENERATOR}\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_STYLE.read_text()}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )
    write_whole(out, page.encode())


def _require_replaceable(out: Path, *, force: bool) -> None:
    if out.is_dir():
        raise UserError(f"Expected a file for the report, but {out} is a directory. Choose a file such as report.html.")
    if not out.parent.is_dir():
        raise UserError(f"Expected a file in an existing directory, but there is no {out.parent}. Create it first.")
    if out.exists() and not force and _GENERATOR.encode() not in out.read_bytes()[:500]:
        raise UserError(f"{out} already exists and is not a report. Choose another file, or replace it with --force.")


def _header(title: str, runs: Sequence[FinishedRun], latents: Mapping[str, Any]) -> str:
    counts = [_count(len(runs), "run")] if runs else []
    counts += [_count(len(latents), "map") + " of latents"] if latents else []
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    found = [_finding(of_recipe) for of_recipe in group(runs, by="recipe").values()]
    return (
        f'<header>\n<h1>{escape(title)}</h1>\n<p class="quiet">{" and ".join(counts)}, {made}</p>\n'
        + (f'<ul class="findings">\n{"".join(found)}</ul>\n' if found else "")
        + "</header>"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _finding(runs: Sequence[FinishedRun]) -> str:
    """The main result of a recipe: the test metric of the model that is best on the validation networks."""
    task = runs[0].task

    def average(same: Sequence[FinishedRun], split: str) -> float:
        return sum(run.result[split][task.metric] for run in same) / len(same)

    models = group(runs, by="model")
    model = (max if task.higher_is_better else min)(models, key=lambda model: average(models[model], "val"))
    known = models[model][0].baseline
    beside = "" if known is None else f' <span class="quiet">{escape(known[0])}: {known[1]:.3f}</span>'
    return (
        f'<li><span class="quiet">{escape(runs[0].recipe)}</span><br>'
        f"<strong>{average(models[model], 'test'):.3f}</strong> test {escape(task.metric_name)}<br>"
        f"{escape(model)}{'<br>' if beside else ''}{beside}</li>\n"
    )


def _section(runs: Sequence[FinishedRun], scratch: Path) -> str:
    task = runs[0].task
    parts = [f"<section>\n<h2>{escape(task.title)}</h2>", f"<p>{escape(task.question)}</p>"]
    with _explained("Results"):
        table = results_table(runs)
    parts += ["<h3>Results</h3>", table.to_html()]
    notes = ["The best step is chosen by validation and measured once on test networks, which no model has trained on."]
    if any("paper" in name for name in table.names) and any(run.scale != "paper" for run in runs):
        notes.append("The paper's models are larger and were trained for longer, on more networks.")
    parts.append(f'<p class="quiet">{escape(" ".join(notes))}</p>')
    parts += [_figure(picture, drawable(picture, runs), len(runs), scratch) for picture in task.pictures]
    parts += [_figure(_CURVES, [run for run in runs if run.curve], len(runs), scratch)]
    parts += ["<h3>The data</h3>", data_table(runs).to_html(), "</section>"]
    return "\n".join(part for part in parts if part)


_CURVES = Picture(
    "Training curves",
    "Validation metric against training networks seen (left) and seconds of training (right). The best step is kept.",
    (),
    draw=draw_curves,
)


def _figure(picture: Picture, shown: Sequence[FinishedRun], count: int, scratch: Path) -> str:
    """A picture of the runs that have its arrays, with a note if some of the `count` runs do not."""
    left = count - len(shown)
    note = f" The files for it are missing from {_count(left, 'run')} of {count}." if left else ""
    if not shown:
        return f'<h3>{escape(picture.title)}</h3>\n<p class="quiet">No picture.{escape(note)}</p>'
    return _embed(picture.title, picture.caption + note, lambda path: draw_picture(picture, shown, path), scratch)


def _embed(title: str, caption: str, draw: Callable[[Path], None], scratch: Path) -> str:
    from matplotlib import rc_context

    with _explained(title), rc_context({"text.parse_math": False}):  # names of models and recipes are not formulas
        draw(scratch)
    data = scratch.read_bytes()
    width, height = (round(size / 1.5) for size in struct.unpack(">II", data[16:24]))
    wide = ' class="wide"' if width > _WIDE else ""
    source = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return (
        f'<h3>{escape(title)}</h3>\n<figure>\n<div class="sideways" tabindex="0"><img{wide} src="{source}" '
        f'width="{width}" height="{height}" alt="{escape(caption)}"></div>\n'
        f"<figcaption>{escape(caption)}</figcaption>\n</figure>"
    )


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Reports which part could not be made, if files are incomplete or wrong."""
    try:
        yield
    except (IndexError, KeyError, RuntimeError, TypeError) as error:
        raise UserError(f"Cannot make '{what}' from these runs: {error!r}. Expected runs of nf train.") from error


def _latents_section(latents: Mapping[str, Points], scratch: Path) -> str:
    question = (
        "Each point is the array of one test network, in the two directions along which arrays differ most; the colour "
        "is the class. Classes were not used to make the arrays: where colours are separated, a classifier of the "
        "arrays can tell them apart."
    )
    maps = _embed("Stores of latents", "Latents of test networks.", partial(draw_points, latents), scratch)
    return "\n".join(["<section>\n<h2>Maps of latents</h2>", f"<p>{escape(question)}</p>", maps, "</section>"])


def _origins(runs: Sequence[FinishedRun]) -> str:
    configs = "\n".join(
        f"<details><summary>{escape(run.name)}/run.json</summary>"
        f"<pre>{escape(json.dumps(run.config, indent=2))}</pre></details>"
        for run in runs
    )
    machine = "".join(f"<li>{escape(line)}</li>" for line in machines(runs))
    table = run_table(runs).to_html()
    return f"<section>\n<h2>Where the numbers come from</h2>\n{table}\n<ul>{machine}</ul>\n{configs}\n</section>"
