"""Output heads: an MLP after an invariant layer, a head that draws a picture first, and a classifier of latents."""

from collections.abc import Sequence

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from neuralfunctionals.errors import UserError
from neuralfunctionals.models.pretrained import Pretrained

# Axes: B input networks, M latents, D latent channels or pooled values, K classes.


def mlp_head(in_features: int, hidden: Sequence[int], out_features: int, dropout: float = 0.0) -> nn.Sequential:
    """An MLP with ReLU and dropout after each hidden layer."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(in_features, width), nn.ReLU(), nn.Dropout(dropout)]
        in_features = width
    return nn.Sequential(*layers, nn.Linear(in_features, out_features))


def convolution(in_channels: int, out_channels: int) -> tuple[nn.Module, ...]:
    """A 3x3 convolution that keeps the size, with batch norm and ReLU."""
    return nn.Conv2d(in_channels, out_channels, 3, padding=1), nn.BatchNorm2d(out_channels), nn.ReLU()


def vector_head(
    in_features: int,
    hidden: Sequence[int],
    out_features: int,
    *,
    dropout: float,
    picture_size: int,
    colours: int,
) -> nn.Module:
    """An MLP or, with `picture_size`, a `PictureHead` whose MLPs have the first of the hidden widths."""
    if not picture_size:
        return mlp_head(in_features, hidden, out_features, dropout)
    return PictureHead(in_features, hidden[0], out_features, side=picture_size, colours=colours, dropout=dropout)


class PictureHead(nn.Module):
    """Predicts a small picture of the network, and computes the output from the picture and the pooled states.

    The picture is predicted by an MLP from the pooled states. It is the last part of the output, so that a task can
    train it (see `ClassifyTask`): a picture is a richer training signal than a label.

    Args:
        in_features: Pooled values of a network.
        hidden: Width of the MLPs.
        out_features: Length of the output, picture included.
        side: Side of the picture.
        colours: Colours of the picture.
        dropout: Dropout of the MLPs.
        channels: Channels of the first convolution; the others have twice as many.
    """

    def __init__(
        self,
        in_features: int,
        hidden: int,
        out_features: int,
        *,
        side: int,
        colours: int,
        dropout: float,
        channels: int = 16,
    ) -> None:
        super().__init__()
        values = side * side * colours
        if out_features <= values:
            raise UserError(
                f"Expected more than {values} output channels, because a picture of side {side} takes these, but got "
                f"{out_features}. Train with task.decode_size {side}, or leave picture_size at 0."
            )
        self.shape = (side, side, colours)
        self.draw = mlp_head(in_features, [hidden], values, dropout)
        self.look = nn.Sequential(
            nn.Conv2d(colours, channels, 3, padding=1),
            nn.GELU(),
            nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1),
            nn.GELU(),
            nn.Conv2d(2 * channels, 2 * channels, 3, stride=2, padding=1),
            nn.GELU(),
            nn.Flatten(),
            nn.Dropout(dropout),
        )
        seen = 2 * channels * (-(-side // 4)) ** 2
        self.answer = mlp_head(seen + in_features, [hidden], out_features - values, dropout)

    def forward(self, pooled: Float[Tensor, "B D"]) -> Float[Tensor, "B _out"]:
        picture = self.draw(pooled)
        seen = self.look(rearrange(picture.unflatten(1, self.shape), "B h w c -> B c h w"))
        return torch.cat([self.answer(torch.cat([seen, pooled], dim=1)), picture], dim=1)


class LatentClassifier(nn.Module, Pretrained):
    """A transformer that classifies latent arrays as sequences.

    Each latent is projected to the transformer's width and gets a learned position encoding; the first output token
    goes through a two-layer MLP. Reference: Zhou et al., 2023, https://arxiv.org/abs/2305.13546, appendix
    "INR Classification".

    Args:
        num_latents: Length `M` of the latent array.
        latent_channels: Channels of each latent.
        num_classes: Number of classes.
        channels: Width of the transformer.
        num_blocks: Pre-norm transformer blocks.
        num_heads: Attention heads.
        hidden_channels: Width inside the feed-forward.
        dropout: Dropout of the blocks.
    """

    def __init__(
        self,
        num_latents: int = 16,
        latent_channels: int = 256,
        num_classes: int = 10,
        *,
        channels: int = 512,
        num_blocks: int = 12,
        num_heads: int = 4,
        hidden_channels: int = 2048,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.latent_shape = (num_latents, latent_channels)
        self.project = nn.Linear(latent_channels, channels)
        self.position = nn.Parameter(0.02 * torch.randn(num_latents, channels))
        self.blocks = nn.Sequential(
            *(latent_block(channels, num_heads, hidden_channels, dropout) for _ in range(num_blocks)),
            nn.LayerNorm(channels),
        )
        self.head = mlp_head(channels, [channels], num_classes)

    def forward(self, latents: Float[Tensor, "B M D"]) -> Float[Tensor, "B K"]:
        if latents.ndim != 3 or tuple(latents.shape[1:]) != self.latent_shape:
            raise UserError(
                f"Expected latent arrays of shape (batch, {self.latent_shape[0]}, {self.latent_shape[1]}), but got "
                f"{tuple(latents.shape)}. Give the classifier your encoder's num_latents and latent_channels."
            )
        return self.head(self.blocks(self.project(latents) + self.position)[:, 0])


def latent_block(channels: int, num_heads: int, hidden_channels: int, dropout: float) -> nn.TransformerEncoderLayer:
    """A pre-norm transformer block on latent tokens."""
    return nn.TransformerEncoderLayer(
        channels, num_heads, hidden_channels, dropout, activation="gelu", batch_first=True, norm_first=True
    )
