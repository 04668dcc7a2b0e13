"""Classifies INRs by their values and slopes at a few learned points: `ProbeCNN`."""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from neuralfunctionals.errors import UserError
from neuralfunctionals.inr.siren import as_siren
from neuralfunctionals.layers.probes import MAX_POINTS, point_grid
from neuralfunctionals.models.heads import convolution
from neuralfunctionals.models.pretrained import Pretrained
from neuralfunctionals.weight_space import (
    NetworkSpec,
    Symmetry,
    WeightSpaceFeatures,
    evaluate_layers,
    output_slopes,
)

# Axes: B input networks, K outputs, P points, O values of a point, D coordinates, C channels.


class ProbeCNN(nn.Module, Pretrained):
    """Evaluates a sine network at learned points and computes the output from what it finds there with a small CNN.

    The points start on a grid and move during training. Their values form a coarse picture; with `derivatives`, each
    point also has the slopes of the picture. This is all that the CNN sees: the model *asks the function* and does not
    use the weights otherwise.

    Symmetry: invariant to every symmetry of the networks.
    Reference: Kahana et al., 2024, https://arxiv.org/abs/2410.10811, whose points are generated and whose values are
    read by an MLP.

    Args:
        spec: The input networks, of two coordinates; of frequency 30, if the spec does not record it.
        out_channels: Length of the output vector.
        grid_size: Points along each side of the grid; at most 11, which is 121 points.
        channels: Channels of the first convolution; the second and third have two and four times as many.
        dropout: Dropout before the last layer.
        derivatives: Whether the CNN also sees the derivatives of the values with respect to the coordinates.
    """

    symmetry: Symmetry = "HNP"
    asks_function = True

    def __init__(
        self,
        spec: NetworkSpec,
        *,
        out_channels: int = 10,
        grid_size: int = 11,
        channels: int = 32,
        dropout: float = 0.1,
        derivatives: bool = False,
    ) -> None:
        super().__init__()
        if not 2 <= grid_size <= MAX_POINTS**0.5:
            raise UserError(
                f"Expected a grid_size from 2 to {int(MAX_POINTS**0.5)}, but got {grid_size}. A model with more points "
                "sees the whole picture, as RenderCNN does."
            )
        if spec.widths[0] != 2:
            raise UserError(f"Expected networks of two coordinates, but got {spec}.")
        self.spec = spec
        self.in_channels, self.out_channels = 1, out_channels
        self.grid_size, self.derivatives = grid_size, derivatives
        self._sines = as_siren(spec)
        self.points = nn.Parameter(point_grid(grid_size**2, 2))
        self.cnn = nn.Sequential(
            *convolution(spec.widths[-1] * (3 if derivatives else 1), channels),
            *convolution(channels, 2 * channels),
            nn.MaxPool2d(2),
            *convolution(2 * channels, 4 * channels),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(4 * channels * (grid_size // 2) ** 2, out_channels),
        )

    def forward(self, features: WeightSpaceFeatures) -> Float[Tensor, "B K"]:
        features.require_spec(self.spec, "ProbeCNN")
        networks = WeightSpaceFeatures.unchecked(self._sines, features.tensor)
        *arguments, seen = evaluate_layers(networks, self.points)
        if self.derivatives:
            slopes, *_ = output_slopes(networks, arguments)
            # Scaled to the change of the values within half a cell of the grid.
            slopes = rearrange(slopes / self.grid_size, "B O P D -> B P (O D)")
            seen = torch.cat([seen, slopes.expand(-1, seen.shape[1], -1)], dim=2)
        return self.cnn(rearrange(seen.to(features.dtype), "B (H W) C -> B C H W", H=self.grid_size))
