"""Transforms pictures exactly, by transforming the coordinates of their networks: `move_networks`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from neuralfunctionals.errors import UserError
from neuralfunctionals.weight_space import WeightSpaceFeatures
from neuralfunctionals.weight_space.features import join_groups

# Axes: B input networks or pictures, H rows, W columns, C colours.


def move_networks(
    features: WeightSpaceFeatures,
    matrix: Float[Tensor, "B 2 2"],
    shift: Float[Tensor, "B 2"] | None = None,
) -> WeightSpaceFeatures:
    r"""Networks that show, at $x$, what they showed at $A x + t$.

    A map of the coordinates is a change of the first layer: $W_1 (A x + t) + b_1 = (W_1 A) x + (b_1 + W_1 t)$.

    Args:
        features: Networks of two coordinates, one channel. Those of the convention `"dws"` have the column as their
            first coordinate.
        matrix: $A$ for each network, for coordinates in the order (row, column).
        shift: $t$ for each network, in the same order. Defaults to zero.
    """
    weight, bias, *rest = features.split()
    if features.spec.widths[0] != 2 or not features.spec.layers[0].has_bias:
        raise UserError(f"Expected networks of two coordinates with biases, but got {features.spec}.")
    if features.spec.convention == "dws":
        matrix = matrix.flip(1, 2)
        shift = None if shift is None else shift.flip(1)
    first = weight[..., 0]
    moved = (first @ matrix.to(first))[..., None]
    if shift is not None:
        bias = bias + (first @ shift.to(first)[..., None])
    return features.with_tensor(join_groups(features.spec, [moved, bias, *rest]))


@dataclass(frozen=True)
class AffineMaps:
    """A distribution of small affine maps: rotation, scale, shear and shift, each uniform around the identity.

    Keep them small: they also show parts outside the square that the network was fitted to.
    """

    turn: float = 0.15
    """Largest rotation, in radians."""
    scale: float = 0.1
    """Largest logarithm of the scale along each side."""
    shear: float = 0.06
    """Largest shear."""
    shift: float = 0.08
    """Largest shift; the picture has side length 2."""
    mirror: bool = False
    """Whether to flip the columns with probability 1/2."""

    def sample(self, count: int) -> tuple[Float[Tensor, "B 2 2"], Float[Tensor, "B 2"]]:
        """Matrices and shifts for `count` networks, from torch's default generator."""
        turn, shear = self.turn * _uniform(count), self.shear * _uniform(count)
        scale = torch.exp(self.scale * _uniform(count, 2))
        cos, sin, zero = turn.cos(), turn.sin(), torch.zeros(count)
        rotation = torch.stack([cos, -sin, sin, cos], dim=-1).view(count, 2, 2)
        stretch = torch.stack([scale[:, 0], shear, zero, scale[:, 1]], dim=-1).view(count, 2, 2)
        matrix = rotation @ stretch
        if self.mirror:
            signs = 1 - 2 * torch.randint(2, (count,)).float()
            matrix = matrix * torch.stack([torch.ones(count), signs], dim=-1)[:, None]
        return matrix, self.shift * _uniform(count, 2)


def _uniform(*shape: int) -> Tensor:
    return 2 * torch.rand(shape) - 1


# A turn is a number from 0 to 7: bit 0 flips the rows, bit 1 the columns, and bit 2 then transposes.


def turn_images(images: Float[Tensor, "B H W C"], turns: Int[Tensor, "B"]) -> Float[Tensor, "B H W C"]:
    """Flips and transposes each picture by the three bits of its number; transposing needs square pictures."""
    for bit, action in enumerate((lambda x: x.flip(1), lambda x: x.flip(2), lambda x: x.transpose(1, 2))):
        chosen = _has_bit(turns, bit)
        if chosen.any():
            images = torch.where(chosen[:, None, None, None], action(images), images)
    return images


def turn_networks(features: WeightSpaceFeatures, turns: Int[Tensor, "B"]) -> WeightSpaceFeatures:
    """Networks that show the turned pictures, exactly.

    Args:
        features: Networks of two coordinates, one channel.
        turns: The number of each network's turn.
    """
    signs = torch.stack([1.0 - 2.0 * _has_bit(turns, bit).float() for bit in (0, 1)], dim=-1)
    matrix = torch.diag_embed(signs)
    exchange = _has_bit(turns, 2)[:, None, None]
    return move_networks(features, torch.where(exchange, matrix.flip(2), matrix))


def _has_bit(numbers: Int[Tensor, "B"], bit: int) -> Tensor:
    return (numbers >> bit) % 2 == 1
