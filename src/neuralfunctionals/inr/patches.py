"""Pictures rendered from one network per patch: `patch_pixels`, `render_patches`."""

from __future__ import annotations

import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor

from neuralfunctionals.errors import UserError
from neuralfunctionals.inr.coordinates import image_grid
from neuralfunctionals.inr.render import render
from neuralfunctionals.weight_space import WeightSpaceFeatures

# Axes: B pictures, M patches (m x m, row-major), m patches along a side, p pixels of a patch along a side, S pixels of
# the picture along a side, H rows, W columns, O outputs.


def patch_pixels(size: int, grid_size: int) -> tuple[Int[Tensor, "m p"], Int[Tensor, "S"]]:
    """Divides a side of a picture into parts that differ by at most one pixel, padded to the longest.

    Args:
        size: Number of pixels.
        grid_size: Number of parts; if there are more parts than pixels, the empty ones contain no kept pixel.

    Returns:
        The pixels of each part, and for each pixel of the side its position in the concatenated parts.

    Example:
        >>> pixels, places = patch_pixels(5, 2)
        >>> pixels.tolist(), places.tolist()
        ([[0, 1, 2], [3, 4, 4]], [0, 1, 2, 3, 4])
    """
    if size < 1 or grid_size < 1:
        raise UserError(f"Expected at least one pixel and one patch, but got {size} and {grid_size}.")
    bounds = torch.arange(grid_size + 1).mul(size).add(grid_size - 1) // grid_size
    longest = -(-size // grid_size)
    pixels = bounds[:-1, None] + torch.arange(longest)
    places = (pixels < bounds[1:, None]).flatten().nonzero()[:, 0]
    return pixels.clamp(max=size - 1), places


def render_patches(
    features: WeightSpaceFeatures,
    height: int,
    width: int,
    *,
    grid_size: int,
) -> Float[Tensor, "B H W O"]:
    """Renders pictures that have one network per patch, all in one batch; differentiable.

    A network is evaluated only on the pixels of its patch, in the coordinates of the whole picture.

    Args:
        features: Network `b * M + m` shows patch `m` of picture `b`, as returned by `Inr2Array.decode`.
        height: Rows of the pictures.
        width: Columns of the pictures.
        grid_size: Patches along each side; if it does not divide a size, patches differ by one pixel.
    """
    if len(features) % grid_size**2:
        raise UserError(
            f"Expected {grid_size**2} networks for each picture of {grid_size} x {grid_size} patches, but got "
            f"{len(features)} in total."
        )
    count = len(features) // grid_size**2
    (rows, kept_rows), (columns, kept_columns) = (patch_pixels(size, grid_size) for size in (height, width))
    grid = rearrange(image_grid(height, width), "(H W) D -> H W D", H=height)
    patches = grid[rows[:, None, :, None], columns[None, :, None, :]].to(features.tensor.device)
    coordinates = repeat(patches, "i j h w D -> (B i j) (h w) D", B=count)
    values = render(features, coordinates)
    picture = rearrange(
        values, "(B i j) (h w) O -> B (i h) (j w) O", i=grid_size, j=grid_size, h=rows.shape[1], B=count
    )
    for axis, kept in ((1, kept_rows), (2, kept_columns)):
        if len(kept) < picture.shape[axis]:
            picture = picture.index_select(axis, kept.to(picture.device))
    return picture
