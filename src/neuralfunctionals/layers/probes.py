"""Evaluates sine networks at learned points: `Probes`."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neuralfunctionals.errors import UserError
from neuralfunctionals.inr.siren import as_siren, require_siren
from neuralfunctionals.weight_space import (
    NetworkSpec,
    Symmetry,
    WeightSpaceFeatures,
    evaluate_layers,
    output_slopes,
)

# Axes: B input networks, P points, D input dimensions, O outputs, n neurons.

MAX_POINTS = 128
"""With many more, a model would see the picture itself: an MNIST digit has 784 pixels."""


class ProbeValues(NamedTuple):
    """Values of networks at the learned points."""

    neurons: dict[int, Float[Tensor, "B _n _d"]]
    """Values of each hidden neuron, by layer."""
    outputs: Float[Tensor, "B PO"]
    """Values of the outputs."""


class Probes(nn.Module):
    r"""Evaluates sine networks at learned points: activations of every neuron, and values of the outputs.

    With $z^{(i)}_j(x)$ the argument of a neuron's sine at point $x$, each hidden neuron gets
    $\sin z^{(i)}_j$ and $\cos z^{(i)}_j$ at all points and, optionally, the derivatives
    $\partial f / \partial z^{(i)}_j$ of all outputs. The points start on a grid over $[-1, 1]^D$ and are learned
    together with the model.

    A model with probes *asks the function*: compare it with others that do, not with models that see weights only.

    Symmetry: activations are HNP-equivariant, outputs invariant.
    References: Kofinas et al., 2024, https://arxiv.org/abs/2403.12143; Kahana et al., 2024,
    https://arxiv.org/abs/2410.10811.

    Args:
        spec: The input networks, made of dense layers. Networks of unknown activation are assumed to be sine networks
            of frequency 30.
        num_points: Number of learned points, at most 128.
        derivatives: Whether neurons also get the derivatives of the outputs.

    Example:
        >>> spec = NetworkSpec.siren([2, 8, 1])
        >>> networks = WeightSpaceFeatures.from_vectors(spec, 0.1 * torch.randn(4, spec.num_entries))
        >>> values = Probes(spec, 16)(networks)
        >>> values.neurons[1].shape, values.outputs.shape
        (torch.Size([4, 8, 32]), torch.Size([4, 16]))
    """

    symmetry: Symmetry = "HNP"
    asks_function = True

    def __init__(self, spec: NetworkSpec, num_points: int, *, derivatives: bool = False) -> None:
        super().__init__()
        if not 1 <= num_points <= MAX_POINTS:
            raise UserError(
                f"Expected 1 to {MAX_POINTS} probes, but got {num_points}. With more, a model sees the whole picture."
            )
        require_siren(spec)
        self.spec, self.derivatives = spec, derivatives
        self._sines = as_siren(spec)
        self.in_channels = 1
        self.num_points = num_points
        self.points = nn.Parameter(point_grid(num_points, spec.widths[0]))
        outputs = spec.widths[-1]
        each = num_points * (2 + (outputs if derivatives else 0))
        self.neuron_channels = dict.fromkeys(range(1, spec.num_layers), each)
        self.output_channels = num_points * outputs

    def forward(self, features: WeightSpaceFeatures) -> ProbeValues:
        features.require_spec(self.spec, "Probes")
        networks = WeightSpaceFeatures.unchecked(self._sines, features.tensor)
        *hidden, outputs = evaluate_layers(networks, self.points)
        neurons = {n: [z.sin().mT, z.cos().mT] for n, z in enumerate(hidden, 1)}
        if self.derivatives:
            _, *slopes = output_slopes(networks, hidden)
            neurons = {n: [*values, slopes[n - 1].flatten(1, 2).mT] for n, values in neurons.items()}
        dtype = features.tensor.dtype
        return ProbeValues(
            {n: torch.cat(values, dim=-1).to(dtype) for n, values in neurons.items()}, outputs.flatten(1).to(dtype)
        )

    def extra_repr(self) -> str:
        return f"{self.spec}, {self.num_points} points, derivatives={self.derivatives}"


def point_grid(count: int, dimension: int) -> Float[Tensor, "P D"]:
    """Centres of equal cells of the cube from -1 to 1; if there are more cells than points, evenly chosen ones."""
    side = math.ceil(count ** (1 / dimension) - 1e-9)
    centres = (torch.arange(side) + 0.5) / side * 2 - 1
    cells = torch.cartesian_prod(*[centres] * dimension).reshape(-1, dimension)
    return cells[torch.linspace(0, len(cells) - 1, count).round().long()]
