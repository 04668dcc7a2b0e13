"""Pictures of finished runs and their data: edits, reconstructions, predictions, curves, accuracies."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neuralfunctionals.data import WeightDataset
from neuralfunctionals.registry import MODELS
from neuralfunctionals.report.figures import INK, open_figure, open_grid
from neuralfunctionals.report.finished import FinishedRun, group
from neuralfunctionals.report.latent_map import draw_maps
from neuralfunctionals.tasks.definition import Picture

_PALETTE = (
    "#c1440e",
    "#2a6f97",
    "#d4a017",
    "#5a8f69",
    "#8d6a9f",
    "#61a5c2",
    "#7a1f5c",
    "#7fb069",
    "#e39b6d",
    "#8a8a8a",
)
_WRONG = "#c1121f"


def _colour(model: str) -> str:
    """The colour of a model, the same on every picture; suffixes of its name are ignored."""
    name = model.partition(",")[0].partition(" ")[0]
    known = list(MODELS)
    place = known.index(name) if name in known else zlib.crc32(name.encode())
    return _PALETTE[place % len(_PALETTE)]


def draw_task(runs: Sequence[FinishedRun], out: str | os.PathLike[str]) -> list[Path]:
    """Draws all pictures of a task's runs to a directory, except those for which no run has samples.

    Args:
        runs: Finished runs of one task.
        out: The directory.

    Returns:
        The files.
    """
    task, files = runs[0].task, [Path(out) / f"{runs[0].family}_curves.png"]
    draw_curves(runs, files[0])
    for picture in task.pictures:
        if shown := drawable(picture, runs):
            files.append(Path(out) / f"{picture.file or picture.kind}.png")
            draw_picture(picture, shown, files[-1])
    return files


def drawable(picture: Picture, runs: Sequence[FinishedRun]) -> list[FinishedRun]:
    """The runs that saved the arrays of a picture."""
    return [run for run in runs if set(picture.needs) <= run.samples.keys()]


def draw_picture(picture: Picture, runs: Sequence[FinishedRun], out: str | os.PathLike[str]) -> None:
    """Draws one of a task's pictures, of runs that saved its arrays."""
    if picture.draw is not None:
        picture.draw(runs, Path(out))
    elif picture.kind == "rows":
        draw_rows(runs, out, above=picture.above, each=picture.each, below=picture.below)
    else:
        draw = {"classes": draw_classes, "scatter": draw_predictions, "map": draw_maps}[picture.kind]
        draw(runs, out)


def draw_rows(
    runs: Sequence[FinishedRun],
    out: str | os.PathLike[str],
    *,
    above: Mapping[str, str],
    each: str,
    below: Mapping[str, str] | None = None,
    num_samples: int = 6,
) -> None:
    """Draws rows of pictures, a panel for each recipe and test set (the paper's Figures 3 and 4), of the first seed.

    Args:
        runs: Finished runs.
        out: The picture's file.
        above: Arrays of pictures that all models share, by row label, such as originals and targets.
        each: The array that is different for each model, such as edited pictures.
        below: Further shared arrays.
        num_samples: Number of networks per recipe.
    """
    below = below or {}
    compared = _compare(runs, (*above.values(), *below.values()), num_samples)
    height = max(len(above) + len(below) + len(samples) for samples in compared.values())
    label_width = 0.4 + 0.1 * max(map(len, [*above, *below, *(run.model for run in runs)]))
    size = (label_width + 0.6 * num_samples, 0.5 + 0.6 * height)
    with open_grid(out, len(compared), size, trim=True) as (_, panels):
        for panel, (title, samples) in zip(panels, compared.items(), strict=True):
            first = next(iter(samples.values()))
            rows = {label: first[name] for label, name in above.items()}
            rows |= {model: of_model[each] for model, of_model in samples.items()}
            rows |= {label: first[name] for label, name in below.items()}
            side = next(iter(rows.values())).shape[1] + 1
            _show_images(panel, title, list(rows.values()), {row: side * (i + 0.5) for i, row in enumerate(rows)})


def _show_images(panel: Any, title: str, rows: Sequence[Tensor], labels: Mapping[str, float]) -> None:
    """Draws rows of pictures without a frame, with labels at the given heights."""
    panel.imshow(_tile(rows), cmap="gray", vmin=0, vmax=1)
    panel.set_yticks(list(labels.values()), list(labels))
    panel.set_xticks([])
    panel.tick_params(length=0, labelcolor=INK, labelsize="medium")
    panel.spines[:].set_visible(False)
    panel.set_title(title)


