"""Linear layers: pointwise, and the equivariant layers of Zhou et al. and of Navon et al."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neuralfunctionals.layers.folding import FoldedGroup, Reduction
from neuralfunctionals.weight_space import NetworkSpec, Symmetry, WeightSpaceFeatures, join_groups

# Axes: B input networks, N packed entries, C, D channels, n neurons of one layer.


class Pointwise(nn.Module):
    r"""A linear map of each entry's channels.

    $$ Y^{(i)}_{jk} = A^{(i)} W^{(i)}_{jk} + a^{(i)}, \qquad z^{(i)}_j = D^{(i)} b^{(i)}_j + d^{(i)} $$

    Symmetry: NP-equivariant (and to every permutation within a layer: not minimal).

    Args:
        spec: The input networks.
        in_channels: Channels of each entry, at each kernel position.
        out_channels: Channels afterwards.
        per_layer: One map for each layer's weights and one for its biases, or one for all entries.
    """

    symmetry: Symmetry = "NP"

    def __init__(self, spec: NetworkSpec, in_channels: int, out_channels: int, *, per_layer: bool = True) -> None:
        super().__init__()
        self.spec = spec
        self.in_channels, self.out_channels = in_channels, out_channels
        self.maps = nn.ModuleList(
            nn.Linear(in_channels, out_channels) for _ in range(len(spec.groups) if per_layer else 1)
        )

    def forward(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures:
        features.require_spec(self.spec, "Pointwise")
        if len(self.maps) == 1:
            return features.map(self.maps[0])
        return features.with_tensor(
            join_groups(self.spec, [f(x) for f, x in zip(self.maps, features.split(), strict=True)])
        )

    def extra_repr(self) -> str:
        return f"{self.spec}"


class _LinearDict(nn.ModuleDict):
    """A `ModuleDict` that type checkers know to hold linear maps."""

    if TYPE_CHECKING:

        def __getitem__(self, key: str) -> nn.Linear: ...
        def items(self) -> Iterable[tuple[str, nn.Linear]]: ...  # pyright: ignore[reportIncompatibleMethodOverride]
        def values(self) -> Iterable[nn.Linear]: ...  # pyright: ignore[reportIncompatibleMethodOverride]


class _EquivariantLinear(nn.Module):
    r"""The general affine map that commutes with permutations of neurons, from a complete basis.

    Every output entry is a linear function of four things: the input entry at the same place, a summary of
    each of the neurons it joins, and a summary of the whole network. The summary of a neuron holds the groups
    that touch it, reduced over all other permutable neurons; the summary of the network holds all groups,
    reduced over all permutable neurons:

    $$ Y^{(i)}_{jk} = A_i W^{(i)}_{jk} + B_i s^{(i)}_j + C_i s^{(i-1)}_k + D_i t, \qquad
       z^{(i)}_j = E_i s^{(i)}_j + F_i t, $$
    $$ s^{(i)}_j = [\overline{W}^{(i)}_{j\star}, b^{(i)}_j, \overline{W}^{(i+1)}_{\star j}], \qquad
       t = [\overline{W}^{(1)}_{\star\star}, \overline{b}^{(1)}_\star, \ldots] $$

    Fixed neurons and kernel positions count as channels (see `folding`).
    """

    def __init__(
        self,
        spec: NetworkSpec,
        in_channels: int,
        out_channels: int,
        *,
        symmetry: Symmetry,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        self.spec = spec
        self.in_channels, self.out_channels = in_channels, out_channels
        self.symmetry: Symmetry = symmetry
        self.reduction: Reduction = reduction
        self.groups = FoldedGroup.of(spec, symmetry)
        self.axes = sorted({axis for g in self.groups for axis in g.axes})
        folds = [g.fold for g in self.groups]

        def linear(fold: int, *, bias: bool = False) -> nn.Linear:
            return nn.Linear(fold * in_channels, fold * out_channels, bias=bias)

        pairs = {n: g.fold for n, g in enumerate(self.groups) if len(g.axes) == 2}
        at_axis = {axis: sum(g.fold for g in self.groups if axis in g.axes) for axis in self.axes}
        self.entry_maps = _LinearDict({str(n): linear(fold) for n, fold in pairs.items()})
        self.neuron_maps = _LinearDict({str(axis): linear(fold) for axis, fold in at_axis.items()})
        self.network_map = linear(sum(folds), bias=True)
        self._output_sizes = [f * out_channels for f in folds]
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform within one over the root of the number of values that each output sums."""
        bounds = []
        for n, group in enumerate(self.groups):
            maps = [self.neuron_maps[str(axis)] for axis in group.axes] + [self.network_map]
            maps += [self.entry_maps[str(n)]] if str(n) in self.entry_maps else []
            bounds.append(sum(m.in_features for m in maps) ** -0.5)
        with torch.no_grad():
            for n, linear in self.entry_maps.items():
                linear.weight.uniform_(-bounds[int(n)], bounds[int(n)])
            for axis, linear in self.neuron_maps.items():
                touching = [n for n, g in enumerate(self.groups) if int(axis) in g.axes]
                rows = linear.weight.split([self._output_sizes[n] for n in touching])
                for n, part in zip(touching, rows, strict=True):
                    part.uniform_(-bounds[n], bounds[n])
            for parameter in (self.network_map.weight, self.network_map.bias):
                for bound, part in zip(bounds, parameter.split(self._output_sizes), strict=True):
                    part.uniform_(-bound, bound)

    def forward(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures:
        features.require_spec(self.spec, type(self).__name__)
        values = [group.fold_fixed(x) for group, x in zip(self.groups, features.split(), strict=True)]
        outputs = self._from_network(values)
        for axis in self.axes:
            self._add_from_neurons(axis, values, outputs)
        for n, linear in self.entry_maps.items():
            outputs[int(n)] = outputs[int(n)] + linear(values[int(n)])
        return features.with_tensor(self._join(values, outputs))

    def _from_network(self, values: list[Tensor]) -> list[Tensor]:
        summary = torch.cat([g.pool(x, (), self.reduction) for g, x in zip(self.groups, values, strict=True)], dim=-1)
        outputs: Float[Tensor, "B D"] = self.network_map(summary)
        return [
            y[(slice(None), *[None] * len(g.axes))]
            for g, y in zip(self.groups, outputs.split(self._output_sizes, -1), strict=True)
        ]

    def _add_from_neurons(self, axis: int, values: list[Tensor], outputs: list[Tensor]) -> None:
        touching = [n for n, g in enumerate(self.groups) if axis in g.axes]
        summary = torch.cat([self.groups[n].pool(values[n], (axis,), self.reduction) for n in touching], dim=-1)
        mapped: Float[Tensor, "B n D"] = self.neuron_maps[str(axis)](summary)
        for n, y in zip(touching, mapped.split([self._output_sizes[n] for n in touching], -1), strict=True):
            axes = self.groups[n].axes
            outputs[n] = outputs[n] + (y if len(axes) == 1 else y.unsqueeze(2 if axes[0] == axis else 1))

    def _join(self, values: list[Tensor], outputs: list[Tensor]) -> Float[Tensor, "B N D"]:
        # A group that has no permutable axis, or whose terms all broadcast, takes its shape here.
        shaped = [
            g.unfold_fixed(y.expand(*x.shape[:-1], y.shape[-1]))
            for g, x, y in zip(self.groups, values, outputs, strict=True)
        ]
        return join_groups(self.spec, shaped)

    def extra_repr(self) -> str:
        return f"{self.spec}, {self.in_channels} -> {self.out_channels} channels, symmetry={self.symmetry}"


class NPLinear(_EquivariantLinear):
    r"""The linear layer that commutes with permutations of all neurons, input and output included.

    The map of `_EquivariantLinear` with every neuron permutable; summaries are means.

    Symmetry: NP-equivariant, minimal.
    Reference: Zhou et al., 2023, https://arxiv.org/abs/2302.14040, eq. 3 and appendix (biases, convolutions).

    Args:
        spec: The input networks.
        in_channels: Channels of each entry.
        out_channels: Channels afterwards.
    """

    def __init__(self, spec: NetworkSpec, in_channels: int, out_channels: int) -> None:
        super().__init__(spec, in_channels, out_channels, symmetry="NP")


class HNPLinear(_EquivariantLinear):
    r"""The linear layer that commutes with permutations of the hidden neurons.

    The map of `_EquivariantLinear` where input and output neurons count as channels; summaries are means. Unlike
    the authors' package, the last layer's weights also see the biases of the neurons behind them.

    Symmetry: HNP-equivariant, minimal.
    Reference: Zhou et al., 2023, https://arxiv.org/abs/2302.14040, Section 2.2 and appendix.

    Args:
        spec: The input networks.
        in_channels: Channels of each entry.
        out_channels: Channels afterwards.
    """

    def __init__(self, spec: NetworkSpec, in_channels: int, out_channels: int) -> None:
        super().__init__(spec, in_channels, out_channels, symmetry="HNP")


class DWSLinear(_EquivariantLinear):
    r"""The DWS layer: one equivariant map from each weight array and bias vector to each other one, averaged.

    $$ Y_t = \frac{1}{G} \sum_{s=1}^{G} L_{t,s}(X_s), \qquad
       L_{t,s}(X) = \sum_{S \subseteq P_s \cap P_t} \mathrm{spread}(A_{t,s,S}\, \mathrm{reduce}_{P_s \setminus S} X) $$

    over the $G = 2L$ arrays, $P_s$ being the permutable axes of array $s$. The maps are those of `HNPLinear`; the
    average over sources, the initialisation and the choice of reduction are the authors'.

    Symmetry: HNP-equivariant, minimal. Reference: Navon et al., 2023, https://arxiv.org/abs/2301.12780, Section 5.

    Args:
        spec: The input networks.
        in_channels: Channels of each entry.
        out_channels: Channels afterwards.
        reduction: `"mean"` or `"sum"` (linear), or `"max"` (the authors' choice for classification).
    """

    def __init__(
        self, spec: NetworkSpec, in_channels: int, out_channels: int, *, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(spec, in_channels, out_channels, symmetry="HNP", reduction=reduction)

    def reset_parameters(self) -> None:
        """Each map has the variance of Xavier's rule times twice its input over its output width; tiny biases."""
        with torch.no_grad():
            for linear in (*self.entry_maps.values(), *self.neuron_maps.values(), self.network_map):
                # Rows and columns belong to several pairs of arrays: the rule is applied to an average pair.
                pairs = len(self.groups) if linear is self.network_map else 1
                fan_in, fan_out = linear.in_features / pairs, linear.out_features / pairs
                std = (2 / (fan_in + fan_out)) ** 0.5 * (2 * fan_in / fan_out) ** 0.5
                linear.weight.normal_(0, std)
            self.network_map.bias.uniform_(-1e-4, 1e-4)

    def forward(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures:
        return super().forward(features) * (1 / len(self.groups))
