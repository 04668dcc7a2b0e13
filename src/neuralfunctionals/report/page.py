"""One HTML page about finished runs that needs nothing but itself: `write_report`."""

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

import safetensors
from torch import Tensor

from neuralfunctionals.data.files import write_whole
from neuralfunctionals.report.families import FAMILIES, Family, Picture, tell_apart
from neuralfunctionals.report.finished import FinishedRun, group
from neuralfunctionals.report.latent_map import draw_points
from neuralfunctionals.report.origins import data_rows, machines, run_rows

_GENERATOR = '<meta name="generator" content="neuralfunctionals">'
_STYLE = Path(__file__).with_name("style.css")
_WIDE = 620
"""Pictures wider than this keep that width on a phone, where they are moved sideways."""


def write_report(
    runs: Sequence[FinishedRun],
    out: str | os.PathLike[str],
    *,
    latents: Mapping[str, tuple[Tensor, Tensor]] | None = None,
    title: str = "What was learned from the weights of networks",
    force: bool = False,
) -> None:
    """Writes the page: questions, data, tables, pictures and origins of runs, which may be of several kinds.

    Args:
        runs: Finished runs, see `read_runs`.
        out: The file, written whole or not at all; an earlier report is replaced.
        latents: Latent arrays and their classes, by title, to be drawn as maps.
        title: The page's title.
        force: Whether to replace a file that is no report.
    """
    out = Path(out)
    _require_replaceable(out, force=force)
    for run in runs:
        _require_readable(run)
    if not runs and not latents:
        raise ValueError("Expected at least one finished run or store of latents, but got none.")
    runs = tell_apart(runs)
    families = {name: [run for run in runs if run.family == name] for name in FAMILIES}
    parts = [_header(title, runs, latents or {})]
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder) / "picture.png"
        parts += [_section(FAMILIES[name], own, scratch) for name, own in families.items() if own]
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
        raise ValueError(f"Expected a file for the report, but {out} is a directory. Name a file such as report.html.")
    if not out.parent.is_dir():
        raise ValueError(f"Expected a file in a directory that exists, but there is no {out.parent}. Make it first.")
    if out.exists() and not force and _GENERATOR.encode() not in out.read_bytes()[:500]:
        raise ValueError(f"{out} is there already and is no report. Name another file, or replace it with --force.")


def _require_readable(run: FinishedRun) -> None:
    """Raises unless the run has all that a report tells of it."""
    where = run.directory.path
    result: Any = run.result
    numbers = {"parameters": int, "seed": int, "training_seconds": (int, float), "steps": int, "best_step": int}
    is_right = isinstance(result, dict)
    is_right = is_right and all(isinstance(result.get(name), str) for name in ("recipe", "model", "scale"))
    is_right = is_right and all(isinstance(result.get(name), kind) for name, kind in numbers.items())
    is_right = is_right and all(isinstance(result.get(split), dict) for split in ("train", "val", "test"))
    if not is_right:
        raise ValueError(f"Expected the result of nf train, but {where}/result.json has other contents.")
    if run.family not in FAMILIES:
        raise ValueError(f"Expected a run of {', '.join(FAMILIES)}, but {where} is one of '{run.recipe}'.")
    for split in ("train", "val", "test"):
        if not all(isinstance(value, (int, float)) for value in result[split].values()):
            raise ValueError(f"Expected numbers for '{split}' in {where}/result.json, but got something else.")
        if FAMILIES[run.family].metric not in result[split]:
            raise ValueError(f"Expected {FAMILIES[run.family].metric} for '{split}' in {where}/result.json.")
    config: Any = run.config
    parts = {name: config.get(name) if isinstance(config, dict) else None for name in ("run", "data")}
    inner = [parts["run"].get(name) for name in ("task", "training")] if isinstance(parts["run"], dict) else [None]
    if not all(isinstance(part, dict) for part in (*parts.values(), *inner)):
        raise ValueError(f"Expected the config of nf train, but {where}/run.json has other contents.")
    try:
        if not all("seconds" in row for row in run.directory.read_curve()):
            raise ValueError("rows of the curve have no seconds")
        _ = run.sample_names
    except (KeyError, TypeError, ValueError, safetensors.SafetensorError) as error:
        raise ValueError(
            f"Cannot read the curve and samples of {where}: {error}. Expected what nf train wrote."
        ) from error


