"""Normalisation and scaling of each entry: `LayerNorm`, `Standardize`, `OutputScale`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from neuralfunctionals.layers.layer import Layer
from neuralfunctionals.weight_space import NetworkSpec, WeightSpaceFeatures


class LayerNorm(Layer):
    """Layer normalisation over the channels of each entry, with a separate scale and shift for each group.

    Symmetry: NP-equivariant. Reference: Zhou et al., 2023, https://arxiv.org/abs/2305.13546, Section 3.4.

    Args:
        spec: The input networks.
        channels: Channels in and out.
        per_layer: Whether each layer's weights and biases have separate scales and shifts, instead of one for all.
    """

    def __init__(self, spec: NetworkSpec, channels: int, *, per_layer: bool = True) -> None:
        super().__init__(spec, channels, channels)
        num_scales = len(spec.groups) if per_layer else 1
        self.scale = nn.Parameter(torch.ones(num_scales, channels))
        self.shift = nn.Parameter(torch.zeros(num_scales, channels))

    def forward(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures:
        features.require_spec(self.spec, "LayerNorm")
        sizes = [g.size for g in self.spec.groups] if len(self.scale) > 1 else [self.spec.num_entries]
        parts = zip(features.tensor.split(sizes, dim=1), self.scale, self.shift, strict=True)
        normed = [F.layer_norm(x, (self.in_channels,), scale, shift) for x, scale, shift in parts]
        return features.with_tensor(torch.cat(normed, dim=1))

    def extra_repr(self) -> str:
        return f"{self.spec}, channels={self.in_channels}, per_layer={len(self.scale) > 1}"


def spread_over_entries(
    spec: NetworkSpec, values: Sequence[Float[Tensor, "*B C"]] | Float[Tensor, "G C"]
) -> Float[Tensor, "*B N C"]:
    """Repeats one vector per group, for all networks or for each, over the entries of the group."""
    # A cat of expanded rows: its gradient is a plain sum, whereas that of indexing would scatter.
    pairs = zip(spec.groups, values, strict=True)
    return torch.cat([v.unsqueeze(-2).expand(*v.shape[:-1], g.size, -1) for g, v in pairs], dim=-2)


class OutputScale(Layer):
    """Multiplies each layer's weights by one learned number, and its biases by another.

    With a small initial value, an editor starts near the identity: `W + scale * delta(W)`.

    Symmetry: NP-equivariant. Reference: Zhou et al., 2023, https://arxiv.org/abs/2302.14040.

    Args:
        spec: The input networks.
        channels: Channels in and out.
        initial: Initial value of the scales.
    """

    def __init__(self, spec: NetworkSpec, channels: int = 1, *, initial: float = 0.01) -> None:
        super().__init__(spec, channels, channels)
        self.scale = nn.Parameter(torch.full((len(spec.groups), 1), initial))

    def forward(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures:
        features.require_spec(self.spec, "OutputScale")
        return features.with_tensor(features.tensor * spread_over_entries(self.spec, self.scale))


class Standardize(Layer):
    r"""Subtracts the mean of each layer's weights, or biases, over a dataset, and divides by their std.

    The layers of one network differ in scale by factors of ten and more; without this, the small ones have little
    effect in linear layers. Each group has one mean and std, so all its entries are treated alike. Until `estimate`
    is called, they are 0 and 1.

    Symmetry: NP-equivariant.

    Args:
        spec: The input networks.
        channels: Channels in and out.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, spec: NetworkSpec, channels: int = 1) -> None:
        super().__init__(spec, channels, channels)
        self.register_buffer("mean", torch.zeros(len(spec.groups), channels))
        self.register_buffer("deviation", torch.ones(len(spec.groups), channels))

    @torch.no_grad()
    def estimate(self, features: WeightSpaceFeatures) -> None:
        """Estimates mean and std from networks, usually those of the training split."""
        features.require_spec(self.spec, "Standardize")
        groups = [group.flatten(0, -2) for group in features.split()]
        self.mean.copy_(torch.stack([group.mean(0) for group in groups]))
        self.deviation.copy_(torch.stack([group.std(0, correction=0) for group in groups]).clamp(min=1e-8))

    def forward(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures:
        features.require_spec(self.spec, "Standardize")
        mean, deviation = (spread_over_entries(self.spec, v) for v in (self.mean, self.deviation))
        return features.with_tensor((features.tensor - mean) / deviation)
