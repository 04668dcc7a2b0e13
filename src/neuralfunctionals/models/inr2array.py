"""The autoencoder from INR weights to an invariant latent array and back: `Inr2Array`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from neuralfunctionals.errors import UserError
from neuralfunctionals.inr import initial_limits
from neuralfunctionals.inr.siren import as_siren
from neuralfunctionals.models.canonical import Canonical
from neuralfunctionals.models.heads import mlp_head
from neuralfunctionals.models.neuron_graph import NeuronGraphNet
from neuralfunctionals.models.nfn import NFN
from neuralfunctionals.models.nft import NFT
from neuralfunctionals.models.pretrained import Pretrained, decode_symmetry
from neuralfunctionals.weight_space import NetworkSpec, NetworkSymmetry, Symmetry, WeightSpaceFeatures

# Axes: B input networks, M latents (one for each patch of the image), D latent channels, N packed entries.


class Inr2Array(nn.Module, Pretrained):
    r"""Maps the weights of an INR to an array of latents, and each latent to the weights of an INR for one patch.

    $$ z = \mathrm{Enc}(W) \in \mathbb{R}^{M \times d}, \qquad \hat W_m = \mathrm{Dec}(z_m) $$

    The image is split into $M = m \times m$ patches; $\hat W_m$ represents patch $m$, in row-major order.

    Symmetry: the latents are HNP-invariant.
    Reference: Zhou et al., 2023, https://arxiv.org/abs/2305.13546, Section 4; decoder: Sitzmann et al., 2020,
    https://arxiv.org/abs/2006.09661.

    Args:
        spec: The input networks and the decoded networks; sine networks of frequency 30, if the activation is
            unknown.
        encoder: `"nft"` (blocks and cross-attention), `"nfn"` (residual NP layers, NP pooling, an MLP) or
            `"neuron-graph"` (a `NeuronGraphNet`, which is not in the paper).
        grid_size: Patches `m` along each side.
        latent_channels: Channels `d` of each latent.
        channels: Width of the encoder; channels of the states of a `NeuronGraphNet`.
        num_blocks: Blocks of the encoder; rounds of a `NeuronGraphNet`.
        hidden_channels: Width inside the NFT's MLPs.
        num_heads: Attention heads of the NFT.
        dropout: Dropout of the encoder.
        standardize: Whether to standardize each layer's weights and biases for the NFT; see `NFT`.
        fourier_scale: Std of the Fourier frequencies.
        neuron_states: Rounds of message passing before the NFT's attention; see `NFT`.
        state_channels: Channels of the states of this message passing.
        state_frequencies: Random Fourier features for the states of either encoder; see `layers.NeuronStates`.
        pool_channels: Hidden layer of a `NeuronGraphNet`'s pooled states; see `NeuronGraphNet`.
        head_channels: Width of the MLP after the pooling. Defaults to that of a `NeuronGraphNet`.
        probes: Number of learned points at which the encoder evaluates the networks. Defaults to 0, weights only.
        latent_mlp: Whether to add a residual feed-forward after the cross-attention.
        decoder: `"separate"`, one MLP per weight array and bias vector, or `"joint"`, one MLP for all, whose
            output is scaled and added to a learned network.
        decoder_channels: Hidden width of the decoder's MLPs.
        paint_size: Side length in pixels of a small picture of its patch that each latent predicts linearly; see
            `paint`. It trains the encoder long before the decoder produces good pictures. Defaults to 0, no picture.
        canonical: The symmetry to remove from the encoder's input, such as `spec.symmetry`; see `Canonical`. Defaults
            to None: the encoder sees the networks as they are.
    """

    symmetry: Symmetry = "HNP"

    def __init__(
        self,
        spec: NetworkSpec,
        *,
        encoder: Literal["nft", "nfn", "neuron-graph"] = "nft",
        grid_size: int = 4,
        latent_channels: int = 256,
        channels: int = 256,
        num_blocks: int = 6,
        hidden_channels: int = 1024,
        num_heads: int = 4,
        dropout: float = 0.0,
        standardize: bool = False,
        fourier_scale: float = 3.0,
        neuron_states: int = 0,
        state_channels: int = 64,
        state_frequencies: int = 0,
        pool_channels: int = 0,
        head_channels: int | None = None,
        probes: int = 0,
        latent_mlp: bool = True,
        decoder: Literal["separate", "joint"] = "separate",
        decoder_channels: int = 256,
        paint_size: int = 0,
        canonical: NetworkSymmetry | None = None,
    ) -> None:
        super().__init__()
        spec.require_chain("Inr2Array")
        spec = as_siren(spec)
        for name, value, known in (
            ("encoder", encoder, ("nft", "nfn", "neuron-graph")),
            ("decoder", decoder, ("separate", "joint")),
        ):
            if value not in known:
                raise UserError(f"Expected {name} {' or '.join(map(repr, known))}, but got {value!r}.")
        if encoder == "nfn" and (probes or neuron_states):
            raise UserError(
                "Expected encoder 'nft' or 'neuron-graph' for probes or states, but got 'nfn', which lacks them. "
                "Choose another encoder, or leave them at 0."
            )
        self.spec = spec
        self.in_channels = 1
        self.grid_size, self.latent_channels = grid_size, latent_channels
        self.num_latents = grid_size**2
        self.latent_mlp = None
        if encoder == "nft":
            self.encoder = NFT(
                spec,
                channels=channels,
                num_blocks=num_blocks,
                hidden_channels=hidden_channels,
                num_heads=num_heads,
                dropout=dropout,
                standardize=standardize,
                fourier_scale=fourier_scale,
                neuron_states=neuron_states,
                state_channels=state_channels,
                state_frequencies=state_frequencies,
                probes=probes,
                pooling="latents",
                num_latents=self.num_latents,
                latent_channels=latent_channels,
            )
        elif encoder == "neuron-graph":
            self.encoder = NeuronGraphNet(
                spec,
                channels=channels,
                num_rounds=num_blocks,
                num_frequencies=state_frequencies,
                pool_channels=pool_channels,
                head_channels=None if head_channels is None else (head_channels,),
                probes=probes,
                dropout=dropout,
                pooling="latents",
                num_latents=self.num_latents,
                latent_channels=latent_channels,
            )
        else:
            self.encoder = NFN(
                spec,
                channels=(channels,) * num_blocks,
                num_frequencies=channels // 2,
                fourier_scale=fourier_scale,
                io_encoding="learned",
                residual=True,
                dropout=dropout,
                pooling="NP",
                head_channels=(1000,),
                out_channels=self.num_latents * latent_channels,
            )
        if latent_mlp and encoder != "nfn":
            self.latent_mlp = nn.Sequential(
                nn.LayerNorm(latent_channels), mlp_head(latent_channels, [4 * latent_channels], latent_channels)
            )
        if canonical is not None:
            self.encoder = Canonical(self.encoder, symmetry=canonical)
        make = _SeparateDecoder if decoder == "separate" else _JointDecoder
        self.decoder = make(spec, latent_channels, decoder_channels)
        self.paint_size = paint_size
        self.to_pixels = nn.Linear(latent_channels, paint_size**2 * spec.widths[-1]) if paint_size else None

    def encode(self, features: WeightSpaceFeatures) -> Float[Tensor, "B M D"]:
        """The invariant latent array."""
        latents = self.encoder(features).view(len(features), self.num_latents, self.latent_channels)
        return latents if self.latent_mlp is None else latents + self.latent_mlp(latents)

    def decode(self, latents: Float[Tensor, "B M D"]) -> WeightSpaceFeatures:
        """The patch networks of all latents as one batch: network `b * M + m` shows patch `m` of item `b`."""
        if latents.ndim != 3 or tuple(latents.shape[1:]) != (self.num_latents, self.latent_channels):
            raise UserError(
                f"Expected latents of shape (batch, {self.num_latents}, {self.latent_channels}), but got "
                f"{tuple(latents.shape)}. Use latents of this model's encode."
            )
        return WeightSpaceFeatures(self.spec, self.decoder(rearrange(latents, "B M D -> (B M) D"))[..., None])

    def paint(self, latents: Float[Tensor, "B M D"]) -> Float[Tensor, "B S S C"]:
        """Pictures of `grid_size * paint_size` pixels along each side, each patch a linear map of its latent."""
        if self.to_pixels is None:
            raise UserError("Expected a model that paints, but this one has paint_size 0. Build it with a paint_size.")
        grid, side = self.grid_size, self.paint_size
        pixels = self.to_pixels(latents).unflatten(2, (side, side, -1)).unflatten(1, (grid, grid))
        return rearrange(pixels, "B i j h w c -> B (i h) (j w) c")

    def forward(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures:
        return self.decode(self.encode(features))

    @classmethod
    def decode_config(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        return {**super().decode_config(config), "canonical": decode_symmetry(config.get("canonical"))}

    @classmethod
    def paper(cls, spec: NetworkSpec, **changes: Any) -> "Inr2Array":
        """The paper's model: 22 M parameters on 2-32-32-1."""
        return cls(spec, **changes)


