"""The description of a task: `TaskDefinition` and its parts. It does not import torch."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, make_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_type_hints

from neuralfunctionals.config import (
    SAMPLES,
    TINY_ZOO,
    DataConfig,
    OptimizerConfig,
    Run,
    Scale,
    TrainingConfig,
    ZooConfig,
)

Output: TypeAlias = Literal["networks", "vector", "autoencoder"]
"""Output of a model: features of the same networks, one vector per network, or a latent array that is decoded."""
Space: TypeAlias = dict[str, tuple[Any, ...]]
"""Fields of a run, such as `model.channels`, and the values to try."""

COST: dict[Scale, str] = {
    "tiny": "seconds",
    "small": "10 minutes of one core",
    "long": "2 hours of one core",
    "paper": "200,000 steps or 100 epochs: for a GPU",
}
"""The usual cost of a run, by scale."""


# Recipes.


@dataclass(frozen=True)
class ModelSettings:
    """How a task trains a model: its options at each scale, and a budget."""

    tiny: Mapping[str, Any] = field(default_factory=dict)
    small: Mapping[str, Any] = field(default_factory=dict)
    """Options at the scales `small` and `long`."""
    paper: Mapping[str, Any] = field(default_factory=dict)
    lr: float = 1e-3
    batch_size: int = 32
    steps: int = 1000
    """Number of steps in ten minutes on one core."""

    def also(self, **changes: Any) -> ModelSettings:
        """Returns a copy with further options at some scales, or with another budget."""
        scales = {name: {**getattr(self, name), **changes.pop(name, {})} for name in ("tiny", "small", "paper")}
        return replace(self, **scales, **changes)


@dataclass(frozen=True)
class Recipe:
    """A recipe of a task."""

    summary: str
    reproduces: str = ""
    images: str = "mnist-sample"
    """Its image set; the scale `tiny` uses an embedded sample instead."""
    task: Any = None
    """The task's settings, if they differ from its defaults."""
    of: Any = field(default=None, repr=False, compare=False)
    """The `TaskDefinition` that it belongs to."""

    @property
    def models(self) -> tuple[str, ...]:
        """Models with settings for this recipe; the first is the default."""
        return tuple(name for name in self.of.settings if name not in self.of.latent_models)

    @property
    def latent_models(self) -> tuple[str, ...]:
        """Models for stores of latents, which replace `models` for these."""
        return self.of.latent_models


# Reports.


@dataclass(frozen=True)
class Column:
    """A column of the task's table: a metric on a split, with its spread over seeds."""

    name: str
    split: str
    metric: str
    percent: bool = False


@dataclass(frozen=True)
class Published:
    """A column with the paper's numbers, by recipe and model: a value, or a value and its standard error."""

    name: str
    values: Mapping[str, Mapping[str, float | tuple[float, float]]]
    digits: int = 4


@dataclass(frozen=True)
class Picture:
    """A picture of runs, with its title and caption; training curves are always drawn."""

    title: str
    caption: str
    needs: tuple[str, ...]
    """Arrays of `Task.samples` or `Task.map` that it needs; runs without them are left out."""
    kind: Literal["rows", "classes", "scatter", "map"] = "rows"
    """Rows of pictures; pictures and classes; predicted against true numbers; points coloured by class."""
    file: str = ""
    """Name of its file next to a table. Defaults to `kind`."""
    above: Mapping[str, str] = field(default_factory=dict)
    """For rows: the arrays that come first, by the labels of their rows."""
    each: str = ""
    """For rows: the array that is different for each model."""
    below: Mapping[str, str] = field(default_factory=dict)
    draw: Callable[[Any, Path], None] | None = None
    """Draws finished runs to a file, instead of `kind`."""


