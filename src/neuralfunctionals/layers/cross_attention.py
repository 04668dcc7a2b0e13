"""Features to latent tokens: `WeightSpaceCrossAttention`."""

from __future__ import annotations

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from neuralfunctionals.errors import UserError
from neuralfunctionals.layers.layer import Layer
from neuralfunctionals.layers.projection import Project
from neuralfunctionals.weight_space import NetworkSpec, WeightSpaceFeatures

# Axes: B input networks, N packed entries, C channels, M latents, D latent channels, H heads, d channels of a head.


class WeightSpaceCrossAttention(Layer):
    r"""Learned queries $e_1 \ldots e_M$ that attend to all weights and biases.

    $$ \mathrm{CA}(W)_m = \sum_p \frac{\exp(e_m \cdot K_p / \sqrt d)}{\sum_{p'} \exp(e_m \cdot K_{p'} / \sqrt d)} V_p,
       \qquad K_p = \theta_K W_p, \quad V_p = \theta_V W_p $$

    over all entries $p$. Keys and values are never computed: $e \cdot \theta_K W_p = (\theta_K^T e) \cdot W_p$,
    and the weighted mean of values is the value of the weighted mean, so that the cost is $M$ instead of $2D$
    products per entry. Weights with kernels pass through `Project` first.

    Symmetry: NP-invariant. Reference: Zhou et al., 2023, https://arxiv.org/abs/2305.13546, Section 3.2.

    Args:
        spec: The input networks.
        channels: Channels of each entry.
        latent_channels: Channels of each latent.
        num_latents: Number of learned queries.
        num_heads: Heads; must divide the latent channels.
    """

    def __init__(
        self, spec: NetworkSpec, channels: int, latent_channels: int, num_latents: int, num_heads: int = 1
    ) -> None:
        super().__init__(spec, channels, latent_channels)
        if latent_channels % num_heads:
            raise UserError(
                f"Expected latent channels divisible by the heads, but got {latent_channels} and {num_heads} heads."
            )
        self.num_latents, self.num_heads = num_latents, num_heads
        self.project = Project(spec, channels, channels) if spec.has_kernels else nn.Identity()
        self.queries = nn.Parameter(torch.randn(num_latents, latent_channels))
        # No bias: it would add the same number to all scores of a query, which softmax ignores.
        self.to_keys = nn.Linear(channels, latent_channels, bias=False)
        self.to_values = nn.Linear(channels, latent_channels)

    def forward(self, features: WeightSpaceFeatures) -> Float[Tensor, "B M D"]:
        features.require_spec(self.spec, "WeightSpaceCrossAttention")
        x = self.project(features).tensor
        h = self.num_heads
        queries = rearrange(self.queries, "M (H d) -> H M d", H=h)
        queries = queries @ rearrange(self.to_keys.weight, "(H d) C -> H d C", H=h)
        queries = queries * (self.out_channels // h) ** -0.5
        scores = x @ rearrange(queries, "H M C -> C (H M)")
        means = rearrange(scores.softmax(1).mT @ x, "B (H M) C -> B H M C", H=h)
        values = means @ rearrange(self.to_values.weight, "(H d) C -> H C d", H=h)
        return rearrange(values, "B H M d -> B M (H d)") + self.to_values.bias

    def extra_repr(self) -> str:
        return f"{self.spec}, {self.in_channels} channels -> {self.num_latents} latents of {self.out_channels}"
