"""Latents in two dimensions, coloured by class: `project`, `draw_latents`, `draw_points`."""

from __future__ import annotations

import os

import torch
from jaxtyping import Float, Int
from torch import Tensor

from neuralfunctionals.data import WeightDataset

# Axes: B latent arrays of M vectors of D numbers, F all numbers of an array.


def project(values: Float[Tensor, "B F"]) -> Float[Tensor, "B 2"]:
    """The two directions of largest variance, from an exact decomposition; signs chosen by the largest coordinate."""
    centred = (values - values.mean(0)).double()
    _, _, directions = torch.linalg.svd(centred, full_matrices=False)
    points = centred @ directions[:2].T
    largest = points.gather(0, points.abs().argmax(0, keepdim=True))
    return (points * largest.sign()).to(values.dtype)


def draw_latents(
    dataset: WeightDataset, out: str | os.PathLike[str], *, split: str = "test", limit: int = 2000
) -> None:
    """A map of a split's latent arrays: one point each, in the colour of its class.

    Args:
        dataset: A store of latents, as `nf encode` makes it.
        out: The picture's file.
        split: Which items.
        limit: Points at most, spread over the split.
    """
    draw_points(*labelled_latents(dataset, split=split, limit=limit), out)


def labelled_latents(
    dataset: WeightDataset, *, split: str = "test", limit: int = 2000
) -> tuple[Float[Tensor, "B M D"], Int[Tensor, "B"]]:
    """Latent arrays of a split and their classes; of many, some spread over the split."""
    chosen = dataset.split(split)
    if len(chosen) < 3:
        raise ValueError(f"Expected three or more items in the {split} split of {dataset.path}, but got {len(chosen)}.")
    items = chosen[torch.linspace(0, len(chosen) - 1, min(limit, len(chosen))).long()]
    if items.latents is None or items.label is None:
        raise ValueError(f"Expected latents and classes in {dataset.path}. Make them with nf encode.")
    return items.latents, items.label


def draw_points(latents: Float[Tensor, "B M D"], label: Int[Tensor, "B"], out: str | os.PathLike[str]) -> None:
    """A map of latent arrays: one point each, in the colour of its class.

    Args:
        latents: The arrays.
        label: Their classes.
        out: The picture's file.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    points = project(latents.flatten(1))
    figure = Figure(figsize=(5.4, 4.6), layout="constrained")
    panel = figure.subplots()
    for name in label.unique().tolist():
        own = points[label == name]
        panel.scatter(own[:, 0], own[:, 1], s=12, lw=0, alpha=0.8, color=colormaps["tab10"](name % 10), label=name)
    panel.set(xticks=[], yticks=[], xlabel="first direction", ylabel="second direction")
    panel.spines[:].set_color("#cccccc")
    panel.legend(title="class", frameon=False, fontsize=8, markerscale=1.6, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(out, dpi=150)