@dataclass(frozen=True)
class TaskDefinition:
    """A task: how it is built, its recipes at each scale, and how its runs are reported.

    A module that defines a `TASK` of this type is a task, which `nf train my_package.my_task/RECIPE` finds. Ours are
    the folders of `neuralfunctionals.tasks`, found by name.
    """

    task: str | type[Any]
    """The `Task` class, or where it is, as `package.module:Class`. It is built as
    `Class(model, **settings, optimizer=..., seed=...)`, with `omega`, `convention` and `source` if it takes them."""
    metric: str = ""
    """The metric that selects the best model. Defaults to that of the class."""
    higher_is_better: bool = False
    config: type[Any] | None = None
    """Dataclass of its settings. By default, created from the arguments of the class."""
    recipes: Mapping[str, Recipe] = field(default_factory=dict)
    """Recipes by the second part of their names."""
    settings: Mapping[str, ModelSettings] = field(default_factory=dict)
    """Settings by model; other models get the defaults."""
    fields: Callable[[Recipe, str, Scale], Mapping[str, Any]] = lambda recipe, model, scale: {}
    """Fields of a recipe's run, by model and scale, that differ from the defaults of `make_run`."""
    output: Output = "vector"
    out_channels: Callable[[Any, Any], int] = lambda config, spec: 1
    """`out_channels` of its models, from its settings and the spec of the networks."""
    data: type[DataConfig] | type[ZooConfig] = DataConfig
    """Its training data: fitted INRs, or a zoo."""
    latent_models: tuple[str, ...] = ()
    cost: Mapping[Scale, str] = field(default_factory=lambda: COST)
    search: Callable[[Run], Space] | None = None
    """The search space of a sweep."""

    title: str = ""
    question: str = ""
    """The question that the task answers, in plain words."""
    metric_name: str = ""
    columns: tuple[Column | Published, ...] = ()
    """Columns of its table. Defaults to the metric on train and test networks."""
    pictures: tuple[Picture, ...] = ()
    baseline: tuple[str, str | Callable[[Mapping[str, Any]], float]] | None = None
    """The result without a model: its name, and the metric that measures it, or a function of the settings."""

    def __post_init__(self) -> None:
        given: dict[str, Any] = {"recipes": {name: replace(r, of=self) for name, r in self.recipes.items()}}
        if isinstance(self.task, type):
            given |= {"metric": self.metric or self.task.metric, "higher_is_better": self.task.higher_is_better}
            given["config"] = self.config or config_of(self.task)
            given["title"] = self.title or self.task.__name__
        metric = given.get("metric", self.metric)
        given["metric_name"] = self.metric_name or metric
        given["columns"] = self.columns or tuple(Column(f"{s} {metric}", s, metric) for s in ("train", "test"))
        for name, value in given.items():
            object.__setattr__(self, name, value)


def config_of(task: type[Any]) -> type[Any]:
    """Creates a dataclass from the arguments of a task that have defaults, for tasks that do not define one."""
    hints = get_type_hints(task.__init__)
    not_its_own = {"model", "optimizer", "seed", "omega", "convention", "source"}
    own = [p for p in list(inspect.signature(task).parameters.values()) if p.name not in not_its_own]
    # Each instance gets its own copy of a default, which may be a list.
    defaults = {p.name: partial(copy.copy, p.default) for p in own if p.default is not p.empty}
    settings = [(name, hints.get(name, Any), field(default_factory=make)) for name, make in defaults.items()]
    return make_dataclass(f"{task.__name__}Config", settings, frozen=True)


# Runs at a scale.


def make_run(recipe: Recipe, name: str, scale: Scale, model: str) -> Run:
    """The run of a recipe: options and steps by scale, and the fields that the task sets."""
    task = recipe.of
    settings = task.settings.get(model, ModelSettings())
    steps = settings.steps * (12 if scale in ("long", "paper") else 1)
    optimizer = OptimizerConfig(
        "adamw",
        lr=settings.lr,
        weight_decay=0.01,
        beta2=0.98,
        warmup_steps=5 if scale == "tiny" else min(500, steps // 16),
        schedule="cosine",
        clip_norm=1.0,
    )
    training = TrainingConfig(
        steps=steps, batch_size=settings.batch_size, val_every=settings.steps // 10, log_every=10, ema_decay=0.999
    )
    data = task.data(images=recipe.images)
    if scale == "tiny":  # takes seconds: tests the pipeline, not the model
        training = TrainingConfig(steps=20, batch_size=8, val_every=10, log_every=5)
        less = {"limit": 64, "fit": "fast"} if task.data is DataConfig else TINY_ZOO
        data = replace(data, images=SAMPLES.get(recipe.images, recipe.images), **less)
    options = {"tiny": settings.tiny, "paper": settings.paper}.get(scale, settings.small)
    run = Run(name, scale, model, dict(options), recipe.task or task.config(), data, optimizer, training)
    return replace(run, **task.fields(recipe, model, scale))
