"""Message passing between neurons along the weights: `NeuronStates`.

Each neuron that permutes under the symmetry has a state. Fixed neurons (inputs and outputs under HNP) do not need one:
the entries that connect them to a neuron are features of that neuron (see `folding`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from neuralfunctionals import kernels
from neuralfunctionals.errors import UserError
from neuralfunctionals.layers.folding import FoldedGroup
from neuralfunctionals.layers.image_probes import ImageProbes
from neuralfunctionals.layers.norm import spread_over_entries
from neuralfunctionals.layers.probes import Probes
from neuralfunctionals.weight_space import NetworkSpec, Symmetry, WeightSpaceFeatures

# Axes: B input networks, n, m neurons of neighbouring layers, C channels of a state, G gates, c channels behind one
# gate, n2, C2 twice as many (signed, then absolute), D values of a whole network, V values of a neuron, F frequencies.


class States(NamedTuple):
    """The states of neurons, and values of each whole network."""

    neurons: dict[int, Float[Tensor, "B _n C"]]
    """States by layer of neurons; fixed layers have none."""
    network: Float[Tensor, "B D"]
    """Values that belong to no neuron: logarithms of the groups' scales, and entries between fixed neurons."""


class NeuronStates(nn.Module):
    r"""Computes a state for every neuron from its weights and bias, and updates it by message passing.

    $$ h^{(i)}_j = R_i \big[ x_j, s \big], \qquad
       h^{(i)} \leftarrow h^{(i)} + \mathrm{MLP}_i\big(\mathrm{LN}[h^{(i)}, G^{(i)} h^{(i-1)}, |G^{(i)}| h^{(i-1)},
       G^{(i+1)\top} h^{(i+1)}, |G^{(i+1)}|^\top h^{(i+1)}]\big) $$

    Here $x_j$ holds the neuron's bias, its entries to fixed neurons, and means of the others; $s$ holds values of the
    whole network. $R_i$ is linear or, with `num_frequencies`, an MLP that also takes Fourier features of the entries to
    fixed neurons: in an INR, those of the input coordinates. Entries are divided by the root mean square of their group
    in their network, whose logarithm is part of $s$. The gates $G$ are learned projections of the weights, see `Gates`.
    In a round, each layer of neurons sees the new states of the layer before it.

    In networks other than chains, every axis of neurons has states, and messages pass along every group that connects
    two. The states of a nested axis run over it and its parent, which has no separate states there.

    There are far fewer neurons than weights: a round costs a small fraction of an attention block.

    Symmetry: NP- or HNP-equivariant.
    References: Lim et al., 2023, https://arxiv.org/abs/2312.04501; Kofinas et al., 2024,
    https://arxiv.org/abs/2403.12143; Kalogeropoulos et al., 2024, https://arxiv.org/abs/2406.10685. These also have
    states for edges and for input and output neurons.

    Args:
        spec: The input networks. For biases of sine networks, the sine and cosine of their angles are also inputs.
        in_channels: Channels of each entry.
        channels: Channels of the states.
        num_rounds: Number of updates of all neurons.
        hidden_channels: Width inside the updates. Defaults to twice the channels.
        num_gates: Gates per weight; must divide the channels. Defaults to the largest power of two that does so and
            is at most 8 and at most the number of values of a weight (channels times kernel positions).
        symmetry: `"NP"` or `"HNP"`.
        num_frequencies: Random frequencies of the Fourier features of each entry to a fixed neuron. Defaults to 0,
            no Fourier features.
        fourier_scale: Std of these frequencies.
        probes: Number of learned points (images for CNNs) at which the networks are evaluated; activations of neurons
            and outputs of networks are then also inputs (see `Probes`, `ImageProbes`). Defaults to 0, weights only.
        derivatives: Whether the derivatives of the outputs at the probes are inputs too, for sine networks.
    """

    def __init__(
        self,
        spec: NetworkSpec,
        in_channels: int,
        channels: int,
        *,
        num_rounds: int = 4,
        hidden_channels: int | None = None,
        num_gates: int | None = None,
        symmetry: Symmetry = "HNP",
        num_frequencies: int = 0,
        fourier_scale: float = 0.5,
        probes: int = 0,
        derivatives: bool = False,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.in_channels, self.channels = in_channels, channels
        self.symmetry: Symmetry = symmetry
        self.omega = spec.omega
        self.groups = FoldedGroup.of(spec, symmetry)
        self.layers = sorted({axis for g in self.groups for axis in g.ends})
        self.joints = [Joint(n, g, pair) for n, g in enumerate(self.groups) for pair in _pairs(g)]
        self.probes = None
        if probes and spec.has_kernels:
            self.probes = ImageProbes(spec, probes)
        elif probes:
            self.probes = Probes(spec, probes, derivatives=derivatives)
        inside = sum(g.fold for g in self.groups if not g.axes)
        self.network_channels = (inside + len(self.groups)) * in_channels
        if self.probes is not None:
            self.network_channels += self.probes.output_channels
        hidden_channels = 2 * channels if hidden_channels is None else hidden_channels
        if num_gates is None:
            values = in_channels * max(joint.group.fold for joint in self.joints) if self.joints else 1
            num_gates = math.gcd(1 << min(3, values.bit_length() - 1), channels)
        self.fourier = nn.ModuleDict(
            {
                str(n): FourierValues(g.fold * in_channels, num_frequencies, fourier_scale)
                for n, g in enumerate(self.groups)
                if num_frequencies and len(g.ends) == 1 and not self._is_bias(g)
            }
        )
        self.read_neurons = nn.ModuleDict()
        self.read_network = nn.ModuleDict()
        for layer in self.layers:
            touching = [(str(n), g) for n, g in enumerate(self.groups) if layer in g.ends]
            values = sum(g.fold * self._copies(g) * g.ends.count(layer) for _, g in touching) * in_channels
            values += sum(2 * num_frequencies * g.fold for n, g in touching if n in self.fourier) * in_channels
            values += 0 if self.probes is None else self.probes.neuron_channels.get(layer, 0)
            self.read_neurons[str(layer)] = (
                nn.Sequential(nn.Linear(values, 2 * channels), nn.GELU(), nn.Linear(2 * channels, channels))
                if num_frequencies
                else nn.Linear(values, channels)
            )
            # From zero: logarithms of scales are large and similar for all networks, and would dominate the rest.
            self.read_network[str(layer)] = nn.Linear(self.network_channels, channels, bias=False)
            nn.init.zeros_(self.read_network[str(layer)].get_parameter("weight"))
        self.gates = Gates(self.joints if num_rounds else [], in_channels, channels, num_gates)
        self.rounds = nn.ModuleList(
            NeuronRound(self.joints, self.layers, channels, hidden_channels) for _ in range(num_rounds)
        )

    def _copies(self, group: FoldedGroup) -> int:
        """Copies of a group's values in the input: as they are and, depending on the group, absolute or as angles."""
        if self._is_bias(group):
            return 3 if self.omega is not None else 1
        return 2

    def _is_bias(self, group: FoldedGroup) -> bool:
        """Whether a group holds biases: values of the neurons of one axis."""
        return group.group.kind != "weight" and len(group.ends) == 1

    def forward(self, features: WeightSpaceFeatures) -> States:
        features.require_spec(self.spec, type(self).__name__)
        relative, scales = take_out_scales(features)
        seen: dict[int, list[Tensor]] = {layer: [] for layer in self.layers}
        inside = [scales.log().flatten(1)]
        values = []
        parts = zip(self.groups, features.split(), relative.split(), strict=True)
        for n, (group, raw, x) in enumerate(parts):
            x = group.by_ends(group.fold_fixed(x))
            values.append(x)
            if not group.axes:
                inside.append(group.fold_fixed(raw))
            elif self._is_bias(group):
                seen[group.ends[0]].append(x)
                if self.omega is not None:
                    angles = self.omega * group.by_ends(group.fold_fixed(raw))
                    seen[group.ends[0]] += [angles.sin(), angles.cos()]
            else:
                for place, layer in enumerate(group.ends):
                    others = [1 + n for n in range(len(group.ends)) if n != place]
                    seen[layer] += [value.mean(others) if others else value for value in (x, x.abs())]
                if str(n) in self.fourier:
                    seen[group.ends[0]].append(self.fourier[str(n)](x))
        if self.probes is not None:
            activations, outputs = self.probes(features)
            inside.append(outputs)
            for layer, activation in activations.items():
                seen[layer].append(activation)
        network = torch.cat(inside, dim=-1)
        neurons = {
            layer: self.read_neurons[str(layer)](torch.cat(values_of, dim=-1))
            + self.read_network[str(layer)](network)[:, None]
            for layer, values_of in seen.items()
        }
        between = self.gates([joint.select(values) for joint in self.joints]) if len(self.rounds) else []
        for update in self.rounds:
            neurons = update(neurons, between)
        return States(neurons, network)

    def extra_repr(self) -> str:
        return f"{self.spec}, {self.in_channels} -> {self.channels} channels, symmetry={self.symmetry}"


class FourierValues(nn.Module):
    r"""Random Fourier features of each value separately: $[\sin, \cos](2 \pi b_{vf} x_v)$ with fixed $b_{vf}$."""

    frequencies: Float[Tensor, "V F"]

    def __init__(self, values: int, num_frequencies: int, scale: float) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.randn(values, num_frequencies) * scale)

    def forward(self, x: Float[Tensor, "*B V"]) -> Float[Tensor, "*B D"]:
        angles = (2 * math.pi * x[..., None] * self.frequencies).flatten(-2)
        return torch.cat([angles.sin(), angles.cos()], dim=-1)


