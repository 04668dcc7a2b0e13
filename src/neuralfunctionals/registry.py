"""Models and tasks by name, without importing them: `MODELS`, `RECIPES`, `find_task`, `find_run`.

A name with a dot is the path of a user's own class or module; see `imports`.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from neuralfunctionals import tasks
from neuralfunctionals.config import SCALES, Run, flatten
from neuralfunctionals.errors import UserError, require_choice
from neuralfunctionals.imports import import_object
from neuralfunctionals.tasks.definition import Output, Recipe, TaskDefinition, make_run

Name = TypeVar("Name", bound=str)


# Models.


@dataclass(frozen=True)
class ModelEntry:
    """The class behind a model name, and the arguments that adapt it to a task."""

    make: str
    """The class, in `neuralfunctionals.models`."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Arguments for every task."""
    vector: Mapping[str, Any] | None = field(default_factory=dict)
    """Further arguments for an output of one vector per network; None if it has no such output."""
    networks: bool = True
    """Whether it can output features of the same networks."""
    encoder: str | None = None
    """Its name as the encoder of an `Inr2Array`; None if it is not an encoder."""

    def arguments(self, output: Output) -> tuple[str, dict[str, Any]] | None:
        """Class and arguments for a kind of output; None if the model does not have it."""
        if output == "autoencoder":
            return None if self.encoder is None else ("Inr2Array", {"encoder": self.encoder})
        if output == "vector":
            return None if self.vector is None else (self.make, {**self.fixed, **self.vector})
        return (self.make, dict(self.fixed)) if self.networks else None


MODELS: dict[str, ModelEntry] = {
    "neuron-graph": ModelEntry("NeuronGraphNet", vector={"pooling": "vector"}, encoder="neuron-graph"),
    "nft-states": ModelEntry("NFT", {"symmetry": "NP"}, {"pooling": "cross_attention"}, encoder="nft"),
    "nft": ModelEntry("NFT", {"symmetry": "NP"}, {"pooling": "cross_attention"}, encoder="nft"),
    "nft-hnp": ModelEntry("NFT", {"symmetry": "HNP", "io_encoding": False}, {"pooling": "cross_attention"}),
    "nfn": ModelEntry("NFN", vector=None, networks=False, encoder="nfn"),
    "nfn-np": ModelEntry("NFN", {"symmetry": "NP"}, {"pooling": "HNP"}),
    "nfn-hnp": ModelEntry("NFN", {"symmetry": "HNP"}, {"pooling": "HNP"}),
    "spatial-nfn": ModelEntry("SpatialNFN", networks=False),
    "dws": ModelEntry("DWSNet", vector={"invariant": True}),
    "statnn": ModelEntry("StatNN", networks=False),
    "probe-cnn": ModelEntry("ProbeCNN", networks=False),
    "render-cnn": ModelEntry("RenderCNN", networks=False),
    "latent": ModelEntry("LatentClassifier", networks=False),
}
"""Models by name. To add a model, write its file and add a line here; every recipe then accepts it."""


def model_class(name: str, output: Output) -> tuple[type[Any], dict[str, Any]]:
    """The class of a model, by name or path, and its arguments for a kind of output."""
    if "." in name:
        return import_object(name), {}
    make, arguments = (name in MODELS and MODELS[name].arguments(output)) or (None, {})
    if make is None:
        raise UserError(f"Expected a model for '{output}', but '{name}' is not one.")
    return getattr(importlib.import_module("neuralfunctionals.models"), make), arguments


# Tasks and their recipes.


def find_task(recipe: str) -> TaskDefinition:
    """The task of a recipe, by the first part of its name: one of our tasks, or the path of a module or class."""
    family = recipe.partition("/")[0]
    if "." not in family:
        return TASKS[_choose("task", family, list(TASKS))]
    found = import_object(family)
    found = getattr(found, "TASK", found)
    if isinstance(found, TaskDefinition):
        return found
    if isinstance(found, type) and hasattr(found, "metric"):
        return TaskDefinition(found)
    raise UserError(f"Expected {family} to be a module with a TASK, or a class of tasks, but got {found!r}.")


TASKS: dict[str, TaskDefinition] = {
    part.name: importlib.import_module(f"{tasks.__name__}.{part.name}").TASK
    for part in pkgutil.iter_modules(tasks.__path__)
    if part.ispkg
}
"""Our tasks, by the first part of their recipe names: one per folder of `neuralfunctionals.tasks`."""
RECIPES: dict[str, Recipe] = {
    f"{name}/{recipe}": found for name, task in TASKS.items() for recipe, found in task.recipes.items()
}
"""Our recipes by name."""


def find_recipe(name: str) -> Recipe:
    """Finds a recipe, one of ours or of a user's task."""
    if "." not in name.partition("/")[0]:
        return RECIPES[_choose("recipe", name, list(RECIPES))]
    task, word = find_task(name), name.partition("/")[2]
    if not word:
        return Recipe(task.title, of=task)
    return task.recipes[_choose("recipe", word, list(task.recipes))]


def find_run(
    recipe: str, *, scale: str = "small", model: str | None = None, data: str | os.PathLike[str] | None = None
) -> Run:
    """The run config of a recipe at a scale, for a model.

    Args:
        recipe: One of `RECIPES`, or `my_package.my_task/RECIPE` for your own task.
        scale: `tiny`, `small`, `long` or `paper`.
        model: One of `MODELS`, or `my_package.MyModel` for your own class, which is built as
            `MyModel(spec, out_channels=..., **options)`. Defaults to the recipe's first, or the paper's at `paper`.
        data: The store to train on, if there is one: stores of latents have their own models.

    Example:
        >>> find_run("edit/mnist-dilate", scale="tiny", model="nfn-np").training.steps
        20
    """
    found = find_recipe(recipe)
    models, reads_latents = found.models + found.latent_models, False
    if data is not None and found.latent_models:
        from neuralfunctionals.data import WeightDataset

        reads_latents = "latents" in WeightDataset(data).tensor_names
        models = found.latent_models if reads_latents else found.models
    if model is None and not models:
        raise UserError(f"Expected a model for {recipe}: name one with --model, such as nft or my_package.MyModel.")
    chosen = model or ("nft" if scale == "paper" and "nft" in models else models[0])
    if chosen not in models and "." not in chosen and (reads_latents or not _fits(chosen, found)):
        _choose("model", chosen, models or tuple(name for name in MODELS if _fits(name, found)))
    return make_run(found, recipe, _choose("scale", scale, SCALES), chosen)


def _fits(model: str, recipe: Recipe) -> bool:
    """Whether a recipe can train a model that it has no settings for."""
    return model in MODELS and model != "latent" and MODELS[model].arguments(recipe.of.output) is not None


def read_run(values: Mapping[str, Any], where: str = "run") -> Run:
    """Reads a run from plain values, as returned by `Run.to_dict`; checks every name and type."""
    recipe = str(values.get("recipe"))[:200]
    try:
        task = find_task(recipe)
    except UserError as error:
        raise UserError(f"{where}.recipe: {error}") from error
    return Run.from_dict(dict(values), where, task=task.config, data=task.data)


def changed_fields(run: Run) -> dict[str, Any]:
    """The fields in which a run differs from its recipe at that scale for that model, by name."""
    usual = flatten(find_run(run.recipe, scale=run.scale, model=run.model_name))
    return {name: value for name, value in flatten(run).items() if usual.get(name) != value}


def _choose(what: str, name: str, known: Sequence[Name]) -> Name:
    require_choice(f"a {what},", name, known)
    return next(choice for choice in known if choice == name)
