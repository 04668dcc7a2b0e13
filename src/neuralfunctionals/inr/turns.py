"""The eight turns of a square, for networks and for the pictures they show: `turn_networks`, `turn_images`."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from neuralfunctionals.inr.siren import require_convention
from neuralfunctionals.weight_space import WeightSpaceFeatures
from neuralfunctionals.weight_space.features import join_groups

# Axes: B input networks or pictures, H rows, W columns, C colours.
# A turn is a number from 0 to 7: bit 0 reverses the rows, bit 1 the columns, bit 2 then exchanges rows and columns.


def turn_images(images: Float[Tensor, "B H W C"], turns: Int[Tensor, "B"]) -> Float[Tensor, "B H W C"]:
    """Each picture reversed and exchanged as its number says; exchanging needs squares."""
    for bit, action in enumerate((lambda x: x.flip(1), lambda x: x.flip(2), lambda x: x.transpose(1, 2))):
        chosen = _has_bit(turns, bit)
        if chosen.any():
            images = torch.where(chosen[:, None, None, None], action(images), images)
    return images


def turn_networks(
    features: WeightSpaceFeatures, turns: Int[Tensor, "B"], *, convention: str = "paper"
) -> WeightSpaceFeatures:
    """Networks that show the turned pictures, exactly: a turn of the coordinates is one of the first layer's weights.

    Args:
        features: Networks of two coordinates, one channel.
        turns: The number of each network's turn.
        convention: How the weights are meant: `"dws"` networks have the column as their first coordinate.
    """
    require_convention(convention)
    weight, *rest = features.split()
    if weight.shape[2] != 2:
        raise ValueError(f"Expected networks of two coordinates, but these have {weight.shape[2]}.")
    by_row, by_column = weight.unbind(2) if convention == "paper" else weight.flip(2).unbind(2)
    reverse_rows, reverse_columns, exchange = (_has_bit(turns, bit)[:, None, None] for bit in range(3))
    by_row = torch.where(reverse_rows, -by_row, by_row)
    by_column = torch.where(reverse_columns, -by_column, by_column)
    by_row, by_column = torch.where(exchange, by_column, by_row), torch.where(exchange, by_row, by_column)
    turned = torch.stack((by_row, by_column) if convention == "paper" else (by_column, by_row), dim=2)
    return features.with_tensor(join_groups(features.spec, [turned, *rest]))


def _has_bit(numbers: Int[Tensor, "B"], bit: int) -> Tensor:
    return (numbers >> bit) % 2 == 1
