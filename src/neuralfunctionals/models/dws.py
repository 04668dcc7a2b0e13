"""Deep weight-space networks: `DWSNet`."""

import itertools
from collections.abc import Sequence
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

from neuralfunctionals.layers import DWSLinear, HNPPool, Standardize
from neuralfunctionals.models.heads import mlp_head
from neuralfunctionals.models.pretrained import Pretrained
from neuralfunctionals.weight_space import NetworkSpec, Symmetry, WeightSpaceFeatures, join_groups


class DWSNet(nn.Module, Pretrained):
    """DWS layers with ReLU, and either one more DWS layer (equivariant) or HNP pooling and an MLP (invariant).

    Symmetry: HNP. Reference: Navon et al., 2023, https://arxiv.org/abs/2301.12780.

    Args:
        spec: The input networks.
        in_channels: Channels of the input: 1 for weights alone.
        out_channels: Channels of the output features, or length of the output vector.
        channels: Channels of the hidden layers.
        num_layers: Number of hidden layers.
        standardize: Whether to standardize each layer's weights and biases first; see `nf.layers.Standardize`, whose
            mean and std are set by `estimate`.
        batch_norm: Whether to normalise each layer's weights and biases over batch and neurons before ReLU.
        reduction: How layers and pooling summarise neurons: `"max"` (the authors'), `"mean"` or `"sum"`.
        dropout: Dropout after each hidden layer.
        invariant: Whether the output is a vector.
        head_channels: Hidden widths of the MLP after the pooling; none in the original.
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
        standardize: bool = False,
        batch_norm: bool = False,
        reduction: Literal["mean", "sum", "max"] = "max",
        dropout: float = 0.0,
        invariant: bool = False,
        head_channels: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.spec = spec
        self.in_channels, self.out_channels = in_channels, out_channels
        self.standardize = Standardize(spec, in_channels) if standardize else nn.Identity()
        widths = [in_channels, *[channels] * num_layers]
        self.hidden = nn.ModuleList(DWSLinear(spec, a, b, reduction=reduction) for a, b in itertools.pairwise(widths))
        self.norms = nn.ModuleList(_BatchNorm(spec, c) if batch_norm else nn.Identity() for c in widths[1:])
        self.activate = nn.Sequential(nn.ReLU(), nn.Dropout(dropout))
        if invariant:
            pool = HNPPool(spec, widths[-1], reduction=reduction)
            self.output = nn.Sequential(pool, mlp_head(pool.out_channels, head_channels, out_channels))
        else:
            self.output = DWSLinear(spec, widths[-1], out_channels, reduction=reduction)

    def forward(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures | Float[Tensor, "B K"]:
        features.require_spec(self.spec, "DWSNet")
        features = self.standardize(features)
        for layer, norm in zip(self.hidden, self.norms, strict=True):
            features = norm(layer(features)).map(self.activate)
        return self.output(features)

    @classmethod
    def classification(cls, spec: NetworkSpec, **changes: Any) -> "DWSNet":
        """The published classifier of INRs: four layers of 32 channels with batch norm, maxima over neurons."""
        return cls(spec, **{"invariant": True, "out_channels": 10, "standardize": True, "batch_norm": True, **changes})


class _BatchNorm(nn.Module):
    """Batch norm of each weight array and bias vector, with the same parameters for all its entries."""

    def __init__(self, spec: NetworkSpec, channels: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm1d(channels) for _ in spec.groups)

    def forward(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures:
        parts = zip(self.norms, features.split(), strict=True)
        values = [norm(x.flatten(0, -2)).view(x.shape) for norm, x in parts]
        return features.with_tensor(join_groups(features.spec, values))
