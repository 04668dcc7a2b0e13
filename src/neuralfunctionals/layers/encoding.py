"""Encodings of an entry's position (layer, input and output neurons), and Fourier features of its value."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neuralfunctionals.layers.layer import Layer
from neuralfunctionals.layers.norm import spread_over_entries
from neuralfunctionals.weight_space import Group, NetworkSpec, Role, Symmetry, WeightSpaceFeatures, join_groups

# Axes: N packed entries, C channels, n neurons, K encoding channels.


class LayerEncoding(Layer):
    r"""Adds a learned vector to all weights of a layer, and another one to its biases.

    $$ Y^{(i)}_{jk} = W^{(i)}_{jk} + \phi^{(i)}, \qquad z^{(i)}_j = b^{(i)}_j + \psi^{(i)} $$

    Symmetry: NP-equivariant; entries of different layers can no longer be exchanged.
    Reference: Zhou et al., 2023, https://arxiv.org/abs/2305.13546, eq. 8.

    Args:
        spec: The input networks.
        channels: Channels in and out.
    """

    def __init__(self, spec: NetworkSpec, channels: int) -> None:
        super().__init__(spec, channels, channels)
        self.encoding = nn.Parameter(torch.randn(len(spec.groups), channels))

    def forward(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures:
        features.require_spec(self.spec, "LayerEncoding")
        return features.with_tensor(features.tensor + spread_over_entries(self.spec, self.encoding))


class InputOutputEncoding(Layer):
    r"""Adds a learned vector per input neuron to its weights, and one per output neuron to its weights and bias.

    $$ Y^{(1)}_{jk} = W^{(1)}_{jk} + \iota_k, \qquad Y^{(L)}_{jk} = W^{(L)}_{jk} + o_j, \qquad
       z^{(L)}_j = b^{(L)}_j + o_j $$

    Symmetry: HNP-equivariant; it breaks the permutation symmetry of input and output neurons on purpose.
    Reference: Zhou et al., 2023, https://arxiv.org/abs/2302.14040.

    Args:
        spec: The input networks.
        channels: Channels in and out.
    """

    symmetry: Symmetry = "HNP"

    def __init__(self, spec: NetworkSpec, channels: int) -> None:
        super().__init__(spec, channels, channels)
        self.input_encoding = nn.Parameter(torch.randn(sum(_end_sizes(spec, "input")), channels))
        self.output_encoding = nn.Parameter(torch.randn(sum(_end_sizes(spec, "output")), channels))

    def forward(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures:
        features.require_spec(self.spec, "InputOutputEncoding")
        encoding = _encode_ends(self.spec, self.input_encoding, self.output_encoding)
        return features.with_tensor(features.tensor + encoding)


class SinusoidalEncoding(Layer):
    r"""Appends fixed sines and cosines of the positions of the layer, the input neuron and the output neuron.

    A position $p \in [-1, 1]$ becomes $[\sin(\pi f p), \cos(\pi f p), p]$ for frequencies $f$ spaced from 1 to half
    the maximum; the encodings of layer, input and output neuron are added.

    Symmetry: HNP-equivariant. Reference: Zhou et al., 2023, https://arxiv.org/abs/2302.14040.

    Args:
        spec: The input networks.
        in_channels: Channels before; `2 * num_bands + 1` are appended.
        max_frequency: Twice the highest frequency.
        num_bands: Number of frequencies.
        encode_layers: Whether to include the layer's position.
    """

    symmetry: Symmetry = "HNP"
    encoding: Float[Tensor, "N K"]

    def __init__(
        self,
        spec: NetworkSpec,
        in_channels: int,
        *,
        max_frequency: float = 10.0,
        num_bands: int = 6,
        encode_layers: bool = True,
    ) -> None:
        super().__init__(spec, in_channels, in_channels + 2 * num_bands + 1)

        def encode(count: int) -> Float[Tensor, "n K"]:
            places = torch.linspace(-1, 1, count)[:, None]
            angles = places * torch.linspace(1, max_frequency / 2, num_bands) * math.pi
            return torch.cat([angles.sin(), angles.cos(), places], dim=-1)

        ends = [torch.cat([encode(n) for n in (*_end_sizes(spec, role), 0)]) for role in ("input", "output")]
        encoding = _encode_ends(spec, ends[0], ends[1])
        if encode_layers:
            layers = encode(max(g.layer for g in spec.groups))
            encoding = encoding + spread_over_entries(spec, [layers[g.layer - 1] for g in spec.groups])
        self.register_buffer("encoding", encoding, persistent=False)

    def forward(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures:
        features.require_spec(self.spec, "SinusoidalEncoding")
        encoding = self.encoding.to(features.tensor.dtype).expand(len(features), -1, -1)
        return features.with_tensor(torch.cat([features.tensor, encoding], dim=-1))


class FourierFeatures(Layer):
    r"""Random Fourier features of each entry's channels, with fixed frequencies $B_{fc} \sim \mathcal{N}(0, s^2)$.

    $$ Y_p = [\sin(2 \pi B W_p), \cos(2 \pi B W_p)] $$

    Symmetry: NP-equivariant. Reference: Tancik et al., 2020, https://arxiv.org/abs/2006.10739.

    Args:
        spec: The input networks.
        in_channels: Channels of each entry.
        num_frequencies: Rows of `B`; the output has twice as many channels.
        scale: The std $s$.
        generator: Random number generator.
    """

    frequencies: Float[Tensor, "C F"]

    def __init__(
        self,
        spec: NetworkSpec,
        in_channels: int = 1,
        num_frequencies: int = 128,
        *,
        scale: float = 3.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(spec, in_channels, 2 * num_frequencies)
        self.register_buffer("frequencies", torch.randn(in_channels, num_frequencies, generator=generator) * scale)

    def forward(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures:
        features.require_spec(self.spec, "FourierFeatures")
        angles = features.tensor @ (2 * math.pi * self.frequencies)
        return features.with_tensor(torch.cat([angles.sin(), angles.cos()], dim=-1))


def _end_sizes(spec: NetworkSpec, role: Role) -> list[int]:
    """Neurons of each input axis, or of each output axis; a chain has one of each."""
    return [axis.size for axis in spec.axes if axis.role == role]


def _encode_ends(
    spec: NetworkSpec, inputs: Float[Tensor, "n C"], outputs: Float[Tensor, "m C"]
) -> Float[Tensor, "N C"]:
    """For each entry, the sum of the vectors of its input and output neurons."""
    vectors: dict[int, Tensor] = {}
    ends: list[tuple[Role, Tensor]] = [("input", inputs), ("output", outputs)]
    for role, values in ends:
        numbers = [n for n, axis in enumerate(spec.axes) if axis.role == role]
        vectors.update(zip(numbers, values.split(_end_sizes(spec, role)), strict=True))

    def encode(group: Group) -> Tensor:
        total = inputs.new_zeros(1, *group.shape, inputs.shape[-1])
        for place, axis in enumerate(group.axes):
            if axis in vectors:
                behind = total.ndim - place - 3
                total = total + vectors[axis].view(-1, *[1] * behind, inputs.shape[-1])
        return total

    return join_groups(spec, [encode(g) for g in spec.groups])[0]
