"""Trains the CNNs of a zoo, many at once: the data they see, the two engines, checkpoints."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from jaxtyping import Float, Int, Int32
from torch import Tensor

from neuralfunctionals import kernels
from neuralfunctionals.cnn.settings import (
    ACTIVATIONS,
    CONVOLUTIONS,
    KERNEL,
    OPTIMIZERS,
    STRIDE,
    CnnDraws,
    CnnSettings,
    cnn_spec,
    dropout_masks,
)
from neuralfunctionals.errors import UserError
from neuralfunctionals.weight_space import NetworkSpec, WeightSpaceFeatures

# Axes: B input networks, N packed entries, K checkpoints, M images, H rows, W columns, C colours, P positions.

METRICS = ("train_loss", "train_accuracy", "test_loss", "test_accuracy")
"""Measured at each checkpoint, without dropout: mean cross-entropy (no L2 term) and accuracy."""
_KERNEL = "cnn_training"
_MAX_ATTEMPTS = 20
_EPSILON = 1e-7


@dataclass(frozen=True, eq=False)
class CnnImages:
    """The images that all networks of a zoo share."""

    pixels: Float[np.ndarray, "M H W C"]
    """In [-1, 1]."""
    labels: Int32[np.ndarray, "M"]
    train: Int[np.ndarray, "_train"]
    """Indices of the training images, of which each network sees a fraction."""
    test: Int[np.ndarray, "_test"]
    num_classes: int

    @cached_property
    def spec(self) -> NetworkSpec:
        """The spec of the networks for these images."""
        return cnn_spec(self.pixels.shape[3], self.num_classes)


@dataclass(frozen=True, eq=False)
class TrainedCnn:
    """One network and its metrics."""

    draws: CnnDraws
    weights: Float[np.ndarray, "K N"]
    """At each checkpoint."""
    metrics: Float[np.ndarray, "K 4"]
    """`METRICS` at each checkpoint."""

    @property
    def settings(self) -> CnnSettings:
        """Its hyperparameters."""
        return self.draws.settings

    @property
    def is_finite(self) -> bool:
        """Whether its training did not diverge."""
        return bool(np.isfinite(self.weights).all() and np.isfinite(self.metrics).all())


def checkpoint_epochs(epochs: int) -> list[int]:
    """Epochs after which checkpoints are kept: 0 to 3, every twentieth, and the last."""
    return sorted({e for e in range(epochs) if e < 4 or e % 20 == 0} | {epochs})


def choose_engine(engine: str, channels: int) -> Literal["native", "torch"]:
    """The engine that `train_cnns` will use."""
    return kernels.choose_engine(engine, _KERNEL, suits=channels in (1, 3), needs="images of 1 or 3 channels")


def train_cnns(
    images: CnnImages,
    items: Sequence[int],
    *,
    seed: int = 0,
    epochs: int = 86,
    batch_size: int = 512,
    engine: str = "auto",
    dtype: torch.dtype = torch.float32,
    progress: Callable[[int], None] | None = None,
) -> list[TrainedCnn]:
    """Trains one CNN per item, on one thread; each depends only on its item and the seed.

    An epoch is one pass over the network's images in random order, without the last incomplete batch. If a network
    diverges, another one with new hyperparameters is trained for its item.

    Args:
        images: The images to train and test on.
        items: Numbers of the networks.
        seed: Random seed of the whole zoo.
        epochs: How often each network sees its images.
        batch_size: Images per step; a network with fewer images uses all of them.
        engine: `"native"` is compiled for this processor on first use and trains each network in its cache; `"torch"`
            trains networks with equal activation and number of images in batches; `"auto"` uses the first that works.
        dtype: Precision of the torch engine; the native one computes in single precision.
        progress: Called with the number of networks finished since the last call, after each epoch.
    """
    chosen = choose_engine(engine, images.pixels.shape[3])
    report = progress or (lambda count: None)
    found: dict[int, TrainedCnn] = {}
    for attempt in range(_MAX_ATTEMPTS):
        left = [CnnDraws(seed, item, attempt) for item in items if item not in found]
        if chosen == "native":
            trained = [_train_native(images, draws, epochs, batch_size, report) for draws in left]
        else:
            trained = []
            for kind in sorted({_kind(draws) for draws in left}):
                alike = [draws for draws in left if _kind(draws) == kind]
                trained += _train_torch(images, alike, epochs, batch_size, dtype, report)
        found.update({network.draws.item: network for network in trained if network.is_finite})
        if len(found) == len(items):
            return [found[item] for item in items]
    raise UserError(f"Networks of {len(items) - len(found)} items diverged {_MAX_ATTEMPTS} times. Check the images.")


def num_batches(num_images: int, batch_size: int) -> tuple[int, int]:
    """The number of batches in an epoch, and their size."""
    size = min(batch_size, num_images)
    return num_images // size, size


# Native: one network at a time.


def _train_native(
    images: CnnImages, draws: CnnDraws, epochs: int, batch_size: int, report: Callable[[int], None]
) -> TrainedCnn:
    subset = images.train[draws.subset(len(images.train))]
    steps, size = num_batches(len(subset), batch_size)
    state = np.zeros((3, images.spec.num_entries), dtype=np.float32)
    state[0] = draws.initial_weights(images.spec)
    kept, metrics = [], []
    for epoch in range(epochs + 1):
        diverged = not np.isfinite(state[0]).all()
        if diverged or epoch in checkpoint_epochs(epochs):
            sides = [_evaluate_native(images, which, state[0], draws) for which in (subset, images.test)]
            kept.append(state[0].copy())
            metrics.append(np.concatenate(sides))
        if diverged or epoch == epochs:
            break
        _train_epoch(images, draws, state, draws.order(subset, epoch)[: steps * size], size, epoch * steps)
        report(0)
    trained = TrainedCnn(draws, np.stack(kept), np.stack(metrics))
    report(int(trained.is_finite))
    return trained


def _train_epoch(
    images: CnnImages, draws: CnnDraws, state: np.ndarray, order: np.ndarray, batch_size: int, step: int
) -> None:
    settings = draws.settings
    kernels.call(
        _KERNEL,
        "train_cnn",
        *_image_arguments(images, order),
        len(order) // batch_size,
        ctypes.c_int32(batch_size),
        state,
        step,
        ctypes.c_int32(ACTIVATIONS.index(settings.activation)),
        ctypes.c_int32(OPTIMIZERS.index(settings.optimizer)),
        ctypes.c_float(settings.learning_rate),
        ctypes.c_float(settings.l2reg),
        ctypes.c_float(settings.dropout),
        ctypes.c_uint32(draws.dropout_key),
    )


def _evaluate_native(images: CnnImages, which: np.ndarray, weights: np.ndarray, draws: CnnDraws) -> np.ndarray:
    result = np.zeros(2)
    activation = ctypes.c_int32(ACTIVATIONS.index(draws.settings.activation))
    arguments = *_image_arguments(images, which), len(which), weights, activation, result
    kernels.call(_KERNEL, "evaluate_cnn", *arguments)
    return result


def _image_arguments(images: CnnImages, which: np.ndarray) -> tuple[np.ndarray, ...]:
    shape = np.array([*images.pixels.shape[1:], images.num_classes], dtype=np.int32)
    return shape, images.pixels, images.labels, which.astype(np.int32)


# Torch: networks with the same activation and number of images, trained together.


def _kind(draws: CnnDraws) -> tuple[str, float]:
    return draws.settings.activation, draws.settings.train_fraction


def _train_torch(
    images: CnnImages,
    draws: Sequence[CnnDraws],
    epochs: int,
    batch_size: int,
    dtype: torch.dtype,
    report: Callable[[int], None],
) -> list[TrainedCnn]:
    spec = images.spec
    subsets = [images.train[d.subset(len(images.train))] for d in draws]
    steps, size = num_batches(len(subsets[0]), batch_size)
    parameters = torch.from_numpy(np.stack([d.initial_weights(spec) for d in draws])).to(dtype)
    optimizer = _Optimizer([d.settings for d in draws], spec, parameters)
    activation = {"relu": torch.relu, "tanh": torch.tanh}[draws[0].settings.activation]
    positions = _num_positions(images)
    kept, metrics = [], []
    for epoch in range(epochs + 1):
        if epoch in checkpoint_epochs(epochs):
            kept.append(parameters.clone())
            sides = [
                _evaluate_torch(images, which, parameters, activation)
                for which in (subsets, [images.test] * len(draws))
            ]
            metrics.append(torch.cat(sides, dim=1))
        if epoch == epochs:
            break
        orders = np.stack([d.order(subset, epoch) for d, subset in zip(draws, subsets, strict=True)])
        for step in range(steps):
            pixels, labels = _gather(images, orders[:, step * size : (step + 1) * size], dtype)
            now = epoch * steps + step
            masks = [dropout_masks(d.dropout_key, now, d.settings.dropout, size, positions) for d in draws]
            variable = parameters.clone().requires_grad_()
            logits = _logits(spec, variable, pixels, activation, torch.from_numpy(np.stack(masks, 1)).to(dtype))
            # Networks share no parameters, so the gradient of the sum contains the gradient of each.
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / size
            optimizer.step(parameters, torch.autograd.grad(loss, variable)[0])
        report(0)
    weights, measured = torch.stack(kept, 1).numpy(), torch.stack(metrics, 1).double().numpy()
    trained = [TrainedCnn(d, w, m) for d, w, m in zip(draws, weights, measured, strict=True)]
    report(sum(network.is_finite for network in trained))
    return trained


def _logits(
    spec: NetworkSpec,
    parameters: Float[Tensor, "B N"],
    pixels: Float[Tensor, "M B C H W"],
    activation: Callable[[Tensor], Tensor],
    masks: Float[Tensor, "M B P _c"] | None,
) -> Float[Tensor, "M B _classes"]:
    """Runs a batch of networks, each on its own images, as the groups of one convolution."""
    features = WeightSpaceFeatures(spec, parameters[..., None])
    weights, biases = [w[..., 0] for w in features.weights], [b[..., 0] for b in features.biases]
    count, start = len(parameters), 0
    x = pixels.flatten(1, 2)
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        z = F.conv2d(x, weight.flatten(0, 1), bias.flatten(), STRIDE, groups=count).unflatten(1, (count, -1))
        h = activation(z)
        if masks is not None:
            stop = start + h.shape[-2] * h.shape[-1]
            h = h * masks[:, :, start:stop].mT.unflatten(-1, h.shape[-2:])
            start = stop
        x = h.flatten(1, 2)
    pooled = x.mean((-2, -1)).unflatten(1, (count, -1))
    return einsum(pooled, weights[-1], "M B i, B o i -> M B o") + biases[-1]


def _num_positions(images: CnnImages) -> int:
    total, (height, width) = 0, images.pixels.shape[1:3]
    for _ in range(CONVOLUTIONS):
        height, width = ((n - KERNEL) // STRIDE + 1 for n in (height, width))
        total += height * width
    return total


def _gather(images: CnnImages, which: np.ndarray, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Pixels `(M, B, C, H, W)` and labels `(M, B)` of each network's images."""
    pixels = rearrange(torch.from_numpy(images.pixels[which]), "B M H W C -> M B C H W")
    return pixels.to(dtype).contiguous(), torch.from_numpy(images.labels[which]).long().T


