"""From states of neurons to a vector, to entries or to latents: `StatePool`, `WriteEntries`, `StateCrossAttention`."""

from __future__ import annotations

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from neuralfunctionals.errors import UserError
from neuralfunctionals.layers.neuron_states import NeuronStates, States
from neuralfunctionals.weight_space import WeightSpaceFeatures, join_groups

# Axes: B input networks, n neurons, D values of a whole network or latent channels, M latents, H heads, c channels of a
# head.


class StatePool(nn.Module):
    r"""Mean and maximum of the states of each layer, and the values of the whole network.

    With `hidden_channels`, also the mean of a hidden layer on each state, $\mathrm{GELU}(A\, \mathrm{LN}(h_j) + b)$;
    the wider it is, the more information its mean keeps. Symmetry: invariant.

    Args:
        states: The module that computes the states.
        hidden_channels: Width of the hidden layer. Defaults to 0, no hidden layer.
    """

    def __init__(self, states: NeuronStates, hidden_channels: int = 0) -> None:
        super().__init__()
        self.out_channels = (2 * states.channels + hidden_channels) * len(states.layers) + states.network_channels
        self.hidden = nn.ModuleDict(
            {
                str(layer): nn.Sequential(
                    nn.LayerNorm(states.channels), nn.Linear(states.channels, hidden_channels), nn.GELU()
                )
                for layer in states.layers
                if hidden_channels
            }
        )

    def forward(self, states: States) -> Float[Tensor, "B D"]:
        pooled = [value for h in states.neurons.values() for value in (h.mean(1), h.amax(1))]
        hidden = [self.hidden[str(layer)](h).mean(1) for layer, h in states.neurons.items() if self.hidden]
        return torch.cat([*pooled, *hidden, states.network], dim=-1)


class WriteEntries(nn.Module):
    r"""Computes each entry as a linear map of the states at its ends and, optionally, a product of the two.

    $$ Y_{jk} = A h_j + B h_k + \langle U h_j, V h_k \rangle $$

    Entries between fixed neurons are linear maps of the pooled states. Symmetry: that of the states.

    Args:
        states: The module that computes the states.
        out_channels: Channels of each entry.
        rank: Length of the vectors in the product; 0 for none.
    """

    def __init__(self, states: NeuronStates, out_channels: int, *, rank: int = 0) -> None:
        super().__init__()
        self.spec, self.groups = states.spec, states.groups
        self.out_channels, self.rank = out_channels, rank
        self.pool = StatePool(states)
        self.maps, self.factors = nn.ModuleList(), nn.ModuleList()
        for group in self.groups:
            size, pooled = group.fold * out_channels, self.pool.out_channels
            self.maps.append(
                nn.ModuleList(nn.Linear(states.channels, size) for _ in group.ends)
                if group.axes
                else nn.ModuleList([nn.Linear(pooled, size)])
            )
            if rank and len(group.ends) == 2:
                self.factors.append(nn.ModuleList(nn.Linear(states.channels, rank * size) for _ in group.ends))

    def forward(self, states: States) -> WeightSpaceFeatures:
        entries, factors = [], iter(self.factors)
        pooled = self.pool(states) if any(not g.axes for g in self.groups) else None
        for group, maps in zip(self.groups, self.maps, strict=True):
            ends = [states.neurons[axis] for axis in group.ends]
            values = [linear(h) for linear, h in zip(maps, ends or [pooled], strict=True)]  # pyright: ignore
            value = values[0]
            for n, other in enumerate(values[1:], start=1):
                # One more dimension after those of the ends so far.
                value = value.unsqueeze(-2) + other[(slice(None), *[None] * n)]
            if self.rank and len(ends) == 2:
                left, right = (f(h).unflatten(-1, (-1, self.rank)) for f, h in zip(next(factors), ends, strict=True))  # pyright: ignore
                value = value + torch.einsum("bnsr, bmsr -> bnms", left, right) * self.rank**-0.5
            entries.append(group.unfold_fixed(group.from_ends(value)))
        return WeightSpaceFeatures(self.spec, join_groups(self.spec, entries))


class StateCrossAttention(nn.Module):
    r"""An array of latents: learned queries that attend to the states of all neurons, and an MLP of the pooled states.

    All queries attend to the same values; the MLP adds separate values for each latent.
    Symmetry: invariant.

    Args:
        states: The module that computes the states.
        latent_channels: Channels of each latent.
        num_latents: Number of learned queries.
        num_heads: Heads; must divide the latent channels.
        pool_channels: Hidden layer of the pooled states; see `StatePool`.
        hidden_channels: Width of the MLP of the pooled states. Defaults to four times the channels of a state.
    """

    def __init__(
        self,
        states: NeuronStates,
        latent_channels: int,
        num_latents: int,
        num_heads: int = 4,
        *,
        pool_channels: int = 0,
        hidden_channels: int | None = None,
    ) -> None:
        super().__init__()
        if latent_channels % num_heads:
            raise UserError(
                f"Expected latent channels divisible by the heads, but got {latent_channels} and {num_heads} heads."
            )
        self.num_heads = num_heads
        self.out_channels = latent_channels
        self.queries = nn.Parameter(torch.randn(num_latents, latent_channels))
        self.norm = nn.LayerNorm(states.channels)
        self.to_pairs = nn.ModuleDict({str(i): nn.Linear(states.channels, 2 * latent_channels) for i in states.layers})
        self.pool = StatePool(states, pool_channels)
        size = self.pool.out_channels
        hidden = 4 * states.channels if hidden_channels is None else hidden_channels
        self.from_pool = nn.Sequential(
            nn.LayerNorm(size), nn.Linear(size, hidden), nn.GELU(), nn.Linear(hidden, num_latents * latent_channels)
        )
        self.mix = nn.Linear(latent_channels, latent_channels)

    def forward(self, states: States) -> Float[Tensor, "B M D"]:
        latents = self.from_pool(self.pool(states)).unflatten(-1, self.queries.shape)
        if not states.neurons:
            return latents
        pairs = torch.cat([self.to_pairs[str(i)](self.norm(h)) for i, h in states.neurons.items()], dim=1)
        keys, values = rearrange(pairs, "B n (s H c) -> s B H n c", s=2, H=self.num_heads)
        queries = rearrange(self.queries, "M (H c) -> H M c", H=self.num_heads).expand(len(keys), -1, -1, -1)
        read = nn.functional.scaled_dot_product_attention(queries, keys, values)
        return latents + self.mix(rearrange(read, "B H M c -> B M (H c)"))
