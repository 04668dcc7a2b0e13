"""Quality of an INR compared with its image."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from neuralfunctionals.errors import UserError

# Axes: B images.


def psnr(
    values: Float[Tensor, "B *_shape"], targets: Float[Tensor, "_B *_shape"], *, peak: float = 2.0
) -> Float[Tensor, "B"]:
    r"""Peak signal-to-noise ratio in decibels, one per image.

    $$ 10 \log_{10} \frac{\text{peak}^2}{\text{mean}((x - y)^2)} $$

    Args:
        values: Rendered values.
        targets: The images, on the same scale.
        peak: The width of that scale: 2 for values in [-1, 1], 1 for pixels in [0, 1].

    Example:
        >>> psnr(torch.full((1, 4), 0.5), torch.full((1, 4), 0.48)).round().tolist()
        [40.0]
    """
    if values.shape != targets.shape:
        raise UserError(
            f"Expected values and targets of one shape, but got {tuple(values.shape)}, {tuple(targets.shape)}."
        )
    return psnr_from_error((values - targets).square().flatten(1).mean(1), peak=peak)


def psnr_from_error(mean_squared_error: Float[Tensor, "B"], *, peak: float = 2.0) -> Float[Tensor, "B"]:
    """The same from mean squared errors."""
    return 10 * torch.log10(peak**2 / mean_squared_error)
