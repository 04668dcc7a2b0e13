"""From weights to pictures: many different sine networks at once, differentiable."""

from __future__ import annotations

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from neuralfunctionals.errors import UserError
from neuralfunctionals.inr.coordinates import image_grid
from neuralfunctionals.inr.siren import require_convention, require_siren
from neuralfunctionals.weight_space import WeightSpaceFeatures

# Axes: B input networks, P points, D input dimensions, O outputs.


def render(
    features: WeightSpaceFeatures,
    coordinates: Float[Tensor, "*B P D"],
    *,
    omega: float = 30.0,
    convention: str = "paper",
) -> Float[Tensor, "B P O"]:
    """The values of each network at each point, in [-1, 1] up to the quality of the fit.

    Differentiable with respect to weights and coordinates. Whatever convention the weights follow, coordinates stand
    row first and values are in the scale of the paper, so that pictures compare directly.

    Args:
        features: Sine networks, one channel.
        coordinates: One grid for all, `(P, D)`, or points of its own for each network, `(B, P, D)`.
        omega: Frequency of the sines.
        convention: How the weights are meant; see `convert_convention`.

    Example:
        >>> from neuralfunctionals.inr import Siren, image_grid
        >>> sirens = WeightSpaceFeatures.from_modules([Siren(), Siren()])
        >>> render(sirens, image_grid(28, 28)).shape
        torch.Size([2, 784, 1])
    """
    require_siren(features.spec)
    require_convention(convention)
    dimension = features.spec.widths[0]
    expected = f"(points, {dimension}) or ({len(features)}, points, {dimension})"
    if coordinates.ndim not in (2, 3) or coordinates.shape[-1] != dimension:
        raise UserError(f"Expected coordinates of shape {expected}, but got {tuple(coordinates.shape)}.")
    if coordinates.ndim == 3 and len(coordinates) != len(features):
        raise UserError(
            f"Expected coordinates of shape {expected}, but got {tuple(coordinates.shape)}. "
            "Give one set of points for all networks, or one for each."
        )
    if convention == "dws":
        coordinates = coordinates.flip(-1)
    values = evaluate_layers(features, coordinates, omega=omega)[-1]
    return 2 * values if convention == "dws" else values


def evaluate_layers(
    features: WeightSpaceFeatures, points: Float[Tensor, "*B P D"], *, omega: float
) -> list[Float[Tensor, "B P _n"]]:
    """What every layer of each network adds up at each point: arguments of the sines, and the outputs last.

    Args:
        features: Sine networks, one channel.
        points: Inputs in the networks' own order, for all networks or for each.
        omega: Frequency of the sines; arguments are given with it.
    """
    dtype = features.tensor.dtype
    layers: list[Tensor] = []
    # The products behind a sine of frequency 30 need all their digits, whatever the model around computes with.
    with torch.autocast(features.tensor.device.type, enabled=False):
        features = features.to(torch.float32) if dtype in (torch.bfloat16, torch.float16) else features
        x = points.to(features.tensor.dtype).expand(len(features), -1, -1)
        for weight, bias in zip(features.weights, features.biases, strict=True):
            x = torch.sin(layers[-1]) if layers else x
            x = torch.baddbmm(rearrange(bias, "B O 1 -> B 1 O"), x, rearrange(weight, "B O I 1 -> B I O"))
            layers.append(x if len(layers) == features.spec.num_layers - 1 else omega * x)
    return layers


def render_images(
    features: WeightSpaceFeatures, height: int, width: int, *, omega: float = 30.0, convention: str = "paper"
) -> Float[Tensor, "B H W O"]:
    """The picture of each network on the whole image grid."""
    grid = image_grid(height, width).to(features.tensor.device)
    values = render(features, grid, omega=omega, convention=convention)
    return rearrange(values, "B (H W) O -> B H W O", H=height)
