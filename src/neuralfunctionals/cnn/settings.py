"""Hyperparameters of the networks of a zoo, and the random numbers of each network: `CnnSettings`, `CnnDraws`."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import nn

from neuralfunctionals.weight_space import LayerSpec, NetworkSpec

# Axes: N packed entries, M images.

ACTIVATIONS = ("relu", "tanh")
OPTIMIZERS = ("sgd", "adam", "rmsprop")
INITIALIZERS = ("glorot_normal", "he_normal", "orthogonal", "RandomNormal", "TruncatedNormal")
TRAIN_FRACTIONS = (0.1, 0.25, 0.5, 1.0)
CHANNELS, CONVOLUTIONS, KERNEL, STRIDE = 16, 3, 3, 2
MIN_IMAGE_SIZE = 15
"""Smaller images have no positions left after the third convolution."""
# Standard deviation of a normal distribution truncated at two standard deviations.
_TRUNCATED_STD = 0.87962566103423978
_SETTINGS, _WEIGHTS, _SUBSET, _ORDER, _DROPOUT = range(5)


@dataclass(frozen=True)
class CnnSettings:
    """The hyperparameters of one network; names, values and ranges are those of the published zoo.

    Reference: Unterthiner et al., 2020, https://arxiv.org/abs/2002.11448.
    """

    activation: str
    optimizer: str
    """Without momentum; Adam and RMSprop with decays 0.9, 0.999 and 0.9 and an epsilon of 1e-7."""
    w_init: str
    """Initialisation of the weights; biases start at zero."""
    learning_rate: float
    l2reg: float
    """L2 regularisation: this times the sum of squared weights, without biases, is added to the loss."""
    dropout: float
    """Fraction of activations dropped after each convolution."""
    init_std: float
    """Standard deviation of the initialisers RandomNormal and TruncatedNormal; others do not use it."""
    train_fraction: float
    """Fraction of the training images that this network sees."""

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, for JSON."""
        return asdict(self)


def cnn_spec(channels: int = 1, classes: int = 10) -> NetworkSpec:
    """The spec of the zoo's networks."""
    return NetworkSpec.cnn([channels] + [CHANNELS] * CONVOLUTIONS, (KERNEL, KERNEL), dense=[classes])


def build_cnn(channels: int = 1, classes: int = 10, *, activation: str = "relu", dropout: float = 0.0) -> nn.Sequential:
    """The network of the zoo as an ordinary module, for instance as the template of `features.to_modules`.

    It takes images `(B, channels, height, width)` in [-1, 1] and returns logits.

    Example:
        >>> build_cnn(activation="tanh")(torch.zeros(2, 1, 32, 32)).shape
        torch.Size([2, 10])
    """
    layers: list[nn.Module] = []
    for index in range(CONVOLUTIONS):
        layers.append(nn.Conv2d(channels if index == 0 else CHANNELS, CHANNELS, KERNEL, STRIDE))
        layers.append(nn.ReLU() if activation == "relu" else nn.Tanh())
        layers += [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, classes))


