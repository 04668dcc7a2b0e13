"""Deep weight-space networks: `DWSNet`."""

import itertools
from collections.abc import Sequence
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

from neuralfunctionals.layers import DWSLinear, HNPPool
from neuralfunctionals.models.heads import mlp_head
from neuralfunctionals.models.pretrained import Pretrained
from neuralfunctionals.weight_space import NetworkSpec, Symmetry, WeightSpaceFeatures


class DWSNet(nn.Module, Pretrained):
    """DWS layers with ReLU between, and either one more DWS layer (equivariant) or HNP pooling and an MLP (invariant).

    Symmetry: HNP. Reference: Navon et al., 2023, https://arxiv.org/abs/2301.12780.

    Args:
        spec: The input networks.
        in_channels: Channels of the input: 1 for weights alone.
        out_channels: Channels of the output features, or length of the output vector.
        channels: Channels of the hidden layers.
        num_layers: Number of hidden layers.
        reduction: How layers and pooling summarise neurons: `"max"` (the authors'), `"mean"` or `"sum"`.
        dropout: Dropout after each hidden layer.
        invariant: Whether the output is a vector.
        head_channels: Hidden widths of the MLP behind the pooling; none in the original.
    """

    symmetry: Symmetry = "HNP"

    def __init__(
        self,
        spec: NetworkSpec,
        *,
        in_channels: int = 1,
        out_channels: int = 1,
        channels: int = 32,
        num_layers: int = 4,
        reduction: Literal["mean", "sum", "max"] = "max",
        dropout: float = 0.0,
        invariant: bool = False,
        head_channels: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.spec = spec
        self.in_channels, self.out_channels = in_channels, out_channels
        widths = [in_channels, *[channels] * num_layers]
        self.hidden = nn.ModuleList(DWSLinear(spec, a, b, reduction=reduction) for a, b in itertools.pairwise(widths))
        self.activate = nn.Sequential(nn.ReLU(), nn.Dropout(dropout))
        if invariant:
            pool = HNPPool(spec, widths[-1], reduction=reduction)
            self.output = nn.Sequential(pool, mlp_head(pool.out_channels, head_channels, out_channels))
        else:
            self.output = DWSLinear(spec, widths[-1], out_channels, reduction=reduction)

    def forward(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures | Float[Tensor, "B K"]:
        features.require_spec(self.spec, "DWSNet")
        for layer in self.hidden:
            features = layer(features).map(self.activate)
        return self.output(features)

    @classmethod
    def classification(cls, spec: NetworkSpec, **changes: Any) -> "DWSNet":
        """The published classifier of INRs: four layers of 32 channels, maxima over neurons."""
        return cls(spec, **{"invariant": True, "out_channels": 10, **changes})
