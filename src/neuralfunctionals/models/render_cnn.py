"""An upper bound for classifiers of INRs: classifies the rendered picture: `RenderCNN`."""

from dataclasses import replace

from jaxtyping import Float
from torch import Tensor, nn

from neuralfunctionals.inr import render_images
from neuralfunctionals.models.heads import convolution
from neuralfunctionals.models.pretrained import Pretrained
from neuralfunctionals.weight_space import NetworkSpec, Symmetry, WeightSpaceFeatures

# Axes: B input networks, K outputs.


class RenderCNN(nn.Module, Pretrained):
    """Evaluates a sine network on the whole pixel grid and classifies the picture with a small CNN.

    It does not use the weights, so it is an upper bound for models that do.

    Symmetry: invariant to every symmetry of the networks.

    Args:
        spec: The input networks; of frequency 30, if the spec does not record it.
        out_channels: Length of the output vector.
        image_size: Pixels along each side.
        channels: Channels of the first convolution; the second and third have two and four times as many.
        dropout: Dropout before the last layer.
    """

    symmetry: Symmetry = "HNP"
    asks_function = True

    def __init__(
        self,
        spec: NetworkSpec,
        *,
        out_channels: int = 10,
        image_size: int = 28,
        channels: int = 16,
        dropout: float = 0.3,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.in_channels, self.out_channels = 1, out_channels
        self.image_size = image_size
        # The networks' own outputs: their scale and the order of coordinates do not matter to the CNN.
        self._shown = replace(spec, convention=None)
        layers: list[nn.Module] = []
        before = spec.widths[-1]
        for width in (channels, 2 * channels, 4 * channels):
            layers += [*convolution(before, width), nn.MaxPool2d(2)]
            before = width
        side = image_size // 8
        self.cnn = nn.Sequential(*layers, nn.Flatten(), nn.Dropout(dropout), nn.Linear(before * side**2, out_channels))

    def forward(self, features: WeightSpaceFeatures) -> Float[Tensor, "B K"]:
        features.require_spec(self.spec, "RenderCNN")
        pictures = render_images(
            WeightSpaceFeatures.unchecked(self._shown, features.tensor), self.image_size, self.image_size
        )
        return self.cnn(pictures.movedim(-1, 1))
