"""Message passing between neurons: `NeuronGraphNet`."""

from collections.abc import Sequence
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

from neuralfunctionals.errors import UserError
from neuralfunctionals.inr.siren import as_siren
from neuralfunctionals.layers import NeuronStates, OutputScale, Pointwise
from neuralfunctionals.layers.neuron_states import spread_scales, take_out_scales
from neuralfunctionals.layers.state_readout import StateCrossAttention, StatePool, WriteEntries
from neuralfunctionals.models.heads import vector_head
from neuralfunctionals.models.pretrained import Pretrained
from neuralfunctionals.weight_space import NetworkSpec, Symmetry, WeightSpaceFeatures


class NeuronGraphNet(nn.Module, Pretrained):
    r"""Message passing between neurons along the weights, followed by an output layer.

    Each neuron has a state of `channels` numbers, updated `num_rounds` times from its neighbours through `W` and `|W|`
    (see `layers.NeuronStates`). The output depends on `pooling`:

    - `None`: features of the same networks, for instance an edit. Each entry gets an MLP of itself and the states at
      its ends, and a product of the two states, $\langle U h_j, V h_k \rangle$ (equivariant);
    - `"latents"`: an array of shape (batch, `num_latents`, `latent_channels`), from queries that attend to all neurons
      (invariant);
    - `"vector"`: `out_channels` numbers, from the mean and maximum of the states of each layer by an MLP (invariant).

    Symmetry: `"NP"` or `"HNP"`, see `symmetry`.
    References: those of `layers.NeuronStates`.

    Args:
        spec: The input networks. For biases of sine networks, the sine and cosine of their angles are also inputs.
        in_channels: Channels of the input: 1 for weights alone.
        out_channels: Channels of the output features, or length of the output vector.
        channels: Channels of the neurons' states.
        num_rounds: Number of updates of all neurons.
        hidden_channels: Width inside the updates. Defaults to twice the channels.
        num_gates: Gates per weight; see `layers.NeuronStates`.
        symmetry: `"NP"` or `"HNP"`, which distinguishes input and output neurons.
        num_frequencies: Random Fourier features for the states; see `layers.NeuronStates`.
        fourier_scale: Std of their frequencies.
        probes: Number of learned points (images for CNNs) at which networks are evaluated. Defaults to 0, weights only.
        dropout: Dropout before the output layer.
        pooling: See above.
        pool_channels: Width of a hidden layer on each state, whose mean is also pooled; see `StatePool`.
        num_latents: Number of queries that attend to the neurons.
        latent_channels: Channels of each latent.
        head_channels: Hidden widths of the MLP after the pooling. Defaults to one of 256 for a vector, and of four
            times the channels of a state for latents, whose MLP has one hidden layer.
        picture_size: Side length of a predicted picture of the INR. Its values are the last outputs, and a small CNN
            computes the others from it; see `models.heads.PictureHead`. Defaults to 0, no picture.
        entry_channels: Width of the MLP that computes output features.
        rank: Length of the vectors in the product of two states.
        output_scale: Initial value of the learned scales of the output features, relative to those of the input.

    Example:
        >>> import torch
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
        channels: int = 64,
        num_rounds: int = 5,
        hidden_channels: int | None = None,
        num_gates: int | None = None,
        symmetry: Symmetry = "HNP",
        num_frequencies: int = 0,
        fourier_scale: float = 0.5,
        probes: int = 0,
        dropout: float = 0.0,
        pooling: Literal["vector", "latents"] | None = None,
        pool_channels: int = 0,
        num_latents: int = 16,
        latent_channels: int = 64,
        head_channels: Sequence[int] | None = None,
        picture_size: int = 0,
        entry_channels: int = 64,
        rank: int = 32,
        output_scale: float = 0.1,
    ) -> None:
        super().__init__()
        if pooling not in (None, "vector", "latents"):
            raise UserError(f"Expected pooling None, 'vector' or 'latents', but got {pooling!r}.")
        self.spec = spec
        self.in_channels, self.out_channels = in_channels, out_channels
        self.symmetry: Symmetry = symmetry
        self.states = NeuronStates(
            spec,
            in_channels,
            channels,
            num_rounds=num_rounds,
            hidden_channels=hidden_channels,
            num_gates=num_gates,
            symmetry=symmetry,
            num_frequencies=num_frequencies,
            fourier_scale=fourier_scale,
            probes=probes,
            derivatives=pooling is None,
        )
        self.dropout = nn.Dropout(dropout)
        self.pooling, self.picture_size = pooling, picture_size
        if pooling == "vector":
            self.pool = StatePool(self.states, pool_channels)
            size = self.pool.out_channels
            head = vector_head(
                size,
                head_channels or (256,),
                out_channels,
                dropout=dropout,
                picture_size=picture_size,
                colours=spec.widths[-1],
            )
            self.head = nn.Sequential(nn.LayerNorm(size), head)
        elif pooling == "latents":
            self.out_channels = latent_channels
            self.head = StateCrossAttention(
                self.states,
                latent_channels,
                num_latents,
                pool_channels=pool_channels,
                hidden_channels=None if head_channels is None else head_channels[0],
            )
        else:
            self.write = WriteEntries(self.states, entry_channels)
            self.skip = Pointwise(spec, in_channels, entry_channels)
            self.entries = Pointwise(spec, entry_channels, out_channels)
            self.product = WriteEntries(self.states, out_channels, rank=rank)
            self.scale = OutputScale(spec, out_channels, initial=output_scale)

    def forward(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures | Float[Tensor, "B *out"]:
        features.require_spec(self.spec, "NeuronGraphNet")
        states = self.states(features)
        if self.pooling == "vector":
            return self.head(self.dropout(self.pool(states)))
        if self.pooling == "latents":
            return self.head(states)
        relative, scales = take_out_scales(features)
        hidden = self.write(states) + self.skip(relative)
        output = self.entries(hidden.map(nn.functional.gelu).map(self.dropout)) + self.product(states)
        # Edits are learned relative to the scale of their group: groups differ in scale by factors of ten.
        spread = spread_scales(self.states, scales.mean(-1, keepdim=True))
        return self.scale(output).map(lambda x: x * spread)

    @classmethod
    def editing(cls, spec: NetworkSpec, **changes: Any) -> "NeuronGraphNet":
        """An editor of sine networks; of frequency 30, if the spec does not record it."""
        return cls(as_siren(spec), **changes)

    @classmethod
    def classification(cls, spec: NetworkSpec, **changes: Any) -> "NeuronGraphNet":
        """A classifier of sine networks into ten classes; of frequency 30, if the spec does not record it."""
        return cls(as_siren(spec), **{"pooling": "vector", "out_channels": 10, **changes})

    @classmethod
    def generalization(cls, spec: NetworkSpec, **changes: Any) -> "NeuronGraphNet":
        """A predictor of a CNN's test accuracy, as a logit."""
        return cls(spec, **{"pooling": "vector", "dropout": 0.1, **changes})
