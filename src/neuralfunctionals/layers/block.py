"""The residual block of a neural functional transformer: `Block`, `FeedForward`."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from neuralfunctionals import kernels
from neuralfunctionals.errors import UserError
from neuralfunctionals.layers.attention import GlobalTerm, WeightSpaceSelfAttention
from neuralfunctionals.layers.layer import Layer
from neuralfunctionals.layers.norm import LayerNorm
from neuralfunctionals.weight_space import NetworkSpec, Symmetry, WeightSpaceFeatures

Sharing = Literal["per_layer", "shared"]


class FeedForward(Layer):
    """A two-layer MLP of each entry's channels, with GELU in between.

    Symmetry: NP-equivariant.

    Args:
        spec: The input networks.
        channels: Channels in and out.
        hidden_channels: Hidden channels.
        dropout: Probability of dropping a value, after each of the two layers.
        mlp: `"per_layer"`, one MLP each for a layer's weights and biases, or `"shared"`, one MLP for all entries.
    """

    def __init__(
        self,
        spec: NetworkSpec,
        channels: int,
        hidden_channels: int,
        *,
        dropout: float = 0.0,
        mlp: Sharing = "per_layer",
    ) -> None:
        super().__init__(spec, channels, channels)
        if mlp not in ("per_layer", "shared"):
            raise UserError(f"Expected mlp 'per_layer' or 'shared', but got {mlp!r}.")
        self.dropout = dropout
        self.sizes = [g.size for g in spec.groups] if mlp == "per_layer" else [spec.num_entries]
        self.mlps = nn.ModuleList(
            nn.Sequential(
                nn.Linear(channels, hidden_channels),
                nn.GELU(),
                nn.Dropout(dropout),
                nn.Linear(hidden_channels, channels),
                nn.Dropout(dropout),
            )
            for _ in self.sizes
        )

    def forward(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures:
        features.require_spec(self.spec, "FeedForward")
        parts = zip(self.mlps, features.tensor.split(self.sizes, dim=1), strict=True)
        return features.with_tensor(torch.cat([mlp(part) for mlp, part in parts], dim=1))

    def plain_parameters(self) -> list[Tensor] | None:
        """Weights and biases of all layers in order, if nothing but these and GELU is computed; else None."""
        kinds = nn.Linear, nn.GELU, nn.Dropout, nn.Linear, nn.Dropout
        found = [kernels.stock_parameters(mlp, *kinds) for mlp in self.mlps]
        if not kernels.is_stock(self, FeedForward) or any(parameters is None for parameters in found):
            return None
        return [p for parameters in found for p in parameters or []]


class Block(Layer):
    r"""Pre-norm self-attention and feed-forward, each with a residual connection.

    $$ Z = W + \mathrm{SA}(\mathrm{LN}(W)), \qquad \mathrm{Block}(W) = Z + \mathrm{MLP}(\mathrm{LN}(Z)) $$

    For networks with kernels, norms and MLPs act on each kernel position; `Project` and `Unproject` wrap the
    attention.

    Symmetry: that of its attention, NP- or HNP-equivariant.
    Reference: Zhou et al., 2023, https://arxiv.org/abs/2305.13546, Section 3.4.

    Args:
        spec: The input networks.
        channels: Channels in and out.
        hidden_channels: Channels inside the feed-forward.
        num_heads: Attention heads.
        dropout: Dropout on the attention matrix and in the feed-forward.
        symmetry: `"NP"` or `"HNP"`.
        global_term: The attention's third term.
        mlp: Whether norms and MLPs are `"per_layer"` (the paper's parameter counts) or `"shared"`.
        max_vectors: Limits the slices of one group that meet at an axis; see `WeightSpaceSelfAttention`.
    """

    def __init__(
        self,
        spec: NetworkSpec,
        channels: int,
        hidden_channels: int,
        num_heads: int = 8,
        *,
        dropout: float = 0.0,
        symmetry: Symmetry = "NP",
        global_term: GlobalTerm = "reduced",
        mlp: Sharing = "per_layer",
        max_vectors: int | None = None,
    ) -> None:
        super().__init__(spec, channels, channels)
        self.symmetry: Symmetry = symmetry
        self.attention_norm = LayerNorm(spec, channels, per_layer=mlp == "per_layer")
        self.attention = WeightSpaceSelfAttention(
            spec,
            channels,
            num_heads,
            dropout=dropout,
            symmetry=symmetry,
            global_term=global_term,
            max_vectors=max_vectors,
        )
        self.feed_forward_norm = LayerNorm(spec, channels, per_layer=mlp == "per_layer")
        self.feed_forward = FeedForward(spec, channels, hidden_channels, dropout=dropout, mlp=mlp)
        kernels.prepare("block", list(self.feed_forward.parameters()))

    def forward(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures:
        features.require_spec(self.spec, "Block")
        return self._add_feed_forward(self._add_attention(features))

    def _add_attention(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures:
        norm, attention = self.attention_norm, self.attention
        parameters = self._with_norm(norm, attention.plain_parameters())
        y = kernels.residual_attention(
            features.tensor,
            parameters,
            attention.vectors,
            [g.size for g in self.spec.groups],
            attention.num_heads,
            lambda: (features + attention(norm(features))).tensor,
            between_groups=attention.global_term == "reduced",
        )
        return features.with_tensor(y)

    def _add_feed_forward(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures:
        norm, feed_forward = self.feed_forward_norm, self.feed_forward
        parameters = self._with_norm(norm, feed_forward.plain_parameters())
        y = kernels.residual_feed_forward(
            features.tensor, parameters, feed_forward.sizes, lambda: (features + feed_forward(norm(features))).tensor
        )
        return features.with_tensor(y)

    def _with_norm(self, norm: LayerNorm, parameters: list[Tensor] | None) -> list[Tensor] | None:
        if parameters is None or not kernels.is_stock(norm, LayerNorm):
            return None
        return [norm.scale, norm.shift, *parameters]
