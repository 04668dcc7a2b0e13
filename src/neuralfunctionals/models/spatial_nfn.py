"""The NFN whose pooled features form an image-like array: `SpatialNFN`."""

import itertools
from collections.abc import Sequence

from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from neuralfunctionals.errors import UserError
from neuralfunctionals.layers import (
    FourierFeatures,
    NPLinear,
    SinusoidalEncoding,
    Standardize,
    WeightSpaceCrossAttention,
)
from neuralfunctionals.models.heads import latent_block
from neuralfunctionals.models.pretrained import Pretrained
from neuralfunctionals.weight_space import NetworkSpec, Symmetry, WeightSpaceFeatures


class SpatialNFN(nn.Module, Pretrained):
    """NP layers, cross-attention to a square array, latent self-attention, two small convolutions and a linear layer.

    Symmetry: HNP-invariant. Reference: Zhou et al., 2023, https://arxiv.org/abs/2305.13546, Section 5.1.

    Args:
        spec: The input networks.
        in_channels: Channels of the input: 1 for weights alone.
        out_channels: Length of the output vector.
        channels: Channels after each NP layer.
        standardize: Whether to standardize each layer's weights and biases first; see `NFN`.
        num_frequencies: Fourier features of the input.
        fourier_scale: Std of the Fourier frequencies.
        grid_size: Side length of the array.
        latent_channels: Channels of the array.
        num_latent_blocks: Transformer blocks on the array.
        num_heads: Attention heads of these blocks.
        convolution_channels: Channels of the two 2x2 convolutions.
        dropout: Dropout on the array and after the convolutions.
    """

    symmetry: Symmetry = "HNP"

    def __init__(
        self,
        spec: NetworkSpec,
        *,
        in_channels: int = 1,
        out_channels: int = 10,
        channels: Sequence[int] = (512, 512, 512),
        standardize: bool = False,
        num_frequencies: int = 128,
        fourier_scale: float = 3.0,
        grid_size: int = 8,
        latent_channels: int = 128,
        num_latent_blocks: int = 2,
        num_heads: int = 4,
        convolution_channels: int = 64,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        if grid_size < 3:
            raise UserError(f"Expected an array of side 3 or more for two 2x2 convolutions, but got {grid_size}.")
        self.spec = spec
        self.in_channels, self.out_channels = in_channels, out_channels
        self.grid_size = grid_size
        fourier = FourierFeatures(spec, in_channels, num_frequencies, scale=fourier_scale)
        encoding = SinusoidalEncoding(spec, fourier.out_channels)
        self.encode = nn.Sequential(*([Standardize(spec, in_channels)] if standardize else []), fourier, encoding)
        widths = [encoding.out_channels, *channels]
        self.hidden = nn.ModuleList(NPLinear(spec, a, b) for a, b in itertools.pairwise(widths))
        self.pool = WeightSpaceCrossAttention(spec, widths[-1], latent_channels, grid_size**2)
        self.latent_blocks = nn.Sequential(
            *(latent_block(latent_channels, num_heads, 4 * latent_channels, dropout) for _ in range(num_latent_blocks))
        )
        self.convolutions = nn.Sequential(
            nn.Conv2d(latent_channels, convolution_channels, 2),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Conv2d(convolution_channels, convolution_channels, 2),
            nn.ReLU(),
            nn.Dropout(dropout),
        )
        self.head = nn.Linear(convolution_channels * (grid_size - 2) ** 2, out_channels)

    def forward(self, features: WeightSpaceFeatures) -> Float[Tensor, "B K"]:
        features.require_spec(self.spec, "SpatialNFN")
        features = self.encode(features)
        for layer in self.hidden:
            features = layer(features).map(nn.functional.relu)
        latents = self.latent_blocks(self.pool(features))
        image = rearrange(latents, "B (h w) D -> B D h w", h=self.grid_size)
        return self.head(self.convolutions(image).flatten(1))
