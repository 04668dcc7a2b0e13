"""A training run, described in full: `Run` and its parts. Plain values, which need no torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, TypeAlias, get_type_hints

from neuralfunctionals.errors import UserError, require_choice
from neuralfunctionals.files.strict_json import conform_names

Scale: TypeAlias = Literal["tiny", "small", "long", "paper"]
SCALES: tuple[Scale, ...] = ("tiny", "small", "long", "paper")
"""Seconds on a laptop; ten minutes of one core; two hours of one core; the paper's own hyperparameters."""

Canonical: TypeAlias = Literal["none", "sine"]
Augment: TypeAlias = Literal["none", "affine", "turns"]
"""Transformation of training networks: mild affine maps, or the eight rotations and reflections of the square."""
SAMPLES = {"mnist": "mnist-sample", "fashion": "fashion-sample", "cifar10": "shapes-sample"}
"""Full image sets, and the embedded samples that replace them."""
TITLES = {"mnist": "MNIST", "fashion": "FashionMNIST", "cifar10": "CIFAR-10", "svhn-grey": "SVHN"}
"""Image sets as they are usually written."""
TINY_ZOO: dict[str, Any] = {"count": 40, "epochs": 12, "batch_size": 64, "limit_images": 600}
"""Fields of `ZooConfig` for a zoo that is trained in seconds."""


@dataclass(frozen=True)
class DataConfig:
    """The networks to train on, made once and cached, unless a store is given."""

    images: str = "mnist-sample"
    """Image set: mnist-sample, fashion-sample, shapes-sample, mnist, fashion, cifar10, svhn-grey, or a path."""
    limit: int | None = None
    """Number of images, taken from all splits in proportion. Defaults to all."""
    copies: int = 1
    """Number of networks per training image."""
    fit: str = "default"
    """Fitting recipe; see nf fit."""
    seed: int = 0
    """Random seed of the fits."""


@dataclass(frozen=True)
class ZooConfig:
    """The zoo of CNNs to train on, made once and cached, unless a store is given."""

    images: str = "mnist-sample"
    """Image set that the CNNs classify: mnist-sample, shapes-sample, cifar10, svhn-grey, ..., or a path."""
    grey: bool = True
    """Convert the images to grey by averaging their colours."""
    count: int = 800
    """Number of CNNs; half are for testing, a fifth of the rest for validation."""
    epochs: int = 86
    """Number of epochs to train each CNN."""
    batch_size: int = 512
    """Images per step when training the CNNs."""
    limit_images: int | None = None
    """Number of images, taken from all splits in proportion. Defaults to all."""
    seed: int = 0
    """Random seed of the zoo."""


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimiser and its learning rate schedule."""

    name: Literal["adam", "adamw"] = "adam"
    """Adam, or AdamW with its decoupled weight decay."""
    lr: float = 1e-3
    """Peak learning rate."""
    weight_decay: float = 0.0
    """Weight decay."""
    beta2: float = 0.999
    """Decay rate of the running mean of squared gradients."""
    warmup_steps: int = 0
    """Number of steps over which the learning rate rises linearly to its peak."""
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    """How the learning rate falls between the warm-up and the last step."""
    clip_norm: float | None = None
    """Clip gradients to this norm. Defaults to no clipping."""

    def __post_init__(self) -> None:
        checks = {
            "name": (self.name in ("adam", "adamw"), "'adam' or 'adamw'"),
            "lr": (0 < self.lr < math.inf, "a positive number"),
            "weight_decay": (0 <= self.weight_decay < math.inf, "0 or a positive number"),
            "beta2": (0 <= self.beta2 < 1, "from 0 to below 1"),
            "warmup_steps": (self.warmup_steps >= 0, "0 or a positive number"),
            "schedule": (self.schedule in ("constant", "cosine", "linear"), "'constant', 'cosine' or 'linear'"),
            "clip_norm": (self.clip_norm is None or self.clip_norm > 0, "a positive number"),
        }
        for name, (is_right, expected) in checks.items():
            if not is_right:
                raise UserError(f"Expected the optimizer's {name} to be {expected}, but got {getattr(self, name)!r}.")

    def factor(self, step: int, steps: int) -> float:
        """The learning rate at a step, counted from 0, as a fraction of the peak."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        done = min(1.0, (step - self.warmup_steps) / max(1, steps - self.warmup_steps))
        return {"constant": 1.0, "linear": 1 - done, "cosine": 0.5 * (1 + math.cos(math.pi * done))}[self.schedule]