@dataclass(frozen=True)
class Joint:
    """Two ends of a group: neurons that its entries connect, so that messages pass between them."""

    number: int
    group: FoldedGroup
    pair: tuple[int, int]

    @property
    def layers(self) -> tuple[int, int]:
        """The axes of the two ends."""
        return self.group.ends[self.pair[0]], self.group.ends[self.pair[1]]

    def select(self, values: Sequence[Tensor]) -> Float[Tensor, "B n m _d"]:
        """The values between the two ends, averaged over any others."""
        x = values[self.number]
        others = [1 + n for n in range(len(self.group.ends)) if n not in self.pair]
        return x.mean(others) if others else x


def _pairs(group: FoldedGroup) -> list[tuple[int, int]]:
    return list(itertools.combinations(range(len(group.ends)), 2))


def take_out_scales(features: WeightSpaceFeatures) -> tuple[WeightSpaceFeatures, Float[Tensor, "B G C"]]:
    """Divides each entry by the root mean square of its group in its network; also returns these scales."""
    squares = [x.flatten(1, -2).square().mean(1) for x in features.split()]
    scales = torch.stack(squares, dim=1).add(1e-12).sqrt()
    return features.with_tensor(features.tensor / spread_over_entries(features.spec, scales.unbind(1))), scales


