"""From weights to pictures: many different sine networks at once, differentiable."""

from __future__ import annotations

from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from neuralfunctionals.errors import UserError
from neuralfunctionals.inr.coordinates import image_grid
from neuralfunctionals.inr.siren import known_form
from neuralfunctionals.weight_space import WeightSpaceFeatures, evaluate_layers

# Axes: B input networks, P points, D input dimensions, O outputs.


def render(
    features: WeightSpaceFeatures,
    coordinates: Float[Tensor, "*B P D"],
) -> Float[Tensor, "B P O"]:
    """The values of each network at each point, in [-1, 1] up to the quality of the fit.

    Differentiable with respect to weights and coordinates. In either convention, coordinates are (row, column) and
    values are in [-1, 1], so that pictures can be compared.

    Args:
        features: Sine networks, one channel. Their spec records frequency and convention, see `NetworkSpec.siren`; if
            not, frequency 30 and the convention `"paper"` are assumed.
        coordinates: One grid for all, `(P, D)`, or separate points for each network, `(B, P, D)`.

    Example:
        >>> from neuralfunctionals.inr import Siren, image_grid
        >>> sirens = WeightSpaceFeatures.from_modules([Siren(), Siren()])
        >>> render(sirens, image_grid(28, 28)).shape
        torch.Size([2, 784, 1])
    """
    _, convention = known_form(features.spec)
    dimension = features.spec.widths[0]
    is_for_each = coordinates.ndim == 3 and len(coordinates) == len(features)
    if not (coordinates.ndim == 2 or is_for_each) or coordinates.shape[-1] != dimension:
        raise UserError(
            f"Expected coordinates of shape (points, {dimension}) or ({len(features)}, points, {dimension}), but got "
            f"{tuple(coordinates.shape)}. Give one set of points for all networks, or one for each."
        )
    if convention == "dws":
        coordinates = coordinates.flip(-1)
    values = evaluate_layers(features, coordinates)[-1]
    return 2 * values if convention == "dws" else values


def render_images(
    features: WeightSpaceFeatures,
    height: int,
    width: int,
) -> Float[Tensor, "B H W O"]:
    """The picture of each network on the whole image grid."""
    grid = image_grid(height, width).to(features.tensor.device)
    values = render(features, grid)
    return rearrange(values, "B (H W) O -> B H W O", H=height)
