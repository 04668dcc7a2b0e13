"""Maps kernels of any dimension to a common channel width and back: `Project`, `Unproject`."""

from __future__ import annotations

import torch
from torch import nn

from neuralfunctionals.layers.layer import Layer
from neuralfunctionals.weight_space import NetworkSpec, WeightSpaceFeatures


class _KernelMap(Layer):
    """A linear map of each group's channels, where one side holds all kernel positions of a weight."""

    folds_input: bool

    def __init__(self, spec: NetworkSpec, in_channels: int, out_channels: int) -> None:
        super().__init__(spec, in_channels, out_channels)
        skeleton = spec.without_kernels()
        self.in_spec, self.out_spec = (spec, skeleton) if self.folds_input else (skeleton, spec)
        self.maps = nn.ModuleList()
        for group in spec.groups:
            k = group.kernel_size
            sizes = (k * in_channels, out_channels) if self.folds_input else (in_channels, k * out_channels)
            # A layer without kernel that keeps its width needs no map; this agrees with the paper's parameter count.
            keeps = len(group.shape) == len(group.axes) and in_channels == out_channels
            self.maps.append(nn.Identity() if keeps else nn.Linear(*sizes))

    def forward(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures:
        features.require_spec(self.in_spec, type(self).__name__)
        parts = features.tensor.split([g.size for g in self.in_spec.groups], dim=1)
        outputs = []
        for group, linear, part in zip(self.spec.groups, self.maps, parts, strict=True):
            k = group.kernel_size
            if self.folds_input:
                outputs.append(linear(part.unflatten(1, (-1, k)).flatten(2)))
            else:
                outputs.append(linear(part).unflatten(2, (k, self.out_channels)).flatten(1, 2))
        return WeightSpaceFeatures(self.out_spec, torch.cat(outputs, dim=1))


class Project(_KernelMap):
    r"""Folds the kernel positions of each weight into its channels and maps them to a common width.

    $$ Y^{(i)}_{jk} = P^{(i)}\, \mathrm{vec}(W^{(i)}_{jk}), \qquad P^{(i)} \in \mathbb{R}^{\tilde c \times k_i c} $$

    The result has the spec `spec.without_kernels()`. Dense layers and biases are not changed if the width is the same.

    Symmetry: NP-equivariant. Reference: Zhou et al., 2023, https://arxiv.org/abs/2305.13546, Section 3.3.

    Args:
        spec: The input networks, with kernels.
        in_channels: Channels at each kernel position.
        out_channels: Channels of each weight afterwards.
    """

    folds_input = True


class Unproject(_KernelMap):
    r"""Restores the kernel positions that `Project` folded away.

    $$ Y^{(i)}_{jk} = \mathrm{unvec}(U^{(i)}\, W^{(i)}_{jk}), \qquad U^{(i)} \in \mathbb{R}^{k_i c \times \tilde c} $$

    Takes features of `spec.without_kernels()` and returns features of `spec`.

    Symmetry: NP-equivariant. Reference: Zhou et al., 2023, https://arxiv.org/abs/2305.13546, Section 3.3.

    Args:
        spec: The networks to return, with kernels.
        in_channels: Channels of each weight before.
        out_channels: Channels at each kernel position afterwards.
    """

    folds_input = False
