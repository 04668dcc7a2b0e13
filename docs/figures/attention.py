"""The three terms of weight-space self-attention, for one weight.

python docs/figures/attention.py docs/pictures/idea_attention.png
"""

import sys

import matplotlib.pyplot as plt
from colours import GREY, INK, KEY, OTHER, QUERY, arrow, blank, box, card
from matplotlib.axes import Axes

AFTER, HERE, BEFORE, FIRST = 4, 5, 4, 3  # neurons of layers i+1, i, i-1, i-2
ROW, COLUMN = 1, 2  # the weight that is computed
CELL = 0.4


class Matrix:
    """A weight matrix on the sheet: a row for each outgoing neuron, a column for each incoming one."""

    def __init__(self, axes: Axes, x: float, middle: float, rows: int, columns: int, name: str) -> None:
        self.axes, self.x, self.rows, self.columns, self.name = axes, x, rows, columns, name
        self.top = middle + rows * CELL / 2
        self.bottom, self.right = self.top - rows * CELL, x + columns * CELL
        self.colours = [[OTHER] * columns for _ in range(rows)]

    def fill(self, colour: str) -> None:
        self.colours = [[colour] * self.columns for _ in range(self.rows)]

    def cell(self, row: int, column: int) -> tuple[float, float]:
        return self.x + column * CELL, self.top - (row + 1) * CELL

    def draw(self, stripes: str) -> None:
        """Stripes are the vectors that meet: rows, columns, or single entries."""
        dx = 0.05 if stripes in ("columns", "entries") else 0.0
        dy = 0.05 if stripes in ("rows", "entries") else 0.0
        for r in range(self.rows):
            for c in range(self.columns):
                x, y = self.cell(r, c)
                style = {"facecolor": self.colours[r][c], "edgecolor": "white", "linewidth": 0.7}
                box(self.axes, x + dx, y + dy, CELL - 2 * dx, CELL - 2 * dy, **style)
        self.axes.text((self.x + self.right) / 2, self.top + 0.12, self.name, ha="center", va="bottom", fontsize=15)


def panel(axes: Axes, y: float, number: str, title: str, text: str) -> tuple[Matrix, Matrix, Matrix]:
    """A card with its text on the left; three matrices, in the order in which they multiply, on the right."""
    card(axes, 0.1, y, 14.9, 3.3)
    axes.text(0.45, y + 2.5, number, fontsize=20, weight="bold", color=QUERY, va="center")
    axes.text(0.95, y + 2.5, title, fontsize=14, weight="bold", va="center")
    axes.text(0.45, y + 1.25, text, fontsize=12, va="center", linespacing=1.5)
    middle = y + 1.4
    return (
        Matrix(axes, 8.2, middle, AFTER, HERE, "$W^{(i+1)}$"),
        Matrix(axes, 11.0, middle, HERE, BEFORE, "$W^{(i)}$"),
        Matrix(axes, 13.4, middle, BEFORE, FIRST, "$W^{(i-1)}$"),
    )


def mark(matrix: Matrix) -> tuple[float, float]:
    """A frame around the weight that is computed; returns its middle."""
    x, y = matrix.cell(ROW, COLUMN)
    box(matrix.axes, x, y, CELL, CELL, facecolor="none", edgecolor=INK, linewidth=2.4, zorder=5)
    return x + CELL / 2, y + CELL / 2


def draw_rows(axes: Axes, y: float) -> None:
    text = (
        "Row $j$ of $W^{(i)}$ asks the rows of $W^{(i)}$ and the\n"
        "columns of $W^{(i-1)}$: all of them run over the\nsame neurons, those between the two."
    )
    after, here, before = panel(axes, y, "1", "Rows meet the layer before", text)
    here.colours = [[QUERY if r == ROW else KEY] * here.columns for r in range(here.rows)]
    before.fill(KEY)
    after.draw("none")
    here.draw("rows")
    before.draw("columns")
    _, middle = mark(here)
    arrow(axes, (before.x - 0.05, before.top - 0.95), (here.right + 0.04, middle), bend=0.3, color=GREY)


def draw_columns(axes: Axes, y: float) -> None:
    text = (
        "Column $k$ of $W^{(i)}$ asks the columns of $W^{(i)}$ and\n"
        "the rows of $W^{(i+1)}$. Here and above, the bias\nof the neurons they share answers too."
    )
    after, here, before = panel(axes, y, "2", "Columns meet the next layer", text)
    here.colours = [[QUERY if c == COLUMN else KEY for c in range(here.columns)] for _ in range(here.rows)]
    after.fill(KEY)
    after.draw("rows")
    here.draw("columns")
    before.draw("none")
    middle, _ = mark(here)
    arrow(axes, (after.right - 0.6, after.bottom - 0.02), (middle, here.bottom), bend=0.22, color=GREY)


def draw_entries(axes: Axes, y: float) -> None:
    text = (
        "The weight $W^{(i)}_{jk}$ asks all weights and biases.\n"
        "That is quadratic; by default each layer is\nreplaced by the means of both."
    )
    after, here, before = panel(axes, y, "3", "A weight meets the whole network", text)
    for matrix in (after, here, before):
        matrix.fill(KEY)
    here.colours[ROW][COLUMN] = QUERY
    for matrix in (after, here, before):
        matrix.draw("entries")
    x, middle = mark(here)
    arrow(axes, (before.x - 0.03, before.top - 0.85), (x + CELL / 2 + 0.02, middle), bend=0.2, color=GREY)
    arrow(axes, (after.right + 0.03, after.top - 0.85), (x - CELL / 2 - 0.02, middle), bend=-0.2, color=GREY)


def main(out: str) -> None:
    figure, axes = plt.subplots(figsize=(11.6, 8.9))
    blank(axes, 15.1, 11.5)
    draw_rows(axes, 7.3)
    draw_columns(axes, 3.75)
    draw_entries(axes, 0.2)
    frame = {"edgecolor": INK, "linewidth": 2.4}
    for x, colour, text, style in [
        (0.1, QUERY, "asks", {}),
        (1.5, KEY, "answers", {}),
        (3.3, OTHER, "takes no part", {}),
        (6.0, "none", "the weight that is computed: the sum of all three", frame),
    ]:
        box(axes, x, 11.0, 0.32, 0.32, facecolor=colour, **({"edgecolor": GREY, "linewidth": 0.6} | style))
        axes.text(x + 0.5, 11.16, text, va="center", fontsize=12)
    figure.savefig(out, dpi=120, bbox_inches="tight", pad_inches=0.08)


if __name__ == "__main__":
    main(sys.argv[1])
