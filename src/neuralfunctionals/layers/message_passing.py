"""Message passing: neurons hold states, which travel along the weights between them, forwards and backwards."""

from __future__ import annotations

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from neuralfunctionals.layers.neuron_update import neuron_update
from neuralfunctionals.weight_space import NetworkSpec, Symmetry, WeightSpaceFeatures, join_groups

# Axes: B input networks, n, m neurons of neighbouring layers, C channels, G gates.

States = list[Float[Tensor, "B _n C"]]
"""The neurons of layers `0` (input) to `L` (output)."""


class MessagePassing(nn.Module):
    r"""Reads states of neurons off the entries, passes them along the weights, and writes them back to the entries.

    The state of a neuron starts from what touches it; it is updated from its neighbours through gates, and each entry
    gets a linear map of the states at its ends:

    $$ h^{(i)}_j = R_i [\overline{W}^{(i)}_{j\star}, b^{(i)}_j, \overline{W}^{(i+1)}_{\star j}] + e^{(i)}_j, \qquad
       Y^{(i)}_{jk} = A_i h^{(i)}_j + B_i h^{(i-1)}_k, \qquad z^{(i)}_j = D_i h^{(i)}_j, $$

    with `num_rounds` updates of `NeuronRound` between. Unlike in attention, a weight (by its gate) multiplies the
    state of the neuron behind it.

    Symmetry: NP-equivariant, minimal: the learned $e$ are one vector for each layer. HNP: input and output neurons
    have one each.
    References: Lim et al., 2023, https://arxiv.org/abs/2312.04501; Kofinas et al., 2024,
    https://arxiv.org/abs/2403.12143; Kalogeropoulos et al., 2024, https://arxiv.org/abs/2406.10685. Theirs keep states
    for edges too.

    Args:
        spec: The input networks.
        in_channels: Channels of each entry.
        out_channels: Channels afterwards.
        channels: Channels of the neurons' states; as many as come in if missing.
        num_rounds: How often all neurons are updated.
        num_gates: Gates of each weight; must divide the channels of the states. See `Gates`.
        symmetry: `"NP"` or `"HNP"`.
    """

    def __init__(
        self,
        spec: NetworkSpec,
        in_channels: int,
        out_channels: int,
        *,
        channels: int | None = None,
        num_rounds: int = 1,
        num_gates: int = 1,
        symmetry: Symmetry = "NP",
    ) -> None:
        super().__init__()
        self.spec = spec
        self.in_channels, self.out_channels = in_channels, out_channels
        self.symmetry: Symmetry = symmetry
        channels = in_channels if channels is None else channels
        self.read = ReadNeurons(spec, in_channels, channels, symmetry)
        self.gates = Gates(spec, in_channels, channels, num_gates)
        self.rounds = nn.ModuleList(NeuronRound(spec, channels, forwards=n % 2 == 0) for n in range(num_rounds))
        self.write = WriteEntries(spec, channels, out_channels)

    def forward(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures:
        features.require_spec(self.spec, "MessagePassing")
        states, gates = self.read(features), self.gates(features)
        for update in self.rounds:
            states = update(states, gates)
        return self.write(states)

    def extra_repr(self) -> str:
        return f"{self.spec}, {self.in_channels} -> {self.out_channels} channels, symmetry={self.symmetry}"


class ReadNeurons(nn.Module):
    r"""First states of the neurons, from the entries that touch them; see `MessagePassing`."""

    def __init__(self, spec: NetworkSpec, in_channels: int, channels: int, symmetry: Symmetry) -> None:
        super().__init__()
        self.spec = spec
        fixed = spec.fixed_axes(symmetry)
        touching = [sum(g.kernel_size for g in spec.groups if i in g.axes) for i in range(spec.num_layers + 1)]
        self.maps = nn.ModuleList(nn.Linear(size * in_channels, channels, bias=False) for size in touching)
        self.embeddings = nn.ParameterList(
            torch.randn(n if i in fixed else 1, channels) for i, n in enumerate(spec.widths)
        )

    def forward(self, features: WeightSpaceFeatures) -> States:
        summaries: list[list[Tensor]] = [[] for _ in self.spec.widths]
        for group, x in zip(self.spec.groups, features.split(), strict=True):
            if group.kind == "bias":
                summaries[group.layer].append(x)
            else:
                summaries[group.layer].append(x.flatten(3).mean(2))
                summaries[group.layer - 1].append(x.flatten(3).mean(1))
        parts = zip(self.maps, summaries, self.embeddings, strict=True)
        return [linear(torch.cat(summary, dim=-1)) + embedding for linear, summary, embedding in parts]


class Gates(nn.Module):
    r"""What a state is multiplied by on its way along a weight: `G` learned projections of the weight's values.

    $$ g_{jk} = \Gamma_i\, \mathrm{vec}(W^{(i)}_{jk}), \qquad
       \Big[ \tfrac{1}{\sqrt{m}} g_{jk},\; \tfrac{1}{m} |g_{jk}| \Big], \qquad m \text{ neurons to sum over} $$

    The channels of a state are divided between the gates. For raw weights, one channel and no kernel, one gate is the
    weight itself up to a factor.

    Returns:
        For each layer of weights two matrices for each gate, the signed above the absolute ones: forwards, of
        shape `(B, G, 2 n, m)`, and backwards, `(B, G, 2 m, n)`.
    """

    def __init__(self, spec: NetworkSpec, in_channels: int, channels: int, num_gates: int) -> None:
        super().__init__()
        if channels % num_gates:
            raise ValueError(
                f"Expected channels divisible by the gates, but got {channels} channels and {num_gates} gates. "
                f"Take a multiple of {num_gates} channels or another number of gates."
            )
        self.maps = nn.ModuleList(
            nn.Linear(layer.kernel_size * in_channels, num_gates, bias=False) for layer in spec.layers
        )
        for linear in self.maps:
            nn.init.orthogonal_(linear.get_parameter("weight"))

    def forward(self, features: WeightSpaceFeatures) -> list[tuple[Tensor, Tensor]]:
        pairs = zip(self.maps, features.weights, strict=True)
        gates = [rearrange(linear(x.flatten(3)), "B n m G -> B G n m") for linear, x in pairs]
        return [(_scale(g), _scale(g.mT)) for g in gates]


def _scale(gates: Float[Tensor, "B G n m"]) -> Float[Tensor, "B G 2*n m"]:
    m = gates.shape[-1]
    return torch.cat([gates / m**0.5, gates.abs() / m], dim=2)


class NeuronRound(nn.Module):
    r"""Updates every neuron once from its neighbours, layer by layer; the next layer sees the new states.

    $$ h^{(i)} \leftarrow h^{(i)} + \mathrm{MLP}_i(\mathrm{LN}[h^{(i)}, G^{(i)} h^{(i-1)}, |G^{(i)}| h^{(i-1)},
       G^{(i+1)\top} h^{(i+1)}, |G^{(i+1)}|^\top h^{(i+1)}]) $$

    Args:
        spec: The input networks.
        channels: Channels of the states.
        forwards: Whether it goes from input to output or back.
    """

    def __init__(self, spec: NetworkSpec, channels: int, *, forwards: bool) -> None:
        super().__init__()
        last = spec.num_layers
        self.order = list(range(last + 1) if forwards else range(last, -1, -1))
        sizes = [(1 + 2 * (i > 0) + 2 * (i < last)) * channels for i in range(last + 1)]
        self.updates = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(size), nn.Linear(size, channels), nn.GELU(), nn.Linear(channels, channels))
            for size in sizes
        )

    def forward(self, states: States, gates: list[tuple[Tensor, Tensor]]) -> States:
        states = list(states)
        for i in self.order:
            links = [(gates[i - 1][0], states[i - 1])] if i > 0 else []
            links += [(gates[i][1], states[i + 1])] if i < len(states) - 1 else []
            states[i] = neuron_update(
                states[i], [g for g, _ in links], [h for _, h in links], *self.updates[i].parameters()
            )
        return states


class WriteEntries(nn.Module):
    """Gives each entry a linear map of the states at its ends; see `MessagePassing`."""

    def __init__(self, spec: NetworkSpec, channels: int, out_channels: int) -> None:
        super().__init__()
        self.spec = spec
        self.maps = nn.ModuleList(
            nn.ModuleList(nn.Linear(channels, g.kernel_size * out_channels) for _ in g.axes) for g in spec.groups
        )

    def forward(self, states: States) -> WeightSpaceFeatures:
        entries = []
        for group, maps in zip(self.spec.groups, self.maps, strict=True):
            values = [linear(states[axis]) for linear, axis in zip(maps, group.axes, strict=True)]  # pyright: ignore
            joined = values[0] if group.kind == "bias" else values[0][:, :, None] + values[1][:, None]
            entries.append(joined.unflatten(-1, (*group.shape[len(group.axes) :], -1)))
        return WeightSpaceFeatures(self.spec, join_groups(self.spec, entries))