def spread_scales(states: NeuronStates, scales: Float[Tensor, "B G C"]) -> Float[Tensor, "B N C"]:
    """The scale of each entry's group; 1 for entries between fixed neurons, which may all be zero."""
    pairs = zip(states.groups, scales.unbind(1), strict=True)
    return spread_over_entries(states.spec, [scale if g.axes else torch.ones_like(scale) for g, scale in pairs])


class Gates(nn.Module):
    r"""Factors of the messages along a weight: `G` learned projections of the weight's values.

    $$ g_{jk} = \Gamma_i\, \mathrm{vec}(W^{(i)}_{jk}), \qquad
       \Big[ \tfrac{1}{\sqrt{m}} g_{jk},\; \tfrac{1}{m} |g_{jk}| \Big], \qquad m \text{ neurons to sum over} $$

    The channels of a state are divided between the gates. For raw weights, one channel and no kernel, one gate is the
    weight itself up to a factor.

    Returns:
        For each group of weights, two matrices per gate, the signed above the absolute values: forward, of
        shape `(B, G, 2 n, m)`, and backward, `(B, G, 2 m, n)`.
    """

    def __init__(self, joints: Sequence[Joint], in_channels: int, channels: int, num_gates: int) -> None:
        super().__init__()
        if channels % num_gates:
            raise UserError(
                f"Expected channels divisible by the gates, but got {channels} channels and {num_gates} gates. "
                f"Use a multiple of {num_gates} channels or another number of gates."
            )
        self.maps = nn.ModuleList(nn.Linear(j.group.fold * in_channels, num_gates, bias=False) for j in joints)
        for linear in self.maps:
            nn.init.orthogonal_(linear.get_parameter("weight"))

    def forward(self, weights: Sequence[Float[Tensor, "B _n _m _d"]]) -> list[tuple[Tensor, Tensor]]:
        pairs = zip(self.maps, weights, strict=True)
        gates = [rearrange(linear(x), "B n m G -> B G n m") for linear, x in pairs]
        return [(_scale(g), _scale(g.mT)) for g in gates]


def _scale(gates: Float[Tensor, "B G n m"]) -> Float[Tensor, "B G 2*n m"]:
    m = gates.shape[-1]
    return torch.cat([gates / m**0.5, gates.abs() / m], dim=2)


class NeuronRound(nn.Module):
    """Updates every neuron once from its neighbours, layer by layer; the next layer sees the new states."""

    def __init__(self, joints: Sequence[Joint], layers: Sequence[int], channels: int, hidden: int) -> None:
        super().__init__()
        self.layers = layers
        self.sources = {
            layer: [
                (n, joint.layers[1 - way], way)
                for n, joint in enumerate(joints)
                for way in (0, 1)
                if joint.layers[way] == layer
            ]
            for layer in layers
        }
        """For each layer of neurons: index of the gates, the neighbouring layer, and the direction."""
        self.updates = nn.ModuleDict()
        for layer in layers:
            size = (1 + 2 * len(self.sources[layer])) * channels
            self.updates[str(layer)] = nn.Sequential(
                nn.LayerNorm(size), nn.Linear(size, hidden), nn.GELU(), nn.Linear(hidden, channels)
            )
        kernels.prepare("neuron_update", list(self.parameters()))

    def forward(
        self, neurons: Mapping[int, Float[Tensor, "B _n C"]], gates: Sequence[tuple[Tensor, Tensor]]
    ) -> dict[int, Float[Tensor, "B _n C"]]:
        neurons = dict(neurons)
        for layer in self.layers:
            sources = self.sources[layer]
            update = self.updates[str(layer)]
            neurons[layer] = kernels.neuron_update(
                neurons[layer],
                [gates[n][way] for n, _, way in sources],
                [neurons[behind] for _, behind, _ in sources],
                kernels.stock_parameters(update, nn.LayerNorm, nn.Linear, nn.GELU, nn.Linear),
                update,
            )
        return neurons
