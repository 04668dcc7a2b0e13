"""All recipes by name: `RECIPES`, `find_run`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

from torch import nn

from neuralfunctionals.recipes import editing, generalization
from neuralfunctionals.recipes.run import SCALES, Run, Scale
from neuralfunctionals.tasks import Task

Name = TypeVar("Name", bound=str)


@dataclass(frozen=True)
class Recipe:
    """What a recipe is for."""

    summary: str
    reproduces: str
    models: tuple[str, ...]
    cost: dict[Scale, str]
    """What a run takes, by scale."""
    images: str
    """The full image set behind it."""
    make: Callable[[str, Scale, str], Run]
    """The run of this recipe at a scale, for a model."""
    make_task: Callable[[Run, nn.Module, Mapping[str, Any]], Task]
    """Its task with a model, for data made in a known way."""


_EDITING_COST: dict[Scale, str] = {
    "tiny": "seconds",
    "small": "3 minutes on two cores",
    "paper": "2 hours on a GPU (the paper's figure); about a week on two cores",
}

RECIPES: dict[str, Recipe] = {
    name: Recipe(
        f"{task.edit} {editing.full_images(name)} INRs",
        "Tables 2 and 4, Figure 4",
        editing.MODELS,
        _EDITING_COST,
        editing.full_images(name),
        editing.edit_run,
        editing.make_task,
    )
    for name, task in editing.TASKS.items()
}
"""Recipes by name."""

RECIPES |= {
    name: Recipe(
        f"predict the test accuracy of CNNs on {full} in grey",
        "Table 3",
        generalization.MODELS,
        generalization.COST,
        full,
        generalization.generalization_run,
        generalization.make_task,
    )
    for name, full in generalization.IMAGES.items()
}


def find_run(recipe: str, *, scale: str = "small", model: str | None = None) -> Run:
    """The run that a recipe's name, scale and model stand for.

    Args:
        recipe: One of `RECIPES`.
        scale: `tiny`, `small` or `paper`.
        model: One of the recipe's models; its first if missing.

    Example:
        >>> find_run("edit/mnist-dilate", scale="tiny", model="nfn-np").training.steps
        20
    """
    found = RECIPES[_choose("recipe", recipe, list(RECIPES))]
    chosen_model = found.models[0] if model is None else _choose("model", model, found.models)
    return found.make(recipe, _choose("scale", scale, SCALES), chosen_model)


def _choose(what: str, name: str, known: Sequence[Name]) -> Name:
    if name in known:
        return known[[str(k) for k in known].index(name)]
    close = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f" Did you mean {close[0]}?" if close else ""
    raise ValueError(f"Expected a {what}, one of {', '.join(known)}, but got '{name}'.{hint}")
