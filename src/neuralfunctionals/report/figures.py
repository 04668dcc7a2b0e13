"""The style of all pictures of a report: `INK`, `open_figure`, `open_grid`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

INK = "#333333"
_STYLE: dict[Any, Any] = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlesize": 10,
    "savefig.dpi": 150,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}


@contextmanager
def open_figure(
    out: str | os.PathLike[str],
    size: tuple[float, float],
    rows: int = 1,
    columns: int = 1,
    *,
    trim: bool = False,
    **options: Any,
) -> Iterator[tuple[Any, Any]]:
    """Opens a figure with this width and height and its panels; writes it to the file at the end, optionally trimmed.

    The options are further arguments of `Figure.subplots`.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        yield figure, figure.subplots(rows, columns, squeeze=False, **options)
        figure.savefig(out, bbox_inches="tight" if trim else None, pad_inches=0.08 if trim else None)


@contextmanager
def open_grid(
    out: str | os.PathLike[str], count: int, size: tuple[float, float], *, margin: float = 0.0, trim: bool = False
) -> Iterator[tuple[Any, Any]]:
    """Opens a figure with `count` panels of this width and height, up to three per row, and a margin for a legend."""
    columns = min(3, count)
    rows = -(-count // columns)
    whole = (margin + size[0] * columns, size[1] * rows)
    with open_figure(out, whole, rows, columns, trim=trim) as (figure, axes):
        panels = axes.flatten()
        for panel in panels[count:]:
            panel.set_visible(False)
        yield figure, panels[:count]
