"""A baseline that only sees statistics of the weights: `StatNN`."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neuralfunctionals.layers import Standardize, StatFeatures
from neuralfunctionals.models.heads import mlp_head
from neuralfunctionals.models.pretrained import Pretrained
from neuralfunctionals.weight_space import NetworkSpec, Symmetry, WeightSpaceFeatures


class StatNN(nn.Module, Pretrained):
    """An MLP on the mean, variance and quantiles of each layer's weights and biases.

    Symmetry: NP-invariant. Reference: Unterthiner et al., 2020, https://arxiv.org/abs/2002.11448.

    Args:
        spec: The input networks.
        in_channels: Channels of the input: 1 for weights alone.
        out_channels: Length of the output vector.
        standardize: Whether to standardize each layer's weights and biases first; see `nf.layers.Standardize`, whose
            mean and std are set by `estimate`.
        head_channels: Hidden widths of the MLP.
        dropout: Dropout of the MLP.
    """

    symmetry: Symmetry = "NP"

    def __init__(
        self,
        spec: NetworkSpec,
        *,
        in_channels: int = 1,
        out_channels: int = 1,
        standardize: bool = False,
        head_channels: Sequence[int] = (1000, 1000),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.in_channels, self.out_channels = in_channels, out_channels
        self.standardize = Standardize(spec, in_channels) if standardize else None
        self.statistics = StatFeatures(spec, in_channels)
        self.head = mlp_head(self.statistics.out_channels, head_channels, out_channels, dropout)

    def forward(self, features: WeightSpaceFeatures) -> Float[Tensor, "B K"]:
        if self.standardize is not None:
            features = self.standardize(features)
        given = features.tensor
        # Torch computes quantiles neither in half precision nor of an empty batch.
        if not len(features):
            features.require_spec(self.spec, "StatNN")
            return self.head(given.new_zeros(0, self.statistics.out_channels))
        if given.dtype in (torch.float16, torch.bfloat16):
            features = features.to(torch.float32)
        return self.head(self.statistics(features).to(given.dtype))
