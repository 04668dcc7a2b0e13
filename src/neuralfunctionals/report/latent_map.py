"""Maps of latents in two dimensions, coloured by class: `draw_maps`, `draw_latents`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from jaxtyping import Float, Int
from torch import Tensor

from neuralfunctionals.data import WeightDataset
from neuralfunctionals.errors import UserError
from neuralfunctionals.report.figures import open_grid
from neuralfunctionals.report.finished import FinishedRun
from neuralfunctionals.tasks.latents import project

# Axes: B latent arrays.

Points = tuple[Float[Tensor, "B 2"], Int[Tensor, "B"]]
"""Points on a map, and their classes."""


def map_of(dataset: WeightDataset, *, split: str = "test", limit: int = 2000) -> Points:
    """Projects the latent arrays of a split to two dimensions.

    Args:
        dataset: A store of latents, as made by `nf encode`.
        split: The split to use.
        limit: Maximum number of points, evenly spaced over the split.
    """
    chosen = dataset.split(split)
    if len(chosen) < 3:
        raise UserError(f"Expected three or more items in the {split} split of {dataset.path}, but got {len(chosen)}.")
    items = chosen.spread(limit)[:]
    if items.latents is None or items.label is None:
        raise UserError(f"Expected latents and classes in {dataset.path}. Make them with nf encode.")
    return project(items.latents.flatten(1)), items.label


def draw_latents(
    dataset: WeightDataset, out: str | os.PathLike[str], *, split: str = "test", limit: int = 2000
) -> None:
    """Draws a map of the latent arrays of a split, coloured by class; arguments as for `map_of`."""
    draw_points({dataset.path.name: map_of(dataset, split=split, limit=limit)}, out)


def draw_maps(runs: Sequence[FinishedRun], out: str | os.PathLike[str]) -> None:
    """Draws the maps of test networks that autoencoder runs saved, one panel per run."""
    draw_points({run.name: (run.samples["map"], run.samples["map_label"]) for run in runs}, out)


def draw_points(maps: Mapping[str, Points], out: str | os.PathLike[str]) -> None:
    """Draws maps by title: one point per latent array, coloured by class."""
    from matplotlib import colormaps

    with open_grid(out, len(maps), (4.4, 4.6), margin=1.0) as (figure, panels):
        for panel, (title, (points, label)) in zip(panels, maps.items(), strict=True):
            for name in label.unique().tolist():
                own, colour = points[label == name], colormaps["tab10"](name % 10)
                panel.scatter(own[:, 0], own[:, 1], s=12, lw=0, alpha=0.8, color=colour, label=name)
            panel.set(xticks=[], yticks=[], xlabel="first direction", ylabel="second direction")
            panel.set_title(title, fontsize=9)
            panel.spines[:].set(visible=True, color="#cccccc")
        handles, labels = panels[0].get_legend_handles_labels()
        place = {"title": "class", "loc": "outside right center"}
        figure.legend(handles, labels, **place, frameon=False, fontsize=8, markerscale=1.6)