def _header(title: str, runs: Sequence[FinishedRun], latents: Mapping[str, Any]) -> str:
    counts = [_count(len(runs), "run")] if runs else []
    counts += [_count(len(latents), "map") + " of latents"] if latents else []
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    found = [_finding(FAMILIES[of_recipe[0].family], of_recipe) for of_recipe in group(runs, by="recipe").values()]
    return (
        f'<header>\n<h1>{escape(title)}</h1>\n<p class="quiet">{" and ".join(counts)}, {made}</p>\n'
        + (f'<ul class="findings">\n{"".join(found)}</ul>\n' if found else "")
        + "</header>"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _finding(family: Family, runs: Sequence[FinishedRun]) -> str:
    """What came out for a recipe: the model that is best on the validation networks, on the test networks."""

    def average(same: Sequence[FinishedRun], split: str) -> float:
        return sum(run.result[split][family.metric] for run in same) / len(same)

    models = group(runs, by="model")
    model = (max if family.higher_is_better else min)(models, key=lambda model: average(models[model], "val"))
    known = family.reference(models[model][0], "test")
    beside = "" if known is None else f' <span class="quiet">{escape(known[0])}: {known[1]:.3f}</span>'
    return (
        f'<li><span class="quiet">{escape(runs[0].recipe)}</span><br>'
        f"<strong>{average(models[model], 'test'):.3f}</strong> test {escape(family.metric_name)}<br>"
        f"{escape(model)}{'<br>' if beside else ''}{beside}</li>\n"
    )


def _section(family: Family, runs: Sequence[FinishedRun], scratch: Path) -> str:
    parts = [f"<section>\n<h2>{escape(family.title)}</h2>", f"<p>{escape(family.question)}</p>"]
    with _explained("Results"):
        table = _markdown_table(family.table(runs))
    parts += ["<h3>Results</h3>", table]
    notes = ["The best step is chosen by validation and measured once on test networks, which no model has seen."]
    if any(", canonical" in run.model for run in runs):
        notes.append("Models marked canonical see networks without the signs and phases that change nothing they show.")
    if "paper" in table and any(run.scale != "paper" for run in runs):
        notes.append("The paper's models are larger and were trained for longer, on more networks.")
    parts.append(f'<p class="quiet">{escape(" ".join(notes))}</p>')
    parts += [_figure(picture, runs, scratch) for picture in family.pictures]
    parts += ["<h3>The data</h3>", _table(*data_rows(runs)), "</section>"]
    return "\n".join(part for part in parts if part)


def _figure(picture: Picture, runs: Sequence[FinishedRun], scratch: Path) -> str:
    """The picture of those runs that have what it shows."""
    shown = [run for run in runs if set(picture.needs) <= set(run.sample_names)]
    if not picture.needs:
        shown = [run for run in runs if run.directory.curve_file.is_file()]
    left = len(runs) - len(shown)
    note = f" {_count(left, 'run')} of {len(runs)} came without these files." if left else ""
    if not shown:
        return f'<h3>{escape(picture.title)}</h3>\n<p class="quiet">No picture:{escape(note)}</p>'
    return _embed(picture.title, picture.caption + note, lambda path: picture.draw(shown, path), scratch)


def _embed(title: str, caption: str, draw: Callable[[Path], None], scratch: Path) -> str:
    from matplotlib import rc_context

    with _explained(title), rc_context({"text.parse_math": False}):  # names of models and recipes are no formulas
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
    """Says what could not be made from files that lack something, or hold something else."""
    try:
        yield
    except (IndexError, KeyError, RuntimeError, TypeError) as error:
        raise ValueError(f"Cannot make '{what}' from these runs: {error!r}. Expected what nf train wrote.") from error


def _latents_section(latents: Mapping[str, tuple[Tensor, Tensor]], scratch: Path) -> str:
    question = (
        "Each point is the array of one test network, in the two directions along which arrays differ most; the colour "
        "is the class of what the network shows. Classes were not used to make the arrays: where colours lie "
        "apart, they are easy to tell apart from the arrays alone."
    )
    maps = [
        _embed(name, f"Latents of {name}: {len(points[1])} test networks.", partial(draw_points, *points), scratch)
        for name, points in latents.items()
    ]
    return "\n".join(["<section>\n<h2>A map of latents</h2>", f"<p>{escape(question)}</p>", *maps, "</section>"])


def _origins(runs: Sequence[FinishedRun]) -> str:
    configs = "\n".join(
        f"<details><summary>{escape(run.directory.path.name)}/run.json</summary>"
        f"<pre>{escape(json.dumps(run.config, indent=2))}</pre></details>"
        for run in runs
    )
    machine = "".join(f"<li>{escape(line)}</li>" for line in machines(runs))
    table = _table(*run_rows(runs))
    return f"<section>\n<h2>Where the numbers come from</h2>\n{table}\n<ul>{machine}</ul>\n{configs}\n</section>"


def _markdown_table(text: str) -> str:
    """A Markdown table as HTML."""
    lines = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in text.strip().splitlines()]
    return _table(lines[0], lines[2:])


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of numbers to the right, equal cells of the first column that follow each other as one; all escaped."""
    classes = [_column_class([row[place] for row in rows if place < len(row)]) for place in range(len(names))]
    head = "".join(f"<th{own}>{escape(name)}</th>" for name, own in zip(names, classes, strict=True))
    body, first = [], None
    for place, row in enumerate(rows):
        cells = "".join(f"<td{own}>{escape(cell)}</td>" for cell, own in zip(row[1:], classes[1:], strict=False))
        if row[0] != first:
            first = row[0]
            height = next((n for n, other in enumerate(rows[place:]) if other[0] != first), len(rows) - place)
            cells = f'<td{classes[0]} rowspan="{height}">{escape(first)}</td>{cells}'
        body.append(f"<tr>{cells}</tr>")
    lines = "\n".join(body)
    table = f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{lines}\n</tbody>\n</table>"
    return f'<div class="sideways" tabindex="0">{table}</div>'


def _column_class(cells: Sequence[str]) -> str:
    """Numbers, or texts too long for one line."""
    if any(cells) and all(set(cell) <= set("0123456789.,±+-e ()%") for cell in cells):
        return ' class="number"'
    return ' class="long"' if any(len(cell) > 40 for cell in cells) else ""
