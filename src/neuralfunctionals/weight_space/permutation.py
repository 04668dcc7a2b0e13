"""The permutations of neurons and their action on features: `NeuronPermutation`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from neuralfunctionals.errors import UserError
from neuralfunctionals.weight_space.axes import Group, Symmetry
from neuralfunctionals.weight_space.features import WeightSpaceFeatures
from neuralfunctionals.weight_space.spec import NetworkSpec

# Axes: B input networks, H hidden neurons of all layers in order.


@dataclass(frozen=True, eq=False)
class NeuronPermutation:
    r"""One permutation $\sigma_i$ per layer of neurons, `0` (input) to `L` (output).

    $$ [\sigma W]^{(i)}_{jk} = W^{(i)}_{\sigma_i^{-1}(j), \sigma_{i-1}^{-1}(k)}, \qquad
       [\sigma b]^{(i)}_j = b^{(i)}_{\sigma_i^{-1}(j)} $$

    A permutation of only the hidden neurons (`"HNP"`) leaves the function of the network unchanged.
    `sigma[i][j]` is $\sigma_i(j)$: neuron `j` moves to place `sigma[i][j]`. Networks other than chains have one
    permutation per axis of `spec.axes`. An axis that is nested in another has one per neuron of that axis:
    `sigma[i][h, j]` is the place within `h` to which neuron `j` moves, before `h` itself moves.

    Reference: Zhou et al., 2023, https://arxiv.org/abs/2305.13546, eq. 1.

    Example:
        >>> spec = NetworkSpec.mlp([2, 4, 1])
        >>> features = WeightSpaceFeatures.from_vectors(spec, torch.randn(3, spec.num_entries))
        >>> p = NeuronPermutation.random(spec, symmetry="HNP")
        >>> torch.equal(p.inverse()(p(features)).tensor, features.tensor)
        True
    """

    spec: NetworkSpec
    sigma: tuple[Tensor, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", tuple(self.sigma))
        expected = [_shape(self.spec, n) for n in range(len(self.spec.axes))]
        if [tuple(s.shape) for s in self.sigma] != expected:
            sizes = self.spec.widths if all(len(shape) == 1 for shape in expected) else expected
            raise UserError(
                f"Expected one permutation per layer of neurons, of sizes {sizes}, but got sizes "
                f"{tuple(len(s) for s in self.sigma)}. Input and output count too; give torch.arange for the identity."
            )
        for i, s in enumerate(self.sigma):
            if not torch.equal(s.sort(-1).values, torch.arange(s.shape[-1]).expand_as(s)):
                raise UserError(
                    f"Expected a permutation of 0 .. {s.shape[-1] - 1} for layer {i}, but got {s.tolist()}. "
                    "Each position must occur once."
                )

    @classmethod
    def random(
        cls, spec: NetworkSpec, symmetry: Symmetry = "HNP", generator: torch.Generator | None = None
    ) -> NeuronPermutation:
        """A uniformly random permutation: of all neurons for `"NP"`, of the hidden ones for `"HNP"`."""
        fixed = spec.fixed_axes(symmetry)
        return cls(
            spec,
            tuple(
                _identity(spec, n) if n in fixed else _draw(_shape(spec, n), generator) for n in range(len(spec.axes))
            ),
        )

    @classmethod
    def identity(cls, spec: NetworkSpec) -> NeuronPermutation:
        return cls(spec, tuple(_identity(spec, n) for n in range(len(spec.axes))))

    def inverse(self) -> NeuronPermutation:
        sigma = [s.argsort(-1) for s in self.sigma]
        for n, axis in enumerate(self.spec.axes):
            if axis.within is not None:
                sigma[n] = sigma[n][sigma[axis.within]]
        return NeuronPermutation(self.spec, tuple(sigma))

    def __matmul__(self, other: NeuronPermutation) -> NeuronPermutation:
        """The composition: `(p @ q)(x) == p(q(x))`."""
        if not isinstance(other, NeuronPermutation):
            return NotImplemented  # a symmetry that implements the composition
        if other.spec.axes != self.spec.axes:
            raise UserError(f"Cannot compose permutations of networks {self.spec} and {other.spec}: widths differ.")
        sigma = []
        for axis, p, q in zip(self.spec.axes, self.sigma, other.sigma, strict=True):
            sigma.append(p[q] if axis.within is None else p[other.sigma[axis.within]].gather(1, q))
        return NeuronPermutation(self.spec, tuple(sigma))

    def __call__(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures:
        if features.spec.axes != self.spec.axes:
            features.require_spec(self.spec, "This permutation")
        return features.with_tensor(features.tensor[:, self.entry_order(features.spec).to(features.tensor.device)])

    def on_differences(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures:
        """Permutations act on differences of networks in the same way as on networks."""
        return self(features)

    def entry_order(self, spec: NetworkSpec) -> Tensor:
        """For each position of the packed axis, the entry that moves there."""
        return torch.cat([self.move(torch.arange(g.start, g.stop).view(g.shape), g).flatten() for g in spec.groups])

    def move(self, values: Tensor, group: Group) -> Tensor:
        """The entries of one group, in its own shape, after the permutation."""
        parents = self.spec.parent_places(group.axes)
        # Nested axes first: their permutations refer to the positions of the outer neurons before these move.
        for place, (axis, parent) in enumerate(zip(group.axes, parents, strict=True)):
            if parent is not None:
                values = _take_nested(values, place, parent, self.sigma[axis].argsort(-1))
        for place, (axis, parent) in enumerate(zip(group.axes, parents, strict=True)):
            if parent is None:
                values = values.index_select(place, self.sigma[axis].argsort())
        return values


def move_hidden(values: Tensor, permutation: NeuronPermutation | None) -> Tensor:
    """The values of a chain's hidden neurons (the last dimension) after a permutation."""
    if permutation is None:
        return values
    parts = values.split(permutation.spec.widths[1:-1], dim=-1)
    moved = [part[..., sigma.argsort()] for part, sigma in zip(parts, permutation.sigma[1:-1], strict=True)]
    return torch.cat([values[..., :0], *moved], dim=-1)


