"""Evaluates CNNs on learned images: `ImageProbes`."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neuralfunctionals.errors import UserError
from neuralfunctionals.layers.probes import MAX_POINTS, ProbeValues
from neuralfunctionals.weight_space import NetworkSpec, Symmetry, WeightSpaceFeatures

# Axes: B input networks, P images, I, O channels of neighbouring layers, H, W positions, A activations.

STRIDE = 2
"""Stride of every convolution in the zoo."""
ACTIVATIONS = (torch.relu, torch.tanh)
"""The weights of a network of the zoo do not show which of these it has: it is run with both."""


class ImageProbes(nn.Module):
    r"""Evaluates the zoo's CNNs on learned images: activations of every channel, and outputs.

    The networks are convolutions of stride 2 without padding, a mean over all positions, and dense layers. Each hidden
    channel gets the mean of its activations over an image, each network its outputs, all as $\operatorname{asinh}$,
    because networks differ in scale by orders of magnitude; the outputs are also returned as probabilities. Everything
    is computed once with relu and once with tanh.

    A model with probes *asks the function*: compare it with others that do, not with models that see weights only.

    Symmetry: activations are HNP-equivariant, outputs invariant.
    Reference: Kahana et al., 2024, https://arxiv.org/abs/2410.10811. Theirs are drawn by a generator; ours are
    parameters.

    Args:
        spec: The input networks: two-dimensional convolutions, then dense layers.
        num_images: Number of learned images, at most 128.

    Example:
        >>> spec = NetworkSpec.cnn([1, 4, 4], (3, 3), dense=[10])
        >>> networks = WeightSpaceFeatures.from_vectors(spec, 0.1 * torch.randn(2, spec.num_entries))
        >>> values = ImageProbes(spec, 8)(networks)
        >>> values.neurons[1].shape, values.outputs.shape
        (torch.Size([2, 4, 16]), torch.Size([2, 320]))
    """

    symmetry: Symmetry = "HNP"
    asks_function = True
    in_channels = 1

    def __init__(self, spec: NetworkSpec, num_images: int) -> None:
        super().__init__()
        if not 1 <= num_images <= MAX_POINTS:
            raise UserError(f"Expected 1 to {MAX_POINTS} probes, but got {num_images}.")
        kernels = [layer.kernel for layer in spec.layers if layer.kernel]
        plain = all(layer.kernel for layer in spec.layers[: len(kernels)])
        if not kernels or not plain or any(len(kernel) != 2 for kernel in kernels):
            raise UserError(f"Expected two-dimensional convolutions before any dense layers, but got {spec}.")
        self.spec = spec
        self.num_images = num_images
        side = [1, 1]
        for kernel in reversed(kernels):  # the smallest images that the convolutions accept
            side = [STRIDE * (n - 1) + k for n, k in zip(side, kernel, strict=True)]
        self.images = nn.Parameter(torch.randn(num_images, spec.widths[0], *side))
        copies = len(ACTIVATIONS)
        self.neuron_channels = dict.fromkeys(range(1, spec.num_layers), copies * num_images)
        self.output_channels = 2 * copies * num_images * spec.widths[-1]

    def forward(self, features: WeightSpaceFeatures) -> ProbeValues:
        features.require_spec(self.spec, "ImageProbes")
        neurons: dict[int, list[Tensor]] = {layer: [] for layer in self.neuron_channels}
        outputs: list[Tensor] = []
        first = _apply(self.images.expand(len(features), -1, -1, -1, -1), features, 0)
        for activation in ACTIVATIONS:
            x = first
            for layer in range(1, self.spec.num_layers):
                x = activation(x)
                means = x.mean((-2, -1)) if x.ndim == 5 else x  # B P O
                neurons[layer].append(means.mT.asinh())
                x = _apply(x if self.spec.layers[layer].kernel else means, features, layer)
            outputs += [x.asinh().flatten(1), x.softmax(-1).flatten(1)]
        return ProbeValues({n: torch.cat(v, dim=-1) for n, v in neurons.items()}, torch.cat(outputs, dim=-1))

    def extra_repr(self) -> str:
        return f"{self.spec}, {self.num_images} images of {tuple(self.images.shape[1:])}"


def _apply(
    x: Float[Tensor, "B P I *_positions"], features: WeightSpaceFeatures, layer: int
) -> Float[Tensor, "B P O *_positions"]:
    """Applies one layer of every network to its own inputs; grouped convolutions are slower on CPUs."""
    weight, bias = features.weights[layer][..., 0], features.biases[layer][..., 0]
    if x.ndim == 3:
        return x @ weight.mT + (bias[:, None] if bias.numel() else 0)
    kernel = features.spec.layers[layer].kernel
    patches = nn.functional.unfold(x.flatten(0, 1), kernel, stride=STRIDE)  # (B P) (I k) L
    size = [(n - k) // STRIDE + 1 for n, k in zip(x.shape[-2:], kernel, strict=True)]
    y = weight.flatten(2)[:, None] @ patches.unflatten(0, x.shape[:2])
    return (y + (bias[:, None, :, None] if bias.numel() else 0)).unflatten(-1, size)
