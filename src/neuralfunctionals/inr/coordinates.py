"""Coordinates of a picture's pixels: the grid on which an INR is fitted and rendered."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from neuralfunctionals.errors import UserError

# Axes: P points.


def image_grid(height: int, width: int, *, dtype: torch.dtype = torch.float32) -> Float[Tensor, "P 2"]:
    """Coordinates of all pixels, row by row: `(row, column)`, each `linspace(-1, 1, n)`, endpoints included.

    Example:
        >>> image_grid(2, 3).tolist()
        [[-1.0, -1.0], [-1.0, 0.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 0.0], [1.0, 1.0]]
    """
    if height < 1 or width < 1:
        raise UserError(f"Expected an image of at least one pixel, but got {height} x {width}.")
    axes = [torch.linspace(-1, 1, n, dtype=torch.float64) for n in (height, width)]
    return torch.cartesian_prod(*axes).to(dtype)
