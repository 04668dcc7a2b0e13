"""A training run, described in full: `Run` and its parts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias, get_type_hints

from neuralfunctionals.json_files import JsonError, conform_names
from neuralfunctionals.tasks import OptimizerConfig, TrainingConfig
from neuralfunctionals.tasks.augment import Augment

Scale: TypeAlias = Literal["tiny", "small", "long", "paper"]
SCALES: tuple[Scale, ...] = ("tiny", "small", "long", "paper")
"""Seconds on a laptop; ten minutes of one core; two hours of one core; the paper's own hyperparameters."""

Canonical: TypeAlias = Literal["none", "sine"]
SAMPLES = {"mnist": "mnist-sample", "fashion": "fashion-sample", "cifar10": "shapes-sample"}
"""Full image sets and the embedded ones that stand in for them."""


@dataclass(frozen=True)
class DataConfig:
    """Which networks to learn from; made once and kept, unless a dataset is given."""

    images: str = "mnist-sample"
    """Image set: mnist-sample, fashion-sample, shapes-sample, mnist, fashion, cifar10, svhn-grey, or a path."""
    limit: int | None = None
    """This many images, spread over the splits in proportion; all if missing."""
    copies: int = 1
    """Networks for each training image."""
    fit: str = "default"
    """How the networks are fitted; see nf fit."""
    seed: int = 0
    """Start of the random numbers of the fits."""


@dataclass(frozen=True)
class ZooConfig:
    """Which zoo of CNNs to learn from; made once and kept, unless a dataset is given."""

    images: str = "mnist-sample"
    """Image set that the CNNs classify: mnist-sample, shapes-sample, cifar10, svhn-grey, ..., or a path."""
    grey: bool = True
    """Take the mean of the colours."""
    count: int = 800
    """Number of CNNs; half are for testing, a fifth of the rest for validation."""
    epochs: int = 86
    """Times that each CNN sees its images."""
    batch_size: int = 512
    """Images of a step of the CNNs' training."""
    limit_images: int | None = None
    """This many images, spread over training and testing in proportion; all if missing."""
    seed: int = 0
    """Start of the random numbers of the zoo."""


@dataclass(frozen=True)
class EditConfig:
    """The task of editing."""

    edit: Literal["dilate", "erode", "gradient", "contrast"] = "dilate"
    """What the edited networks shall show."""
    augment: Literal["none", "turns"] = "none"
    """Rotate and reflect training networks and targets at random; for dilate only."""


@dataclass(frozen=True)
class GeneralizationConfig:
    """The task of predicting test accuracy."""

    loss: Literal["bce", "mse"] = "bce"
    """Cross-entropy of the predicted accuracy, or its squared error."""


@dataclass(frozen=True)
class ReconstructConfig:
    """The task of an autoencoder."""

    target: Literal["inr", "image"] = "inr"
    """What the decoded networks shall show: what the network shows, or the image that it was fitted to."""
    augment: Augment = "none"
    """Move training networks and targets at random: by mild affine maps, or by rotations and reflections."""


@dataclass(frozen=True)
class ClassifyConfig:
    """The task of classification."""

    num_classes: int = 10
    """Number of classes."""
    mixup_alpha: float = 0.0
    """Mixup of training inputs with a share from Beta(alpha, alpha); 0 for none."""
    label_smoothing: float = 0.0
    """Share of each label that is spread over all classes."""
    decode_size: int = 0
    """Side of a small picture that the model learns to predict beside the class, in training; 0 for none."""
    augment: Augment = "none"
    """Move training networks at random: by mild affine maps, or by rotations and reflections."""
    mirror: bool = False
    """Mirror every second network too."""


TaskConfig: TypeAlias = EditConfig | ReconstructConfig | ClassifyConfig | GeneralizationConfig
TASK_CONFIGS: dict[str, type[TaskConfig]] = {
    "edit": EditConfig,
    "inr2array": ReconstructConfig,
    "classify": ClassifyConfig,
    "generalization": GeneralizationConfig,
}
"""The tasks by the first word of their recipes."""
DATA_CONFIGS: dict[str, type[Any]] = {"generalization": ZooConfig}
"""What they learn from, if not fitted INRs."""


