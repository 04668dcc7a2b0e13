"""Colours and small drawing helpers that the pictures share."""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

INK, GREY, PAPER = "#1f2933", "#7b8794", "#ffffff"
QUERY, KEY, OTHER = "#e8590c", "#74c0fc", "#dee3e8"
GOOD, BAD = "#2b8a3e", "#c92a2a"
NEURONS = ["#4263eb", "#f08c00", "#2f9e44", "#e64980", "#0c8599", "#862e9c"]

plt.rcParams.update({"font.size": 11, "text.color": INK, "axes.edgecolor": GREY, "mathtext.fontset": "cm"})


def blank(axes: Axes, width: float, height: float) -> None:
    """An empty sheet, one unit the same in both directions."""
    axes.set(xlim=(0, width), ylim=(0, height), aspect="equal")
    axes.axis("off")


def box(axes: Axes, x: float, y: float, width: float, height: float, **style) -> None:
    style = {"facecolor": OTHER, "edgecolor": INK, "linewidth": 1.0} | style
    axes.add_patch(Rectangle((x, y), width, height, **style))


def card(axes: Axes, x: float, y: float, width: float, height: float, **style) -> None:
    style = {"facecolor": "#f4f6f8", "edgecolor": "#ced4da", "linewidth": 1.0} | style
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0,rounding_size=0.18", **style))


def arrow(axes: Axes, start: tuple[float, float], stop: tuple[float, float], *, bend: float = 0.0, **style) -> None:
    style = {"color": INK, "linewidth": 1.6, "arrowstyle": "-|>", "mutation_scale": 14} | style
    axes.add_patch(FancyArrowPatch(start, stop, connectionstyle=f"arc3,rad={bend}", **style))
