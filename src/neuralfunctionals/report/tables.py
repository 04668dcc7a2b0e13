"""Tables, and how they are rendered: `Table`, `results_table`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from statistics import mean, stdev

from neuralfunctionals.errors import UserError
from neuralfunctionals.report.finished import FinishedRun, group
from neuralfunctionals.tasks.definition import Column, Published


@dataclass(frozen=True)
class Table:
    """A table: names of columns, and rows of cells."""

    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def to_markdown(self) -> str:
        """The table in Markdown."""
        lines = [self.names, ("---",) * len(self.names), *self.rows]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def to_html(self) -> str:
        """The table in escaped HTML, with numbers aligned right and equal neighbours of the first column merged."""
        classes = [_column_class([row[place] for row in self.rows]) for place in range(len(self.names))]
        head = "".join(f"<th{own}>{escape(name)}</th>" for name, own in zip(self.names, classes, strict=True))
        body, first = [], None
        for place, row in enumerate(self.rows):
            cells = "".join(f"<td{own}>{escape(cell)}</td>" for cell, own in zip(row[1:], classes[1:], strict=True))
            if row[0] != first:
                first = row[0]
                below = self.rows[place:]
                height = next((n for n, other in enumerate(below) if other[0] != first), len(below))
                cells = f'<td{classes[0]} rowspan="{height}">{escape(first)}</td>{cells}'
            body.append(f"<tr>{cells}</tr>")
        lines = "\n".join(body)
        table = f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{lines}\n</tbody>\n</table>"
        return f'<div class="sideways" tabindex="0">{table}</div>'


def _column_class(cells: Sequence[str]) -> str:
    """The class of a column of numbers, or of texts too long for one line."""
    if any(cells) and all(set(cell) <= set("0123456789.,±+-e ()%") for cell in cells):
        return ' class="number"'
    return ' class="long"' if any(len(cell) > 40 for cell in cells) else ""


def results_table(runs: Sequence[FinishedRun]) -> Table:
    """The results of runs of one task: a row for each model, with the spread over seeds and the paper's numbers."""
    families = group(runs, by="family")
    if len(families) != 1:
        raise UserError(f"Expected runs of one task, but got some of {', '.join(families) or 'none'}.")
    task = runs[0].task
    measured = [c for c in task.columns if isinstance(c, Column)]
    names = ("task", "model", "league", "parameters", "seeds", *(c.name for c in task.columns), "training, s")
    rows: list[tuple[str, ...]] = []
    last: object = None
    for recipe, model, same in _models(runs):
        if task.baseline is not None and isinstance(task.baseline[1], str):
            name, metric = task.baseline
            values = {c.name: _cell(c, [same[0].result[c.split][metric]]) for c in measured}
            if (recipe, values) != last:  # models of one recipe may have been measured on different networks
                last = recipe, values
                rows.append((recipe, name, "", "", "", *(values.get(c.name, "") for c in task.columns), ""))
        first = same[0].result
        seconds = mean(run.result["training_seconds"] for run in same)
        facts = (recipe, model, same[0].league, f"{first['parameters']:,}", str(len(same)))
        cells = (_fill(column, recipe, model, same) for column in task.columns)
        rows.append((*facts, *cells, f"{seconds:.0f}"))
    return Table(names, tuple(rows))


def _models(runs: Sequence[FinishedRun]) -> Iterator[tuple[str, str, list[FinishedRun]]]:
    """Recipe, model and runs; for each recipe, the models that only see weights come first, in their order."""
    for recipe, of_recipe in group(runs, by="recipe").items():
        leagues = group(of_recipe, by="league")
        for league in sorted(leagues, reverse=True):
            for model, same in group(leagues[league], by="model").items():
                yield recipe, model, same


def _fill(column: Column | Published, recipe: str, model: str, runs: Sequence[FinishedRun]) -> str:
    if isinstance(column, Column):
        return _cell(column, [run.result[column.split][column.metric] for run in runs])
    value = column.values.get(recipe, {}).get(model)
    if isinstance(value, tuple):
        return f"{value[0]:.{column.digits}f} ± {value[1]:.{column.digits}f}"
    return "" if value is None else f"{value:.{column.digits}f}"


def _cell(column: Column, values: Sequence[float]) -> str:
    """The mean and, for several seeds, its standard error."""
    digits, values = (1, [100 * value for value in values]) if column.percent else (4, values)
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{mean(values):.{digits}f} ± {stdev(values) / len(values) ** 0.5:.{digits}f}"
