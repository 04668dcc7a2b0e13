"""Neural functional transformers: `NFT`."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

from neuralfunctionals.errors import UserError
from neuralfunctionals.layers import (
    Block,
    FourierFeatures,
    HNPPool,
    InputOutputEncoding,
    LayerEncoding,
    LayerNorm,
    NeuronStates,
    NPPool,
    OutputScale,
    Pointwise,
    Standardize,
    WeightSpaceCrossAttention,
)
from neuralfunctionals.layers.state_readout import WriteEntries
from neuralfunctionals.models.heads import vector_head
from neuralfunctionals.models.pretrained import Pretrained
from neuralfunctionals.weight_space import NetworkSpec, Symmetry, WeightSpaceFeatures


class NFT(nn.Module, Pretrained):
    r"""A neural functional transformer: Fourier features, encodings, attention blocks, and an output layer.

    The output depends on `pooling`:

    - `None`: features of the same networks, for instance an edit $\Delta(W)$ (equivariant);
    - `"latents"`: an array of shape (batch, `num_latents`, `latent_channels`), by cross-attention (invariant);
    - `"cross_attention"`, `"NP"` or `"HNP"`: a vector, from an MLP of this array or of pooled features (invariant).

    Symmetry: that of its attention; `"HNP"` with an input/output encoding or HNP pooling.
    Reference: Zhou et al., 2023, https://arxiv.org/abs/2305.13546.

    Args:
        spec: The input networks.
        in_channels: Channels of the input: 1 for weights alone.
        out_channels: Channels of the output features, or length of the output vector.
        channels: Width of the blocks; even, because Fourier features come in pairs.
        num_blocks: Number of blocks.
        hidden_channels: Width inside the blocks' MLPs.
        num_heads: Attention heads.
        dropout: Dropout on attention matrices and in MLPs.
        standardize: Whether to standardize each layer's weights and biases before the Fourier features; see
            `nf.layers.Standardize`, whose mean and std are set by `estimate`.
        fourier_scale: Std of the Fourier frequencies.
        symmetry: Symmetry of the attention, `"NP"` (the paper's) or `"HNP"`.
        io_encoding: Whether to add learned encodings of input and output neurons.
        global_term: Third term of the attention: `"reduced"`, `"full"` or `"none"`.
        mlp: Norms and MLPs `"per_layer"` (the paper's) or `"shared"`.
        neuron_states: Rounds of message passing before the attention (see `layers.NeuronStates`); linear maps of the
            states at its ends are added to each token. The paper's model has 0.
        state_channels: Channels of these states.
        state_frequencies: Random Fourier features for the states; see `layers.NeuronStates`.
        probes: Number of learned points (images for CNNs) at which the networks are evaluated (see `layers.Probes`).
            Defaults to 0, weights only.
        pooling: See above.
        num_latents: Number of queries of the cross-attention.
        latent_channels: Channels of each latent.
        head_channels: Hidden widths of the MLP that computes the vector.
        picture_size: Side length of a predicted picture of the INR. Its values are the last outputs, and a small CNN
            computes the others from it; see `models.heads.PictureHead`. Defaults to 0, no picture.
        output_scale: Initial value of the learned scales of the output features.
        max_vectors: Limits the slices of one group that meet at an axis; see `layers.WeightSpaceSelfAttention`.

    Example:
        >>> import torch
        >>> spec = NetworkSpec.mlp([2, 32, 32, 1])
        >>> networks = WeightSpaceFeatures.from_vectors(spec, 0.1 * torch.randn(4, spec.num_entries))
        >>> NFT(spec, channels=16, num_heads=2, hidden_channels=32, pooling="HNP", out_channels=10)(networks).shape
        torch.Size([4, 10])
    """

    def __init__(
        self,
        spec: NetworkSpec,
        *,
        in_channels: int = 1,
        out_channels: int = 1,
        channels: int = 256,
        num_blocks: int = 4,
        hidden_channels: int = 512,
        num_heads: int = 8,
        dropout: float = 0.0,
        standardize: bool = False,
        fourier_scale: float = 3.0,
        symmetry: Symmetry = "NP",
        io_encoding: bool = True,
        global_term: Literal["reduced", "full", "none"] = "reduced",
        mlp: Literal["per_layer", "shared"] = "per_layer",
        neuron_states: int = 0,
        state_channels: int = 64,
        state_frequencies: int = 0,
        probes: int = 0,
        pooling: Literal["latents", "cross_attention", "NP", "HNP"] | None = None,
        num_latents: int = 16,
        latent_channels: int = 256,
        head_channels: Sequence[int] = (1000, 1000),
        picture_size: int = 0,
        output_scale: float = 0.01,
        max_vectors: int | None = None,
    ) -> None:
        super().__init__()
        if channels % 2:
            raise UserError(f"Expected an even number of channels (sines and cosines), but got {channels}.")
        self.spec = spec
        self.in_channels, self.out_channels = in_channels, out_channels
        self.symmetry: Symmetry = "HNP" if io_encoding or pooling == "HNP" else symmetry
        self.encode = nn.Sequential(
            *([Standardize(spec, in_channels)] if standardize else []),
            FourierFeatures(spec, in_channels, channels // 2, scale=fourier_scale),
            LayerEncoding(spec, channels),
            *([InputOutputEncoding(spec, channels)] if io_encoding else []),
        )
        self.blocks = nn.Sequential(
            *(
                Block(
                    spec,
                    channels,
                    hidden_channels,
                    num_heads,
                    dropout=dropout,
                    symmetry=symmetry,
                    global_term=global_term,
                    mlp=mlp,
                    max_vectors=max_vectors,
                )
                for _ in range(num_blocks)
            ),
            LayerNorm(spec, channels, per_layer=mlp == "per_layer"),
        )
        self.states = None
        if neuron_states or probes:
            self.states = NeuronStates(
                spec,
                in_channels,
                state_channels,
                num_rounds=neuron_states,
                symmetry=self.symmetry,
                num_frequencies=state_frequencies,
                probes=probes,
                derivatives=pooling is None,
            )
            self.write_states = WriteEntries(self.states, channels)
        attention = (spec, channels, latent_channels, num_latents)
        self.picture_size = picture_size
        make_head = partial(vector_head, dropout=dropout, picture_size=picture_size, colours=spec.widths[-1])
        if pooling is None:
            self.output = nn.Sequential(
                Pointwise(spec, channels, out_channels), OutputScale(spec, out_channels, initial=output_scale)
            )
        elif pooling == "latents":
            self.out_channels = latent_channels
            self.output = WeightSpaceCrossAttention(*attention)
        elif pooling == "cross_attention":
            head = make_head(num_latents * latent_channels, head_channels, out_channels)
            self.output = nn.Sequential(WeightSpaceCrossAttention(*attention), nn.Flatten(), head)
        elif pooling in ("NP", "HNP"):
            pool = (NPPool if pooling == "NP" else HNPPool)(spec, channels)
            self.output = nn.Sequential(pool, make_head(pool.out_channels, head_channels, out_channels))
        else:
            raise UserError(f"Expected pooling None, 'latents', 'cross_attention', 'NP' or 'HNP', but got {pooling!r}.")

    def forward(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures | Float[Tensor, "B *out"]:
        features.require_spec(self.spec, "NFT")
        tokens = self.encode(features)
        if self.states is not None:
            tokens = tokens + self.write_states(self.states(features))
        return self.output(self.blocks(tokens))

    @classmethod
    def decode_config(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """The constructor's arguments from the JSON config; older configs have one that was removed."""
        known = {name: value for name, value in config.items() if (name, value) != ("message_passing", False)}
        return super().decode_config(known)

    @classmethod
    def editing(cls, spec: NetworkSpec, **changes: Any) -> "NFT":
        """The paper's editor of INRs: 7 M parameters on 2-32-32-1."""
        return cls(spec, **{"dropout": 0.1, **changes})

    @classmethod
    def generalization(cls, spec: NetworkSpec, **changes: Any) -> "NFT":
        """The paper's predictor of a CNN's test accuracy, as a logit: 46 M parameters on the Small CNN Zoo."""
        config: dict[str, Any] = {"hidden_channels": 1024, "num_heads": 4, "dropout": 0.1, "pooling": "HNP"}
        return cls(spec, **{**config, **changes})
