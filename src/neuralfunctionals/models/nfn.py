"""Neural functional networks of equivariant linear layers: `NFN`."""

from collections.abc import Sequence
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

from neuralfunctionals.errors import UserError
from neuralfunctionals.layers import (
    FourierFeatures,
    HNPLinear,
    HNPPool,
    InputOutputEncoding,
    LayerEncoding,
    LayerNorm,
    NPLinear,
    NPPool,
    OutputScale,
    SinusoidalEncoding,
    Standardize,
)
from neuralfunctionals.models.heads import mlp_head
from neuralfunctionals.models.pretrained import Pretrained
from neuralfunctionals.weight_space import NetworkSpec, Symmetry, WeightSpaceFeatures


class NFN(nn.Module, Pretrained):
    r"""Equivariant linear layers with ReLU in between, and an output layer.

    The output depends on `pooling`. `None`: features of the same networks, from one more linear layer (equivariant);
    `"NP"` or `"HNP"`: a vector, from an MLP of the pooled features (invariant).

    Symmetry: `"HNP"` for HNP layers, an input/output encoding or HNP pooling, else `"NP"`.
    Reference: Zhou et al., 2023, https://arxiv.org/abs/2302.14040.

    Args:
        spec: The input networks.
        symmetry: Symmetry of the linear layers, `"NP"` or `"HNP"`.
        in_channels: Channels of the input: 1 for weights alone.
        out_channels: Channels of the output features, or length of the output vector.
        channels: Channels after each hidden layer.
        standardize: Whether to standardize each layer's weights and biases first; see `nf.layers.Standardize`, whose
            mean and std are set by `estimate`.
        num_frequencies: Fourier features of the input, if any.
        fourier_scale: Std of the Fourier frequencies.
        io_encoding: Encoding of layers, input and output neurons: `"sinusoidal"`, `"learned"` (needs as many channels
            as Fourier features) or `"none"`. Defaults to sinusoidal for NP and none for HNP.
        residual: Whether hidden layers that keep the number of channels have a norm and a residual connection.
        dropout: Dropout after each hidden layer.
        pooling: See above.
        head_channels: Hidden widths of the MLP that computes the vector.
        head_dropout: Dropout of that MLP.
        output_scale: Initial value of the learned scales of the output features.
    """

    def __init__(
        self,
        spec: NetworkSpec,
        *,
        symmetry: Symmetry = "NP",
        in_channels: int = 1,
        out_channels: int = 1,
        channels: Sequence[int] = (128, 128, 128),
        standardize: bool = False,
        num_frequencies: int = 0,
        fourier_scale: float = 3.0,
        io_encoding: Literal["sinusoidal", "learned", "none"] | None = None,
        residual: bool = False,
        dropout: float = 0.0,
        pooling: Literal["NP", "HNP"] | None = None,
        head_channels: Sequence[int] = (1000, 1000),
        head_dropout: float = 0.0,
        output_scale: float = 0.01,
    ) -> None:
        super().__init__()
        if io_encoding is None:
            io_encoding = "sinusoidal" if symmetry == "NP" else "none"
        if pooling not in (None, "NP", "HNP") or io_encoding not in ("sinusoidal", "learned", "none"):
            raise UserError(
                "Expected pooling None, 'NP' or 'HNP' and io_encoding 'sinusoidal', 'learned' or 'none', "
                f"but got {pooling!r} and {io_encoding!r}."
            )
        self.spec = spec
        self.in_channels, self.out_channels = in_channels, out_channels
        self.symmetry: Symmetry = "NP" if (symmetry, io_encoding, pooling == "HNP") == ("NP", "none", False) else "HNP"
        linear = NPLinear if symmetry == "NP" else HNPLinear

        stem: list[nn.Module] = [Standardize(spec, in_channels)] if standardize else []
        width = in_channels
        if num_frequencies:
            stem.append(FourierFeatures(spec, in_channels, num_frequencies, scale=fourier_scale))
            width = 2 * num_frequencies
        if io_encoding == "sinusoidal":
            encoding = SinusoidalEncoding(spec, width)
            stem.append(encoding)
            width = encoding.out_channels
        elif io_encoding == "learned":
            stem += [LayerEncoding(spec, width), InputOutputEncoding(spec, width)]
        self.encode = nn.Sequential(*stem)

        self.hidden = nn.Sequential()
        for next_width in channels:
            adds = residual and next_width == width
            self.hidden.append(_Hidden(linear(spec, width, next_width), residual=adds, dropout=dropout))
            width = next_width

        if pooling is None:
            scale = OutputScale(spec, out_channels, initial=output_scale)
            self.output = nn.Sequential(linear(spec, width, out_channels), scale)
        else:
            pool = (NPPool if pooling == "NP" else HNPPool)(spec, width)
            self.output = nn.Sequential(pool, mlp_head(pool.out_channels, head_channels, out_channels, head_dropout))

    def forward(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures | Float[Tensor, "B K"]:
        features.require_spec(self.spec, "NFN")
        return self.output(self.hidden(self.encode(features)))

    @classmethod
    def editing(cls, spec: NetworkSpec, symmetry: Symmetry = "NP", **changes: Any) -> "NFN":
        """The published editor of INRs: three layers of 128 channels."""
        return cls(spec, symmetry=symmetry, **changes)

    @classmethod
    def classification(cls, spec: NetworkSpec, symmetry: Symmetry = "NP", **changes: Any) -> "NFN":
        """The published classifier of INRs: Fourier features, three layers of 512 channels, HNP pooling."""
        config: dict[str, Any] = {"channels": (512, 512, 512), "num_frequencies": 128, "pooling": "HNP"}
        return cls(spec, symmetry=symmetry, **{"out_channels": 10, "head_dropout": 0.5, **config, **changes})

    @classmethod
    def generalization(cls, spec: NetworkSpec, symmetry: Symmetry = "NP", **changes: Any) -> "NFN":
        """The published predictor of a CNN's test accuracy, as a logit: layers of 16, 16 and 5 channels."""
        return cls(spec, symmetry=symmetry, **{"channels": (16, 16, 5), "pooling": "HNP", **changes})


class _Hidden(nn.Module):
    """A linear layer, ReLU and dropout; if residual, with a norm before them and the input added after."""

    def __init__(self, linear: NPLinear | HNPLinear, *, residual: bool, dropout: float) -> None:
        super().__init__()
        self.norm = LayerNorm(linear.spec, linear.in_channels) if residual else None
        self.linear = linear
        self.activate = nn.Sequential(nn.ReLU(), nn.Dropout(dropout))

    def forward(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures:
        if self.norm is None:
            return self.linear(features).map(self.activate)
        return features + self.linear(self.norm(features)).map(self.activate)