class _SeparateDecoder(nn.Module):
    """A hypernetwork of one MLP per group of entries, with Sitzmann's initialisation."""

    def __init__(self, spec: NetworkSpec, latent_channels: int, hidden: int) -> None:
        super().__init__()
        self.mlps = nn.ModuleList(mlp_head(latent_channels, [hidden, hidden], g.size) for g in spec.groups)
        for group, mlp in zip(spec.groups, self.mlps, strict=True):
            last = mlp.get_submodule("6")
            assert isinstance(last, nn.Linear)
            nn.init.kaiming_normal_(last.weight)
            last.weight.data /= 100
            bound = 1 / spec.widths[group.layer - 1] if group.kind == "weight" else 1 / hidden
            nn.init.uniform_(last.bias, -bound, bound)

    def forward(self, latents: Float[Tensor, "B D"]) -> Float[Tensor, "B N"]:
        return torch.cat([mlp(latents) for mlp in self.mlps], dim=-1)


class _JointDecoder(nn.Module):
    """A hypernetwork of one MLP for all entries, whose output is scaled per group and added to a learned network."""

    def __init__(self, spec: NetworkSpec, latent_channels: int, hidden: int) -> None:
        super().__init__()
        self.spec = spec
        self.mlp = mlp_head(latent_channels, [hidden], spec.num_entries)
        limits = initial_limits(replace(spec, convention=None))
        start = [torch.empty(g.size).uniform_(-x, x) for g, x in zip(spec.groups, limits, strict=True)]
        self.base = nn.Parameter(torch.cat(start))
        self.scale = nn.Parameter(torch.stack([x.square().mean().sqrt() for x in start]))

    def forward(self, latents: Float[Tensor, "B D"]) -> Float[Tensor, "B N"]:
        scale = torch.cat([s.expand(g.size) for s, g in zip(self.scale, self.spec.groups, strict=True)])
        return self.base + scale * self.mlp(latents)