@dataclass(frozen=True)
class CnnDraws:
    """The random numbers of one network; they depend only on these three numbers, not on the rest of the zoo.

    They come from a counter-based generator (Philox) with the seed and the item as its key, and the purpose, the
    attempt and the epoch as its counter.
    """

    seed: int
    item: int
    attempt: int = 0
    """Number of earlier networks of this item that diverged; each attempt has new hyperparameters."""

    def _raw(self, count: int, purpose: int, epoch: int = 0) -> np.ndarray:
        key, counter = [self.seed, self.item], [0, purpose, self.attempt, epoch]
        return np.random.Philox(key=key, counter=counter).random_raw(count)

    def _uniform(self, count: int, purpose: int) -> np.ndarray:
        """Numbers strictly between 0 and 1."""
        return ((self._raw(count, purpose) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53

    @cached_property
    def settings(self) -> CnnSettings:
        """Hyperparameters."""
        u = self._uniform(8, _SETTINGS).tolist()

        def choose(choices: tuple[Any, ...], x: float) -> Any:
            return choices[int(x * len(choices))]

        def log_uniform(low: float, high: float, x: float) -> float:
            return float(low * (high / low) ** x)

        return CnnSettings(
            activation=choose(ACTIVATIONS, u[0]),
            optimizer=choose(OPTIMIZERS, u[1]),
            w_init=choose(INITIALIZERS, u[2]),
            learning_rate=log_uniform(5e-4, 5e-2, u[3]),
            l2reg=log_uniform(1e-8, 1e-2, u[4]),
            dropout=int(0.7 * u[5] * 2**16) / 2**16,  # as finely as masks are drawn
            init_std=log_uniform(1e-3, 0.5, u[6]),
            train_fraction=choose(TRAIN_FRACTIONS, u[7]),
        )

    def initial_weights(self, spec: NetworkSpec) -> Float[np.ndarray, "N"]:
        """Packed initial weights and biases."""
        uniform = self._uniform(spec.num_entries, _WEIGHTS)
        start = np.zeros(spec.num_entries)
        for group in spec.groups:
            if group.kind == "weight":
                here = slice(group.start, group.stop)
                start[here] = _initialize(uniform[here], spec.layers[group.layer - 1], self.settings)
        return start

    def subset(self, num_images: int) -> Int[np.ndarray, "M"]:
        """The training images that this network sees."""
        count = max(1, int(self.settings.train_fraction * num_images))
        return np.argsort(self._raw(num_images, _SUBSET), kind="stable")[:count]

    def order(self, subset: Int[np.ndarray, "M"], epoch: int) -> Int[np.ndarray, "M"]:
        """The order of its images in an epoch."""
        return subset[np.argsort(self._raw(len(subset), _ORDER, epoch), kind="stable")]

    @property
    def dropout_key(self) -> int:
        """Key of 32 bits; see `dropout_masks`."""
        return int(self._raw(1, _DROPOUT)[0] >> np.uint64(32))


def _initialize(uniform: np.ndarray, layer: LayerSpec, settings: CnnSettings) -> np.ndarray:
    fan_in, fan_out = layer.in_neurons * layer.kernel_size, layer.out_neurons * layer.kernel_size
    if settings.w_init == "orthogonal":
        rows = _normal(uniform).reshape(layer.out_neurons, fan_in)
        tall = rows if layer.out_neurons > fan_in else rows.T
        q, r = np.linalg.qr(tall)
        q = q * np.sign(np.diag(r))  # uniform over all orthogonal matrices
        return (q if layer.out_neurons > fan_in else q.T).ravel()
    if settings.w_init == "RandomNormal":
        return settings.init_std * _normal(uniform)
    std = {
        "glorot_normal": math.sqrt(2 / (fan_in + fan_out)) / _TRUNCATED_STD,
        "he_normal": math.sqrt(2 / fan_in) / _TRUNCATED_STD,
        "TruncatedNormal": settings.init_std,
    }[settings.w_init]
    outside = 0.5 * math.erfc(math.sqrt(2))  # beyond two standard deviations, on each side
    return std * _normal(outside + (1 - 2 * outside) * uniform)


def _normal(uniform: np.ndarray) -> np.ndarray:
    return torch.special.ndtri(torch.from_numpy(uniform)).numpy()


_MIX = (np.uint32(0x7FEB352D), np.uint32(0x846CA68B))
_STEP = np.uint32(0x9E3779B9)


def _hash(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint32(16))) * _MIX[0]
    x = (x ^ (x >> np.uint32(15))) * _MIX[1]
    return x ^ (x >> np.uint32(16))


def dropout_masks(key: int, step: int, rate: float, batch_size: int, num_positions: int) -> np.ndarray:
    """Factors of the activations in one step: 0, or 1 / (1 - rate).

    A mask is a hash of its position, so that both engines compute the same masks in any order.

    Args:
        key: Key of the network.
        step: Training step.
        rate: Fraction to drop, a multiple of 1 / 65536.
        batch_size: Images per step.
        num_positions: Output positions of all convolutions together.

    Returns:
        Shape `(batch_size, num_positions, 16)`, the positions of the first convolution first.
    """
    step_key = _hash(np.array([key], dtype=np.uint32) + np.array([step], dtype=np.uint32) * _STEP)
    places = np.arange(batch_size * num_positions * CHANNELS // 2, dtype=np.uint32)
    words = _hash(places * _STEP + step_key).reshape(batch_size, num_positions, CHANNELS // 2)
    draws = np.concatenate([words & np.uint32(0xFFFF), words >> np.uint32(16)], axis=-1)
    return np.where(draws >= round(rate * 2**16), 1 / (1 - rate), 0.0)