def scale_entries(
    features: WeightSpaceFeatures,
    entering: Float[Tensor, "*B H"],
    leaving: Float[Tensor, "*B H"],
    permutation: NeuronPermutation | None,
) -> WeightSpaceFeatures:
    """Permutes a chain's neurons, then scales its entries by factors of the hidden neurons at their ends.

    Args:
        features: The networks.
        entering: Multiplies the entries that enter a neuron; shared by all networks, or one row per network.
        leaving: Divides the weights that leave it.
        permutation: Acts first; None for none.
    """
    if entering.ndim == 2 and len(entering) != len(features):
        raise UserError(
            f"This symmetry has elements for {len(entering)} networks, but there are {len(features)}. "
            "Apply it to the batch that it was made for."
        )
    features = features if permutation is None else permutation(features)
    ends = entering.new_ones(*entering.shape[:-1], 1)
    into, out = ([ends, *x.split(features.spec.widths[1:-1], dim=-1), ends] for x in (entering, leaving))
    values = []
    for group in features.spec.groups:
        scale = into[group.axes[0]].unflatten(-1, (-1, *[1] * (len(group.shape) - 1)))
        if len(group.axes) == 2 and group.axes[1]:  # inputs have no factor
            scale = scale / out[group.axes[1]].unflatten(-1, (1, -1, *[1] * (len(group.shape) - 2)))
        values.append(scale.expand(*entering.shape[:-1], *group.shape).flatten(entering.ndim - 1))
    return features.with_tensor(features.tensor * torch.cat(values, dim=-1).unsqueeze(-1))


def _take_nested(entries: Tensor, place: int, parent: int, sources: Tensor) -> Tensor:
    entries = entries.movedim((parent, place), (0, 1))
    index = sources.view(*sources.shape, *[1] * (entries.ndim - 2)).expand_as(entries)
    return entries.gather(1, index).movedim((0, 1), (parent, place))


def _shape(spec: NetworkSpec, axis: int) -> tuple[int, ...]:
    within, size = spec.axes[axis].within, spec.axes[axis].size
    return (size,) if within is None else (spec.axes[within].size, size)


def _identity(spec: NetworkSpec, axis: int) -> Tensor:
    shape = _shape(spec, axis)
    return torch.arange(shape[-1]).expand(shape).clone()


def _draw(shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    if len(shape) == 1:
        return torch.randperm(shape[0], generator=generator)
    return torch.stack([torch.randperm(shape[1], generator=generator) for _ in range(shape[0])])
