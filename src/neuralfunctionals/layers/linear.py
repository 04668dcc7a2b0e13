"""Linear layers: pointwise, and the equivariant layers of Zhou et al. and of Navon et al."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neuralfunctionals.layers.folding import FoldedGroup, Reduction, shared_axes
from neuralfunctionals.layers.layer import Layer
from neuralfunctionals.weight_space import NetworkSpec, Symmetry, WeightSpaceFeatures, join_groups

# Axes: B input networks, N packed entries, C, D channels, n neurons of one layer.


class Pointwise(Layer):
    r"""A linear map of each entry's channels.

    $$ Y^{(i)}_{jk} = A^{(i)} W^{(i)}_{jk} + a^{(i)}, \qquad z^{(i)}_j = D^{(i)} b^{(i)}_j + d^{(i)} $$

    Symmetry: NP-equivariant (and to every permutation within a layer: not minimal).

    Args:
        spec: The input networks.
        in_channels: Channels of each entry, at each kernel position.
        out_channels: Channels afterwards.
        per_layer: Whether to use one map each for a layer's weights and biases, instead of one for all entries.
    """

    def __init__(self, spec: NetworkSpec, in_channels: int, out_channels: int, *, per_layer: bool = True) -> None:
        super().__init__(spec, in_channels, out_channels)
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


class _LinearDict(nn.ModuleDict):
    """A `ModuleDict` that type checkers know to hold linear maps."""

    if TYPE_CHECKING:

        def __getitem__(self, key: str) -> nn.Linear: ...
        def items(self) -> Iterable[tuple[str, nn.Linear]]: ...  # pyright: ignore[reportIncompatibleMethodOverride]
        def values(self) -> Iterable[nn.Linear]: ...  # pyright: ignore[reportIncompatibleMethodOverride]


@dataclass(frozen=True)
class _Term:
    """The groups that share a set of axes, and the positions of these axes in each."""

    sources: list[tuple[int, tuple[int, ...]]]
    targets: list[tuple[int, tuple[int, ...]]]

    @classmethod
    def of(cls, spec: NetworkSpec, axes: tuple[int, ...], groups: Sequence[FoldedGroup]) -> _Term:
        sources = [(n, places) for n, g in enumerate(groups) for places in g.find_places(spec, axes)]
        # An axis that a group has twice counts in each of its two positions, but only once as a pair.
        targets = {(n, frozenset(places)): (n, places) for n, places in reversed(sources)}
        return cls(sources, list(targets.values())[::-1])


class _EquivariantLinear(Layer):
    r"""The general affine map that commutes with permutations of neurons, from a complete basis.

    Every output entry is a linear function of four things: the input entry at the same position, a summary of
    each of its two neurons, and a summary of the whole network. The summary of a neuron holds the groups
    that touch it, reduced over all other permutable neurons; the summary of the network holds all groups,
    reduced over all permutable neurons:

    $$ Y^{(i)}_{jk} = A_i W^{(i)}_{jk} + B_i s^{(i)}_j + C_i s^{(i-1)}_k + D_i t, \qquad
       z^{(i)}_j = E_i s^{(i)}_j + F_i t, $$
    $$ s^{(i)}_j = [\overline{W}^{(i)}_{j\star}, b^{(i)}_j, \overline{W}^{(i+1)}_{\star j}], \qquad
       t = [\overline{W}^{(1)}_{\star\star}, \overline{b}^{(1)}_\star, \ldots] $$

    Fixed neurons and kernel positions count as channels (see `folding`).

    This is the formula for chains. In general, for every set $S$ of axes that some groups share, the groups that have
    these axes are reduced over all their other axes, mapped together, and spread over the other axes of their targets:

    $$ Y_t = \sum_{S \subseteq P_t} \mathrm{spread} \Big( \sum_{s: S \subseteq P_s} A_{S,t,s}\,
       \mathrm{reduce}_{P_s \setminus S} X_s \Big), $$

    where $P_s$ are the permutable axes of group $s$. An axis that is nested in another is in $S$ only together with it.
    For groups that have one axis twice (recurrent weights), terms on the diagonal are left out.
    """

    reduction: Reduction = "mean"

    def __init__(self, spec: NetworkSpec, in_channels: int, out_channels: int) -> None:
        super().__init__(spec, in_channels, out_channels)
        self.groups = FoldedGroup.of(spec, self.symmetry)
        shared = shared_axes(spec, self.groups)
        folds = [g.fold for g in self.groups]
        self.terms = {axes: _Term.of(spec, axes, self.groups) for axes in shared}
        """For each set of axes, the groups that have it."""

        def linear(axes: tuple[int, ...]) -> nn.Linear:
            term = self.terms[axes]
            sources, targets = (sum(folds[n] for n, _ in places) for places in (term.sources, term.targets))
            return nn.Linear(sources * in_channels, targets * out_channels, bias=not axes)

        self.entry_maps = _LinearDict({self._name(axes): linear(axes) for axes in shared if len(axes) > 1})
        self.neuron_maps = _LinearDict({str(a): linear((a,)) for a in sorted(s[0] for s in shared if len(s) == 1)})
        self.network_map = linear(())
        self._output_sizes = [f * out_channels for f in folds]
        self.reset_parameters()

    def _name(self, axes: tuple[int, ...]) -> str:
        """Name of the first group with these axes; with the axes themselves if it has more."""
        n = self.terms[axes].sources[0][0]
        return str(n) if len(self.groups[n].axes) == len(axes) else f"{n}:{','.join(map(str, axes))}"

    def _map(self, axes: tuple[int, ...]) -> nn.Linear:
        if len(axes) > 1:
            return self.entry_maps[self._name(axes)]
        return self.neuron_maps[str(axes[0])] if axes else self.network_map

    def reset_parameters(self) -> None:
        """Uniform from -1/sqrt(n) to 1/sqrt(n), where n is the number of values that each output sums."""
        bounds = []
        for n in range(len(self.groups)):
            maps = [self._map(axes) for axes, term in self.terms.items() for m, _ in term.targets if m == n]
            bounds.append(sum(m.in_features for m in maps) ** -0.5)
        by_axis = sorted((axes for axes in self.terms if len(axes) == 1), key=lambda axes: axes[0])
        with torch.no_grad():
            for axes in [*(axes for axes in self.terms if len(axes) > 1), *by_axis, ()]:
                linear, targets = self._map(axes), [n for n, _ in self.terms[axes].targets]
                for parameter in (linear.weight, linear.bias):
                    rows = () if parameter is None else parameter.split([self._output_sizes[n] for n in targets])
                    for n, part in zip(targets, rows, strict=False):
                        part.uniform_(-bounds[n], bounds[n])

    def forward(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures:
        features.require_spec(self.spec, type(self).__name__)
        values = [group.fold_fixed(x) for group, x in zip(self.groups, features.split(), strict=True)]
        outputs: list[Tensor] = [values[0]] * len(values)
        for axes, term in self.terms.items():
            pooled = [self.groups[n].pool(values[n], places, self.reduction) for n, places in term.sources]
            mapped = self._map(axes)(torch.cat(pooled, dim=-1) if len(pooled) > 1 else pooled[0])
            parts = mapped.split([self._output_sizes[n] for n, _ in term.targets], -1)
            for (n, places), y in zip(term.targets, parts, strict=True):
                y = self.groups[n].spread(y, places)
                outputs[n] = outputs[n] + y if axes else y
        return features.with_tensor(self._join(values, outputs))

    def _join(self, values: list[Tensor], outputs: list[Tensor]) -> Float[Tensor, "B N D"]:
        # A group that has no permutable axis, or whose terms are all broadcast, gets its shape here.
        shaped = [
            g.unfold_fixed(y.expand(*x.shape[:-1], y.shape[-1]))
            for g, x, y in zip(self.groups, values, outputs, strict=True)
        ]
        return join_groups(self.spec, shaped)


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


class HNPLinear(_EquivariantLinear):
    r"""The linear layer that commutes with permutations of the hidden neurons.

    The map of `_EquivariantLinear` where input and output neurons count as channels; summaries are means. Unlike in
    the authors' package, the last layer's weights also depend on the biases of their incoming neurons.

    Symmetry: HNP-equivariant, minimal.
    Reference: Zhou et al., 2023, https://arxiv.org/abs/2302.14040, Section 2.2 and appendix.

    Args:
        spec: The input networks.
        in_channels: Channels of each entry.
        out_channels: Channels afterwards.
    """

    symmetry: Symmetry = "HNP"


class DWSLinear(_EquivariantLinear):
    r"""The DWS layer: one equivariant map from each weight array and bias vector to each other one, averaged.

    $$ Y_t = \frac{1}{G} \sum_{s=1}^{G} L_{t,s}(X_s), \qquad
       L_{t,s}(X) = \sum_{S \subseteq P_s \cap P_t} \mathrm{spread}(A_{t,s,S}\, \mathrm{reduce}_{P_s \setminus S} X) $$

    over the $G = 2L$ arrays, where $P_s$ are the permutable axes of array $s$. The maps are those of `HNPLinear`; the
    average over sources, the initialisation and the choice of reduction are those of the authors.

    Symmetry: HNP-equivariant, minimal. Reference: Navon et al., 2023, https://arxiv.org/abs/2301.12780, Section 5.

    Args:
        spec: The input networks.
        in_channels: Channels of each entry.
        out_channels: Channels afterwards.
        reduction: `"mean"` or `"sum"` (linear), or `"max"` (the authors' choice for classification).
    """

    symmetry: Symmetry = "HNP"

    def __init__(
        self, spec: NetworkSpec, in_channels: int, out_channels: int, *, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(spec, in_channels, out_channels)
        self.reduction = reduction

    def reset_parameters(self) -> None:
        """Variance of Xavier's rule, times twice the ratio of input to output width, for each map; tiny biases."""
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