@dataclass(frozen=True)
class Run:
    """Everything that decides what a run computes."""

    recipe: str
    scale: Scale
    model_name: str
    model: dict[str, Any] = field(default_factory=dict)
    """Arguments of the model's constructor."""
    task: TaskConfig = field(default_factory=EditConfig)
    data: DataConfig | ZooConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    canonical: Canonical = "none"
    """Whether the model sees sine networks as they are, or without signs and phases; see `nf.models.Canonical`."""
    seed: int = 0
    """Start of the random numbers: first parameters, order of the data, dropout."""

    @property
    def name(self) -> str:
        """A name for its directory."""
        return f"{self.recipe.replace('/', '-')}-{self.scale}-{self.model_name}-seed{self.seed}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any], where: str = "run") -> Run:
        """The inverse of `to_dict`, which checks every name and type; `where` the values come from is for messages."""
        family = str(values.get("recipe")).partition("/")[0]
        if family not in TASK_CONFIGS:
            raise JsonError(f"{where}.recipe: expected one of {', '.join(TASK_CONFIGS)}, but got '{family[:40]}'.")
        task = values.get("task")
        if isinstance(task, dict) and isinstance(task.get("augment"), bool):  # as older versions wrote it
            values = {**values, "task": {**task, "augment": "turns" if task["augment"] else "none"}}
        kinds = get_type_hints(cls)
        kinds |= {"task": TASK_CONFIGS[family], "data": DATA_CONFIGS.get(family, DataConfig)}
        return cls(**conform_names(values, kinds, ("recipe", "scale", "model_name"), where))


def flatten(run: Run) -> dict[str, Any]:
    """All fields by name, those of its parts as `optimizer.lr`."""
    return _flatten(run.to_dict())


def _flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


def with_values(run: Run, values: Mapping[str, Any]) -> Run:
    """The run with some fields, such as `seed` or `optimizer.lr`, set to other values."""
    changed: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {}  # the fields of a part change at once: it judges them together
    for name, value in values.items():
        part, _, field = name.partition(".")
        if field:
            parts.setdefault(part, {})[field] = value
        else:
            changed[part] = value
    for part, new in parts.items():
        before = changed.get(part, getattr(run, part))
        changed[part] = {**before, **new} if isinstance(before, dict) else replace(before, **new)
    return replace(run, **changed)


def with_steps(run: Run, steps: int) -> Run:
    """The run with another number of steps; warm-up and validations stay in proportion, as far as steps divide.

    Example:
        >>> from neuralfunctionals.recipes import find_run
        >>> with_steps(find_run("edit/mnist-dilate", scale="tiny"), 40).training.val_every
        20
    """
    share = steps / run.training.steps
    wanted = share * run.training.interval
    divisors = [n for n in range(1, steps + 1) if steps % n == 0]
    nearest = min(divisors, key=lambda n: abs(math.log(n / wanted)))
    values = {"training.steps": steps, "training.val_every": nearest}
    return with_values(run, {**values, "optimizer.warmup_steps": round(share * run.optimizer.warmup_steps)})


_TIMES: dict[Scale, int] = {"small": 1, "long": 12}
"""How many times the steps of `small` a scale has."""


def training_of(scale: Scale, steps: int, batch_size: int, optimizer: OptimizerConfig) -> dict[str, Any]:
    """Optimiser and training of a run at a scale, from the steps that `small` has: ten minutes of one core.

    Validations, warm-up and the running mean of the parameters follow from the steps.
    """
    total = steps * _TIMES[scale]
    return {
        "optimizer": replace(optimizer, warmup_steps=min(500, total // 16)),
        "training": TrainingConfig(
            steps=total, batch_size=batch_size, val_every=steps // 10, log_every=10, ema_decay=0.999
        ),
    }
