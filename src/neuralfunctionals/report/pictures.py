"""Pictures of finished runs: `draw_edits`, `draw_reconstructions`, `draw_curves`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neuralfunctionals.report.finished import FinishedRun, group

_COLOURS = {
    "nft": "#c1440e",
    "nft-hnp": "#e39b6d",
    "nfn": "#2a6f97",
    "nfn-np": "#2a6f97",
    "nfn-hnp": "#61a5c2",
    "spatial-nfn": "#5a8f69",
    "dws": "#8d6a9f",
    "neuron-graph": "#d4a017",
    "latent": "#333333",
}
_INK = "#333333"


def draw_edits(runs: Sequence[FinishedRun], out: str | os.PathLike[str], *, num_samples: int = 6) -> None:
    """Original, target and what each model's edit shows, for every recipe (the paper's Figure 4).

    Args:
        runs: Finished runs of `edit/` recipes; of several seeds the first is shown.
        out: The picture's file.
        num_samples: Networks of each recipe.
    """
    _draw_samples(runs, out, num_samples, above={"original": "original", "target": "target"}, each="edited")


def draw_reconstructions(runs: Sequence[FinishedRun], out: str | os.PathLike[str], *, num_samples: int = 6) -> None:
    """The INR, what each encoder's decoded patches show, and the true image (the paper's Figure 3).

    Args:
        runs: Finished runs of `inr2array/` recipes; of several seeds the first is shown.
        out: The picture's file.
        num_samples: Networks of each recipe.
    """
    _draw_samples(runs, out, num_samples, above={"INR": "original"}, each="reconstruction", below={"image": "image"})


def _draw_samples(
    runs: Sequence[FinishedRun],
    out: str | os.PathLike[str],
    num_samples: int,
    *,
    above: Mapping[str, str],
    each: str,
    below: Mapping[str, str] | None = None,
) -> None:
    """One panel for each recipe: rows that all models share above and below, and between them one of each model."""
    from matplotlib.figure import Figure

    below = below or {}
    recipes = group(runs, by="recipe")
    height = max(len(above) + len(below) + len(group(of_recipe, by="model")) for of_recipe in recipes.values())
    figure = Figure(figsize=(2.2 + 0.72 * num_samples * len(recipes), 0.5 + 0.74 * height), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(recipes), squeeze=False)[0])
    for panel, (recipe, of_recipe) in zip(panels, recipes.items(), strict=True):
        models = group(of_recipe, by="model")
        samples = {model: same[0].directory.read_samples() for model, same in models.items()}
        first = next(iter(samples.values()))
        rows = {label: first[name] for label, name in above.items()}
        rows |= {model: of_model[each] for model, of_model in samples.items()}
        rows |= {label: first[name] for label, name in below.items()}
        panel.imshow(_tile([row[:num_samples] for row in rows.values()]), cmap="gray", vmin=0, vmax=1)
        size = next(iter(rows.values())).shape[1] + 1
        panel.set_yticks([size * (i + 0.5) for i in range(len(rows))], list(rows))
        panel.set_xticks([])
        panel.tick_params(length=0, labelcolor=_INK)
        panel.spines[:].set_visible(False)
        panel.set_title(recipe, fontsize=10, color=_INK)
    figure.savefig(out, dpi=150)


def _tile(rows: Sequence[Tensor]) -> np.ndarray:
    """Rows of pictures `(B, H, W, C)` in [-1, 1] as one picture in [0, 1], a white pixel between them."""
    framed = [torch.nn.functional.pad(row.clamp(-1, 1) / 2 + 0.5, (0, 0, 0, 1, 0, 1), value=1.0) for row in rows]
    picture = torch.cat([torch.cat(list(row), dim=1) for row in framed], dim=0).numpy()
    return picture[..., 0] if picture.shape[-1] == 1 else picture


def draw_curves(runs: Sequence[FinishedRun], out: str | os.PathLike[str], *, metric: str = "mse") -> None:
    """The validation metric of every run against steps and against seconds of training, one row for each recipe.

    Args:
        runs: Finished runs; seeds of one model share a colour.
        out: The picture's file.
        metric: Which metric; `mse_no_edit` is drawn beside `mse`.
    """
    from matplotlib.figure import Figure

    recipes = group(runs, by="recipe")
    figure = Figure(figsize=(8.5, 0.6 + 2.1 * len(recipes)), layout="constrained")
    axes = figure.subplots(len(recipes), 2, squeeze=False, sharey="row")
    for row, (recipe, of_recipe) in zip(axes, recipes.items(), strict=True):
        for panel, against in zip(row, ("step", "seconds"), strict=True):
            _draw_panel(panel, of_recipe, against, metric)
        row[0].set_title(recipe, loc="left", fontsize=10, color=_INK)
        row[0].set_ylabel(f"validation {metric}")
    axes[-1][0].set_xlabel("steps")
    axes[-1][1].set_xlabel("seconds of training")
    axes[0][1].legend(frameon=False, fontsize=9)
    figure.savefig(out, dpi=150)


def _draw_panel(panel: Any, runs: Sequence[FinishedRun], against: str, metric: str) -> None:
    for model, same in group(runs, by="model").items():
        for place, run in enumerate(same):
            rows = [row for row in run.directory.read_curve() if f"val/{metric}" in row]
            values = [row[f"val/{metric}"] for row in rows]
            label = model if place == 0 else None
            colour = _COLOURS.get(model, _INK)
            panel.plot([row[against] for row in rows], values, color=colour, lw=1.4, marker=".", ms=3, label=label)
    untouched = runs[0].result["val"].get(f"{metric}_no_edit")
    if untouched is not None:
        panel.axhline(untouched, color=_INK, lw=0.8, ls=":", label="no edit")
    panel.set_yscale("log" if "mse" in metric else "linear")
    panel.set_xlim(left=0)
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(labelsize=8)
