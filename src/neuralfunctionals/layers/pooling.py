"""From features to invariant vectors: pooling over neurons, and statistics of weights."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from neuralfunctionals.layers.folding import FoldedGroup, Reduction
from neuralfunctionals.layers.layer import Layer
from neuralfunctionals.weight_space import NetworkSpec, Symmetry, WeightSpaceFeatures

# Axes: B input networks, D pooled values.


class _Pool(Layer):
    """Reduces each group over its permutable neurons and concatenates the results."""

    def __init__(self, spec: NetworkSpec, in_channels: int, *, reduction: Reduction = "mean") -> None:
        groups = FoldedGroup.of(spec, self.symmetry)
        super().__init__(spec, in_channels, in_channels * sum(g.fold for g in groups))
        self.groups = groups
        self.reduction: Reduction = reduction

    def forward(self, features: WeightSpaceFeatures) -> Float[Tensor, "B D"]:
        features.require_spec(self.spec, type(self).__name__)
        pairs = zip(self.groups, features.split(), strict=True)
        return torch.cat([g.pool(g.fold_fixed(x), (), self.reduction) for g, x in pairs], dim=-1)


class NPPool(_Pool):
    """The mean of each layer's weights and of its biases, separately for each kernel position.

    Symmetry: NP-invariant. Reference: Zhou et al., 2023, https://arxiv.org/abs/2302.14040.

    Args:
        spec: The input networks.
        in_channels: Channels of each entry.
        reduction: `"mean"`, `"sum"` or `"max"`.
    """


class HNPPool(_Pool):
    """Like `NPPool`, but also separately for each input and output neuron.

    Symmetry: HNP-invariant. Reference: Zhou et al., 2023, https://arxiv.org/abs/2302.14040.

    Args:
        spec: The input networks.
        in_channels: Channels of each entry.
        reduction: `"mean"`, `"sum"` or `"max"`.
    """

    symmetry: Symmetry = "HNP"


class StatFeatures(Layer):
    """Mean, variance and the quantiles 0, 25, 50, 75, 100 % of each layer's weights and of its biases.

    The variance is the biased one, so that it is 0 for a single entry.

    Symmetry: NP-invariant, and to every permutation within a layer.
    Reference: Unterthiner et al., 2020, https://arxiv.org/abs/2002.11448.

    Args:
        spec: The input networks.
        in_channels: Channels of each entry.
    """

    quantiles: Float[Tensor, "5"]

    def __init__(self, spec: NetworkSpec, in_channels: int = 1) -> None:
        super().__init__(spec, in_channels, 7 * in_channels * len(spec.groups))
        self.register_buffer("quantiles", torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]), persistent=False)

    def forward(self, features: WeightSpaceFeatures) -> Float[Tensor, "B D"]:
        features.require_spec(self.spec, "StatFeatures")
        statistics = []
        for x in (part.flatten(1, -2) for part in features.split()):
            quantiles = torch.quantile(x, self.quantiles.to(x.dtype), dim=1)
            statistics += [x.mean(1), x.var(1, correction=0), *quantiles]
        return torch.cat(statistics, dim=-1)