def _compare(
    runs: Sequence[FinishedRun], shared: Sequence[str], num_samples: int
) -> dict[str, dict[str, dict[str, Tensor]]]:
    """The first samples of each model, by the title of a panel; a panel has the same test networks for all models.

    Runs of one recipe may have used different data: their samples are then of different networks, perhaps of a
    different number, and cannot be compared in one panel. Of several seeds, the first is used.
    """
    compared: dict[str, dict[str, dict[str, Tensor]]] = {}
    for recipe, of_recipe in group(runs, by="recipe").items():
        panels: list[dict[str, dict[str, Tensor]]] = []
        for model, same in group(of_recipe, by="model").items():
            samples = {name: values[:num_samples] for name, values in same[0].samples.items()}
            for panel in panels:
                if all(_is_same(next(iter(panel.values()))[name], samples[name]) for name in shared):
                    panel[model] = samples
                    break
            else:
                panels.append({model: samples})
        titles = [recipe] if len(panels) == 1 else [f"{recipe}, test set {i + 1}" for i in range(len(panels))]
        compared |= dict(zip(titles, panels, strict=True))
    return compared


def _is_same(first: Tensor, second: Tensor) -> bool:
    """Whether these are the same samples, up to rounding differences between machines."""
    return first.shape == second.shape and torch.allclose(first.float(), second.float(), atol=1e-2)


def _tile(rows: Sequence[Tensor]) -> np.ndarray:
    """Rows of pictures `(B, H, W, C)` in [-1, 1] as one picture in [0, 1], a white pixel between them."""
    framed = [torch.nn.functional.pad(row.clamp(-1, 1) / 2 + 0.5, (0, 0, 0, 1, 0, 1), value=1.0) for row in rows]
    picture = torch.cat([torch.cat(list(row), dim=1) for row in framed], dim=0).numpy()
    return picture[..., 0] if picture.shape[-1] == 1 else picture


def draw_classes(runs: Sequence[FinishedRun], out: str | os.PathLike[str], *, num_samples: int = 12) -> None:
    """Draws images, and below each the class that every model predicts for its network; wrong ones are crossed out.

    Args:
        runs: Finished runs of `classify/` recipes; of several seeds, the first is shown.
        out: The picture's file.
        num_samples: Number of networks per recipe.
    """
    compared = _compare(runs, ("image", "label"), num_samples)
    heights = [0.9 + 0.32 * len(samples) for samples in compared.values()]
    size = (0.4 + 0.1 * max(len(run.model) for run in runs) + 0.6 * num_samples, sum(heights))
    with open_figure(out, size, len(compared), trim=True, height_ratios=heights) as (_, panels):
        for panel, (title, samples) in zip(panels[:, 0], compared.items(), strict=True):
            images = next(iter(samples.values()))["image"]
            side = images.shape[2] + 1
            line = 0.55 * side
            _show_images(panel, title, [images], {model: side + (i + 0.5) * line for i, model in enumerate(samples)})
            for row, of_model in enumerate(samples.values()):
                for place, (true, seen) in enumerate(zip(of_model["label"], of_model["predicted"], strict=True)):
                    at, right = ((place + 0.5) * side, side + (row + 0.5) * line), int(true) == int(seen)
                    panel.text(*at, f"{seen}", ha="center", va="center", color=INK if right else _WRONG, fontsize=11)
                    if not right:
                        panel.plot([at[0] - 4, at[0] + 4], [at[1], at[1]], color=_WRONG, lw=1.2)
            panel.set_ylim(side + line * len(samples), 0)


def draw_predictions(runs: Sequence[FinishedRun], out: str | os.PathLike[str]) -> None:
    """Draws predicted against true values of test networks: one row per recipe, one panel per model.

    Args:
        runs: Finished runs, such as those of `generalization/` recipes; of several seeds, the first is shown.
        out: The picture's file.
    """
    recipes = {recipe: group(of_recipe, by="model") for recipe, of_recipe in group(runs, by="recipe").items()}
    width = max(map(len, recipes.values()))
    size = (1 + 2.1 * width, 0.4 + 2.5 * len(recipes))
    with open_figure(out, size, len(recipes), width, sharex="row", sharey="row") as (figure, axes):
        for row, (recipe, models) in zip(axes, recipes.items(), strict=True):
            for panel in row[len(models) :]:
                panel.set_visible(False)
            for panel, (model, same) in zip(row, models.items(), strict=False):
                samples, task = same[0].samples, same[0].task
                value = same[0].result["test"][task.metric]
                low, high = (float(limit) for limit in torch.cat([samples["true"], samples["predicted"]]).aminmax())
                panel.plot([low, high], [low, high], color=INK, lw=0.8, ls=":")
                panel.scatter(samples["true"], samples["predicted"], s=6, lw=0, alpha=0.6, color=_colour(model))
                panel.set_title(f"{model}, {task.metric_name} {value:.3f}", fontsize=9)
                panel.set_box_aspect(1)
            row[0].set_ylabel(f"{recipe.partition('/')[2]}\npredicted", fontsize=9, color=INK)
        figure.supxlabel("true", fontsize=9, color=INK)