@torch.no_grad()
def _evaluate_torch(
    images: CnnImages,
    which: Sequence[np.ndarray],
    parameters: Float[Tensor, "B N"],
    activation: Callable[[Tensor], Tensor],
) -> Float[Tensor, "B 2"]:
    """Cross-entropy and accuracy of each network on its own images."""
    sums = torch.zeros(len(parameters), 2, dtype=parameters.dtype)
    stacked = np.stack(which)
    for start in range(0, stacked.shape[1], 256):
        pixels, labels = _gather(images, stacked[:, start : start + 256], parameters.dtype)
        logits = _logits(images.spec, parameters, pixels, activation, None)
        sums[:, 0] += F.cross_entropy(logits.movedim(2, 1), labels, reduction="none").sum(0)
        sums[:, 1] += (logits.argmax(2) == labels).sum(0)
    return sums / stacked.shape[1]


class _Optimizer:
    """One optimiser for many networks, each with its own kind and rates."""

    def __init__(self, settings: Sequence[CnnSettings], spec: NetworkSpec, parameters: Float[Tensor, "B N"]) -> None:
        def column(values: list[Any]) -> Tensor:
            return torch.tensor(values, dtype=parameters.dtype)[:, None]

        self.is_adam = column([s.optimizer == "adam" for s in settings]).bool()
        self.is_sgd = column([s.optimizer == "sgd" for s in settings]).bool()
        self.rate = column([s.learning_rate for s in settings])
        self.beta2 = column([0.999 if s.optimizer == "adam" else 0.9 for s in settings])
        is_weight = torch.cat([torch.full((g.size,), float(g.kind == "weight")) for g in spec.groups])
        self.decay = 2 * column([s.l2reg for s in settings]) * is_weight.to(parameters.dtype)
        self.first, self.second = torch.zeros_like(parameters), torch.zeros_like(parameters)
        self.steps = 0

    def step(self, parameters: Float[Tensor, "B N"], gradient: Float[Tensor, "B N"]) -> None:
        self.steps += 1
        gradient = gradient + self.decay * parameters
        self.first.lerp_(gradient, 0.1)
        self.second.mul_(self.beta2).add_((1 - self.beta2) * gradient.square())
        corrected1 = self.first / (1 - 0.9**self.steps)
        root = self.second.sqrt()
        adam = corrected1 / (root / (1 - 0.999**self.steps) ** 0.5 + _EPSILON)
        rmsprop = gradient / (root + _EPSILON)
        direction = torch.where(self.is_sgd, gradient, torch.where(self.is_adam, adam, rmsprop))
        parameters.sub_(self.rate * direction)
