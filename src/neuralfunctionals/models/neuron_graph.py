"""Message passing over the graph of neurons: `NeuronGraphNet`."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neuralfunctionals.layers import OutputScale, Pointwise
from neuralfunctionals.layers.message_passing import Gates, NeuronRound, ReadNeurons, WriteEntries
from neuralfunctionals.models.heads import mlp_head
from neuralfunctionals.models.pretrained import Pretrained
from neuralfunctionals.weight_space import NetworkSpec, Symmetry, WeightSpaceFeatures

# Axes: B input networks, D scales (groups times channels), K outputs.


class NeuronGraphNet(nn.Module, Pretrained):
    r"""Rounds of message passing between neurons through the weights, and an output layer.

    Each neuron has a state of `channels` numbers, updated `num_rounds` times from its neighbours through `W` and `|W|`
    (see `layers.MessagePassing`). Entries are seen relative to the root mean square of their group in their network,
    whose logarithm is given to the states. There are far fewer neurons than weights: a round costs a small part of
    an attention block.

    The output is features of the same networks, from each entry and the states at its ends by an MLP (equivariant), or
    a vector, from the mean and maximum of the states of each layer by an MLP (invariant).

    Symmetry: `"NP"` or `"HNP"`, as asked.
    References: those of `layers.MessagePassing`.

    Args:
        spec: The input networks.
        in_channels: Channels of the input: 1 for weights alone.
        out_channels: Channels of the output features, or length of the output vector.
        channels: Channels of the neurons' states.
        num_rounds: Updates of all neurons, in turn from input to output and back.
        num_gates: Gates of each weight; by default the power of two below the number of its values (channels times
            kernel positions), 8 at most.
        symmetry: `"HNP"` gives each input and output neuron a learned first state of its own.
        omega: Frequency of sine networks: the states then start from sine and cosine of omega times the entries too.
        dropout: Dropout before the output layer.
        invariant: Whether the output is a vector.
        head_channels: Hidden widths of the MLP that gives the vector.
        output_scale: First value of the learned scales of the output features.

    Example:
        >>> spec = NetworkSpec.mlp([2, 32, 32, 1])
        >>> networks = WeightSpaceFeatures.from_vectors(spec, 0.1 * torch.randn(4, spec.num_entries))
        >>> NeuronGraphNet.classification(spec, channels=16)(networks).shape
        torch.Size([4, 10])
    """

    def __init__(
        self,
        spec: NetworkSpec,
        *,
        in_channels: int = 1,
        out_channels: int = 1,
        channels: int = 96,
        num_rounds: int = 4,
        num_gates: int | None = None,
        symmetry: Symmetry = "HNP",
        omega: float | None = None,
        dropout: float = 0.0,
        invariant: bool = False,
        head_channels: Sequence[int] = (192,),
        output_scale: float = 0.01,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.in_channels, self.out_channels = in_channels, out_channels
        self.symmetry: Symmetry = symmetry
        self.omega = omega
        seen_channels = in_channels if omega is None else 3 * in_channels
        values = in_channels * max(layer.kernel_size for layer in spec.layers)
        num_gates = 1 << min(3, values.bit_length() - 1) if num_gates is None else num_gates
        self.read = ReadNeurons(spec, seen_channels, channels, symmetry)
        self.read_scales = nn.Linear(len(spec.groups) * in_channels, len(spec.widths) * channels)
        self.gates = Gates(spec, in_channels, channels, num_gates)
        self.rounds = nn.ModuleList(NeuronRound(spec, channels, forwards=n % 2 == 0) for n in range(num_rounds))
        self.dropout = nn.Dropout(dropout)
        if invariant:
            self.head = mlp_head(2 * channels * len(spec.widths), head_channels, out_channels, dropout)
        else:
            self.head = None
            self.write = WriteEntries(spec, channels, channels)
            self.skip = Pointwise(spec, seen_channels, channels)
            self.output = nn.Sequential(
                Pointwise(spec, channels, out_channels), OutputScale(spec, out_channels, initial=output_scale)
            )

    def forward(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures | Float[Tensor, "B K"]:
        features.require_spec(self.spec, "NeuronGraphNet")
        raw, (features, scales) = features, _take_out_scales(features)
        seen = features
        if self.omega is not None:
            angles = raw * self.omega
            seen = WeightSpaceFeatures.stack([features, angles.map(torch.sin), angles.map(torch.cos)])
        from_scales = self.read_scales(scales.log()).chunk(len(self.spec.widths), dim=-1)
        states = [h + s[:, None] for h, s in zip(self.read(seen), from_scales, strict=True)]
        gates = self.gates(features)
        for update in self.rounds:
            states = update(states, gates)
        if self.head is not None:
            pooled = [value for h in states for value in (h.mean(1), h.amax(1))]
            return self.head(self.dropout(torch.cat(pooled, dim=-1)))
        hidden = self.write(states) + self.skip(seen)
        return self.output(hidden.map(nn.functional.gelu).map(self.dropout))

    @classmethod
    def editing(cls, spec: NetworkSpec, **changes: Any) -> "NeuronGraphNet":
        """An editor of sine networks."""
        return cls(spec, **{"omega": 30.0, **changes})

    @classmethod
    def classification(cls, spec: NetworkSpec, **changes: Any) -> "NeuronGraphNet":
        """A classifier of sine networks into ten classes."""
        return cls(spec, **{"invariant": True, "out_channels": 10, "omega": 30.0, **changes})

    @classmethod
    def generalization(cls, spec: NetworkSpec, **changes: Any) -> "NeuronGraphNet":
        """A predictor of a CNN's test accuracy, as a logit."""
        return cls(spec, **{"invariant": True, "dropout": 0.1, **changes})


def _take_out_scales(features: WeightSpaceFeatures) -> tuple[WeightSpaceFeatures, Float[Tensor, "B D"]]:
    """Each entry relative to the root mean square of its group, and these, for each channel."""
    squares = [x.flatten(1, -2).square().mean(1) for x in features.split()]
    scales = torch.stack(squares, dim=1).add(1e-12).sqrt()
    spread = [
        scale[:, None].expand(-1, g.size, -1) for g, scale in zip(features.spec.groups, scales.unbind(1), strict=True)
    ]
    return features.with_tensor(features.tensor / torch.cat(spread, dim=1)), scales.flatten(1)