def draw_accuracies(zoos: Mapping[str, WeightDataset] | WeightDataset, out: str | os.PathLike[str]) -> None:
    """Draws histograms of the test accuracies of zoos, with chance and the best; one panel per zoo.

    Args:
        zoos: A zoo, or several by title.
        out: The picture's file.
    """
    if isinstance(zoos, WeightDataset):
        zoos = {zoos.path.name: zoos}
    with open_figure(out, (0.4 + 4 * len(zoos), 2.6), 1, len(zoos), sharey=True) as (_, axes):
        for panel, (title, zoo) in zip(axes[0], zoos.items(), strict=True):
            accuracies = zoo.column("test_accuracy").numpy()
            chance = 1 / zoo.spec.widths[-1]
            panel.hist(accuracies, bins=40, color=_PALETTE[1])
            for value, words, side in ((chance, "chance", "left"), (accuracies.max(), "best", "right")):
                panel.axvline(value, color=INK, lw=0.8, ls=":")
                at = ((value, 1), (0, 2), ("data", "axes fraction"), "offset points")
                panel.annotate(f"{words} {value:.2f}", *at, fontsize=8, ha=side)
            panel.set_title(f"{title}: {len(zoo)} networks", loc="left", pad=16)
            panel.set_xlabel("test accuracy")
        axes[0][0].set_ylabel("networks")


def draw_curves(runs: Sequence[FinishedRun], out: str | os.PathLike[str], *, metric: str | None = None) -> None:
    """Draws the validation metric of every run against training networks seen and seconds, one row per recipe.

    A network that is seen again in another epoch counts again.

    Args:
        runs: Finished runs; seeds of one model share a colour.
        out: The picture's file.
        metric: Which metric; defaults to that of each recipe's task.
    """
    recipes = group(runs, by="recipe")
    size = (10.0, 0.6 + 2.1 * len(recipes))
    with open_figure(out, size, len(recipes), 2, sharey="row") as (figure, axes):
        for row, (recipe, of_recipe) in zip(axes, recipes.items(), strict=True):
            shown = metric or of_recipe[0].task.metric
            _draw_panel(row[0], of_recipe, shown, lambda run, point: point["step"] * run.batch_size / 1000)
            _draw_panel(row[1], of_recipe, shown, lambda run, point: point["seconds"])
            row[0].set_title(recipe, loc="left")
            row[0].set_ylabel(f"validation {shown}")
        axes[-1][0].set_xlabel("thousands of networks seen")
        axes[-1][1].set_xlabel("seconds of training")
        lines = {line.get_label(): line for row in axes for line in row[1].get_lines()}
        named = {label: line for label, line in lines.items() if not label.startswith("_")}
        figure.legend(named.values(), named.keys(), loc="outside right upper", frameon=False, fontsize=9)


def _draw_panel(
    panel: Any,
    runs: Sequence[FinishedRun],
    metric: str,
    place_of: Callable[[FinishedRun, Mapping[str, float]], float],
) -> None:
    for model, same in group(runs, by="model").items():
        for place, run in enumerate(same):
            rows = [row for row in run.curve if f"val/{metric}" in row]
            values = [row[f"val/{metric}"] for row in rows]
            label = model if place == 0 else None
            style = {"lw": 1.4, "marker": ".", "ms": 3, "color": _colour(model)}
            panel.plot([place_of(run, row) for row in rows], values, label=label, **style)
    name, measured = runs[0].task.baseline or ("", None)
    if isinstance(measured, str) and metric == runs[0].task.metric:
        values = (run.result["val"].get(measured) for run in runs)
        for value in dict.fromkeys(value for value in values if value is not None):  # one per set of networks
            panel.axhline(value, color=INK, lw=0.8, ls=":", label=name)
    panel.set_xlim(left=0)
    if not runs[0].task.higher_is_better:
        panel.set_ylim(bottom=0)
