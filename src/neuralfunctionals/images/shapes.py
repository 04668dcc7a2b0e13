"""Small colour pictures drawn from a seed: a substitute for colour image sets that needs no download."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Int, UInt8

# Axes: B images.

_SIZE = 32
_FINER = 4  # drawn at this many times the resolution, then averaged, for smooth edges

# Each shape in its own coordinates: x to the right, y down, about the size of the unit disc.
_SHAPES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "disc": lambda x, y: x**2 + y**2 < 1,
    "ring": lambda x, y: np.abs(np.hypot(x, y) - 0.75) < 0.25,
    "square": lambda x, y: np.maximum(abs(x), abs(y)) < 0.85,
    "frame": lambda x, y: np.abs(np.maximum(abs(x), abs(y)) - 0.7) < 0.2,
    "diamond": lambda x, y: abs(x) + abs(y) < 1.1,
    "triangle": lambda x, y: (y < 0.7) & (abs(x) * 1.7 < y + 1),
    "cross": lambda x, y: (np.minimum(abs(x), abs(y)) < 0.3) & (np.maximum(abs(x), abs(y)) < 1),
    "stripes": lambda x, y: (np.maximum(abs(x), abs(y)) < 0.95) & (np.sin(8 * x) > 0),
    "moon": lambda x, y: (x**2 + y**2 < 1) & ((x - 0.5) ** 2 + y**2 > 0.7),
    "star": lambda x, y: np.hypot(x, y) < 0.65 + 0.35 * np.cos(5 * np.arctan2(x, -y)),
}
SHAPES = tuple(_SHAPES)


NUM_PICTURES = 2000


def shape_labels(count: int = NUM_PICTURES) -> Int[np.ndarray, "B"]:
    """Classes in turn, in an order that rotates, so that every tenth picture is not always of the same class."""
    return (np.arange(count) + np.arange(count) // len(SHAPES)) % len(SHAPES)


def draw_shapes(indices: Sequence[int] | np.ndarray, seed: int = 0) -> UInt8[np.ndarray, "B 32 32 3"]:
    """Draws these pictures: one shape on a smooth colour gradient, each from its own random numbers.

    Example:
        >>> draw_shapes([0, 7]).shape, [SHAPES[i] for i in shape_labels()[[0, 7]]]
        ((2, 32, 32, 3), ['disc', 'stripes'])
    """
    labels = shape_labels(int(max([0, *indices])) + 1)
    pictures = [
        _draw(_SHAPES[SHAPES[labels[i]]], np.random.Generator(np.random.Philox(key=[seed, i]))) for i in indices
    ]
    return np.stack(pictures) if pictures else np.empty((0, _SIZE, _SIZE, 3), np.uint8)


def _draw(is_inside: Callable[[np.ndarray, np.ndarray], np.ndarray], generator: np.random.Generator) -> np.ndarray:
    axis = (np.arange(_SIZE * _FINER) + 0.5) / (_SIZE * _FINER) * 2 - 1
    y, x = axis[:, None], axis[None, :]
    background, slope_x, slope_y, colour = generator.uniform(-1, 1, (4, 3))
    # A colour that stands out from the background.
    colour = np.where(np.abs(colour - background) < 0.5, -np.sign(background + 1e-9) * 0.8, colour)
    centre, radius = generator.uniform(-0.3, 0.3, 2), generator.uniform(0.4, 0.65)
    angle = generator.uniform(-0.35, 0.35)
    dx, dy = (x - centre[0]) / radius, (y - centre[1]) / radius
    inside = is_inside(dx * np.cos(angle) + dy * np.sin(angle), dy * np.cos(angle) - dx * np.sin(angle))
    cover = inside.reshape(_SIZE, _FINER, _SIZE, _FINER).mean((1, 3))[..., None]
    coarse = axis.reshape(_SIZE, _FINER).mean(1)
    ground = 0.7 * background + 0.15 * (coarse[None, :, None] * slope_x + coarse[:, None, None] * slope_y)
    value = cover * 0.9 * colour + (1 - cover) * ground
    return np.clip(np.rint((value + 1) * 127.5), 0, 255).astype(np.uint8)
