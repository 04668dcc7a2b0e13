"""All recipes by name: `RECIPES`, `find_run`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, TypeVar

from torch import nn

from neuralfunctionals.data import WeightDataset
from neuralfunctionals.recipes import classification, editing, generalization, reconstruction
from neuralfunctionals.recipes.functionals import FUNCTIONALS, Functional
from neuralfunctionals.recipes.run import SAMPLES, SCALES, Run, Scale, flatten
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
    functionals: Mapping[str, Functional] = field(default_factory=lambda: FUNCTIONALS)
    """What its models' names stand for."""
    options_from: Callable[[Run, WeightDataset], dict[str, Any]] = lambda run, dataset: {}
    """Arguments of the model that follow from the data."""
    latent_models: tuple[str, ...] = ()
    """Models for stores of latents, which take the place of `models` there."""


_EDITING_COST: dict[Scale, str] = {
    "tiny": "seconds",
    "small": "10 minutes of one core",
    "long": "2 hours of one core",
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
        functionals=editing.FUNCTIONALS,
        options_from=editing.options_from,
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

_COST: dict[Scale, str] = {**_EDITING_COST, "paper": "200,000 steps or 100 epochs: for a GPU"}

RECIPES |= {
    f"inr2array/{images}": Recipe(
        f"an invariant latent array of {images} INRs",
        "Table 5, Figure 3",
        tuple(reconstruction.FUNCTIONALS),
        _COST,
        images,
        reconstruction.reconstruct_run,
        reconstruction.make_task,
        functionals=reconstruction.FUNCTIONALS,
    )
    for images in SAMPLES
}
RECIPES |= {
    f"classify/{images}": Recipe(
        f"the class of {images} INRs, from weights or latents",
        "Tables 1 and 6",
        classification.MODELS,
        _COST,
        images,
        classification.classify_run,
        classification.make_task,
        functionals=classification.FUNCTIONALS,
        options_from=classification.options_from,
        latent_models=classification.LATENT_MODELS,
    )
    for images in SAMPLES
}


def find_run(
    recipe: str, *, scale: str = "small", model: str | None = None, data: str | os.PathLike[str] | None = None
) -> Run:
    """The run that a recipe's name, scale and model stand for.

    Args:
        recipe: One of `RECIPES`.
        scale: `tiny`, `small`, `long` or `paper`.
        model: One of the recipe's models. Defaults to the best at that scale, at `paper` to the paper's.
        data: The store to learn from, if there is one: latents have models of their own.

    Example:
        >>> find_run("edit/mnist-dilate", scale="tiny", model="nfn-np").training.steps
        20
    """
    found = RECIPES[_choose("recipe", recipe, list(RECIPES))]
    models = found.models + found.latent_models
    if data is not None and found.latent_models:
        models = found.latent_models if "latents" in WeightDataset(data).tensor_names else found.models
    default = "nft" if scale == "paper" and "nft" in models else models[0]
    chosen_model = default if model is None else _choose("model", model, models)
    return found.make(recipe, _choose("scale", scale, SCALES), chosen_model)


def changed_fields(run: Run) -> dict[str, Any]:
    """The fields, by name, in which a run differs from its recipe at that scale for that model."""
    usual = flatten(find_run(run.recipe, scale=run.scale, model=run.model_name))
    return {name: value for name, value in flatten(run).items() if usual.get(name) != value}


def _choose(what: str, name: str, known: Sequence[Name]) -> Name:
    if name in known:
        return known[[str(k) for k in known].index(name)]
    close = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f" Did you mean {close[0]}?" if close else ""
    raise ValueError(f"Expected a {what}, one of {', '.join(known)}, but got '{name}'.{hint}")