@dataclass(frozen=True)
class TrainingConfig:
    """How long to train, and on which devices."""

    steps: int = 1000
    """Number of optimiser steps."""
    batch_size: int = 32
    """Networks per step, over all devices."""
    limit: int | None = None
    """Train on only this many of the training networks, evenly spaced. Defaults to all."""
    accumulate: int = 1
    """Gradient accumulation: split each batch into this many parts to save memory."""
    val_every: int = 100
    """Steps between validations; after each, a checkpoint is written from which the run can be resumed exactly."""
    log_every: int = 10
    """Steps between rows of the training curve."""
    patience: int | None = None
    """Stop after this many validations without improvement. Defaults to no early stopping."""
    ema_decay: float | None = None
    """Validate and keep an exponential moving average of the parameters; the first steps use a smaller decay."""
    precision: Literal["float32", "bf16"] = "float32"
    """Precision of the model; bf16 is mixed precision."""
    compile: bool = False
    """Compile the model's blocks: slow in the first minute, then faster."""
    accelerator: str = "auto"
    """Kind of device: auto, cpu, gpu, mps, ..."""
    devices: int = 1
    """Number of devices per machine, which train in parallel."""
    nodes: int = 1
    """Number of machines."""
    threads: int | None = None
    """Number of threads per process on a CPU. Defaults to torch's choice."""
    loggers: str = ""
    """More loggers, separated by commas: Lightning's, such as CSVLogger, or your own, such as my_package.MyLogger."""
    callbacks: str = ""
    """More callbacks, separated by commas: Lightning's, such as DeviceStatsMonitor, or your own."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "accumulate", "val_every", "log_every", "devices", "nodes"):
            if getattr(self, name) < 1:
                raise UserError(f"Expected training.{name} to be at least 1, but got {getattr(self, name)}.")
        for name in ("limit", "patience", "threads"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise UserError(f"Expected training.{name} to be at least 1 or missing, but got {getattr(self, name)}.")
        if self.ema_decay is not None and not 0 <= self.ema_decay < 1:
            raise UserError(f"Expected training.ema_decay from 0 to below 1, but got {self.ema_decay}.")
        if self.batch_size % self.accumulate:
            raise UserError(
                f"Expected training.accumulate to divide the batch of {self.batch_size}, but got {self.accumulate}."
            )
        if self.steps % self.interval:
            nearest = max(1, round(self.steps / self.interval)) * self.interval
            raise UserError(
                f"Expected training.steps to be a multiple of training.val_every, but got {self.steps} and "
                f"{self.val_every}. Use {nearest} steps or a different val_every."
            )

    @property
    def interval(self) -> int:
        """Steps between validations, at most the length of the run."""
        return min(self.val_every, self.steps)


FREE = ("accelerator", "devices", "nodes", "threads", "compile", "loggers")
"""Fields of `TrainingConfig` that affect where and how fast a run is computed, but not its result."""


@dataclass(frozen=True)
class Run:
    """Everything that determines the result of a run."""

    recipe: str
    scale: Scale
    model_name: str
    model: dict[str, Any] = field(default_factory=dict)
    """Arguments of the model's constructor."""
    task: Any = field(default_factory=dict)
    """The task's own settings: a dataclass, such as `EditConfig`."""
    data: DataConfig | ZooConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    canonical: Canonical = "none"
    """`none`: train on raw sine networks; `sine`: remove signs and phases first; see `nf.models.Canonical`."""
    seed: int = 0
    """Random seed of initial parameters, data order and dropout."""

    @property
    def name(self) -> str:
        """Default name of the run directory."""
        return f"{self.recipe.replace('/', '-')}-{self.scale}-{self.model_name}-seed{self.seed}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(
        cls, values: dict[str, Any], where: str = "run", *, task: Any = dict[str, Any], data: Any = DataConfig
    ) -> Run:
        """The inverse of `to_dict`; checks every name and type.

        Args:
            values: Plain values.
            where: Where the values come from, for error messages.
            task: Type of the task's settings; `nf.runs.read_run` passes the right one.
            data: Type of the data config.
        """
        given = values.get("task")
        if isinstance(given, dict) and isinstance(given.get("augment"), bool):  # as older versions wrote it
            values = {**values, "task": {**given, "augment": "turns" if given["augment"] else "none"}}
        kinds = {**get_type_hints(cls), "task": task, "data": data}
        return cls(**conform_names(values, kinds, ("recipe", "scale", "model_name"), where))


def without_free(run: Mapping[str, Any]) -> dict[str, Any]:
    """A run config as plain values, without the fields that do not affect the result."""
    return {**run, "training": {name: value for name, value in run["training"].items() if name not in FREE}}


def flatten(run: Run) -> dict[str, Any]:
    """All fields by name; nested ones are named like `optimizer.lr`."""

    def walk(values: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for name, value in values.items():
            if isinstance(value, dict):
                yield from walk(value, f"{prefix}{name}.")
            else:
                yield prefix + name, value

    return dict(walk(run.to_dict(), ""))


def with_values(run: Run, values: Mapping[str, Any]) -> Run:
    """Returns a copy of the run with new values for some fields, such as `seed` or `optimizer.lr`."""
    changed = {name: value for name, value in values.items() if "." not in name}
    parts: dict[str, dict[str, Any]] = {}  # changed together, because each part validates its fields together
    for name, value in values.items():
        if name not in changed:
            part, _, field = name.partition(".")
            parts.setdefault(part, {})[field] = value
    _require_fields("a run", [*changed, *parts], sorted(field.name for field in fields(run)))
    for part, new in parts.items():
        before = changed.get(part, getattr(run, part))
        if isinstance(before, dict):
            changed[part] = {**before, **new}
        elif is_dataclass(before) and not isinstance(before, type):
            _require_fields(part, new, [field.name for field in fields(before)])
            changed[part] = replace(before, **new)
        else:
            raise UserError(f"Expected a value for {part}, which has no fields, but got '{part}.{min(new)}'.")
    return replace(run, **changed)


def _require_fields(what: str, names: Iterable[str], known: list[str]) -> None:
    for name in names:
        require_choice(f"a field of {what},", name, known)


def with_steps(run: Run, steps: int) -> Run:
    """Returns a copy of the run with another number of steps; warm-up and `val_every` are scaled to match.

    Example:
        >>> from neuralfunctionals.registry import find_run
        >>> with_steps(find_run("edit/mnist-dilate", scale="tiny"), 40).training.val_every
        20
    """
    share = steps / run.training.steps
    wanted = share * run.training.interval
    divisors = [n for n in range(1, steps + 1) if steps % n == 0]
    nearest = min(divisors, key=lambda n: abs(math.log(n / wanted)))
    values = {"training.steps": steps, "training.val_every": nearest}
    return with_values(run, {**values, "optimizer.warmup_steps": round(share * run.optimizer.warmup_steps)})
