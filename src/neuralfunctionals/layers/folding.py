"""Views of features by their permutable axes, used by all linear and pooling layers.

Under a symmetry, some layers of neurons permute and others are fixed. Fixed neurons and kernel positions are no
different from channels: they are folded into them. A group of entries is then one vector of channels (no axis
left), one per neuron (one axis), or one per pair of neurons (two axes).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from neuralfunctionals.weight_space import Group, NetworkSpec, Symmetry

Reduction = Literal["mean", "sum", "max"]


@dataclass(frozen=True)
class FoldedGroup:
    """A group of entries whose fixed neurons and kernel positions are folded into the channels."""

    group: Group
    axes: tuple[int, ...]
    fold: int
    """Number of fixed neurons and kernel positions folded into each channel."""
    places: tuple[int, ...]
    """Dimensions of the group at which the axes are."""
    sizes: tuple[int, ...]
    """Neurons of each axis."""
    parents: tuple[int | None, ...]
    """For each axis, the index in `axes` of the one that it is nested in."""

    @classmethod
    def of(cls, spec: NetworkSpec, symmetry: Symmetry) -> list[FoldedGroup]:
        """The groups of a network under a symmetry, in packed order."""
        fixed = spec.fixed_axes(symmetry)
        folded = []
        for g in spec.groups:
            places = tuple(n for n, a in enumerate(g.axes) if a not in fixed)
            axes = tuple(g.axes[n] for n in places)
            parents = spec.parent_places(g.axes)
            folded.append(
                cls(
                    group=g,
                    axes=axes,
                    fold=g.kernel_size * math.prod(spec.widths[a] for a in g.axes if a in fixed),
                    places=places,
                    sizes=tuple(spec.widths[a] for a in axes),
                    parents=tuple(None if parents[n] is None else places.index(parents[n]) for n in places),
                )
            )
        return folded

    # Message passing numbers all neurons in one dimension: those of a nested axis run over it and its parent.

    @property
    def ends(self) -> tuple[int, ...]:
        """The axes whose neurons the entries connect: all but those that others are nested in."""
        return tuple(axis for place, axis in enumerate(self.axes) if place not in self.parents)

    def by_ends(self, x: Float[Tensor, "B *_axes D"]) -> Float[Tensor, "B *_ends D"]:
        """The folded values with one dimension per end.

        Two axes nested in the same one, as in a grouped convolution, become a block-diagonal matrix.
        """
        if not any(parent is not None for parent in self.parents):
            return x
        x, paths = self._repeat_parents(x)
        order = [n for path in paths for n in path]
        x = x.permute(0, *(1 + n for n in order), -1)
        for n, path in enumerate(paths):
            x = x.flatten(1 + n, n + len(path))
        return x

    def from_ends(self, y: Float[Tensor, "B *_ends D"]) -> Float[Tensor, "B *_axes D"]:
        """The values of the entries among those of all pairs of ends; the inverse of `by_ends`."""
        if not any(parent is not None for parent in self.parents):
            return y
        for n in reversed(range(len(self.ends))):
            place = [p for p in range(len(self.axes)) if p not in self.parents][n]
            parent = self.parents[place]
            if parent is not None:
                y = y.unflatten(1 + n, (self.sizes[parent], self.sizes[place]))
        labels = [n for path in self._paths() for n in path]
        while len(labels) > len(self.axes):  # a parent that occurs twice: the blocks along the diagonal
            twice = next(n for n in labels if labels.count(n) > 1)
            first, second = (n for n, label in enumerate(labels) if label == twice)
            y = y.diagonal(dim1=1 + first, dim2=1 + second).movedim(-1, 1)
            labels = [twice, *(label for n, label in enumerate(labels) if n not in (first, second))]
        return y.permute(0, *(1 + labels.index(n) for n in range(len(self.axes))), -1)

    def _paths(self) -> list[tuple[int, ...]]:
        """For each end, the indices of its parent, if it has one, and of itself."""
        places = [p for p in range(len(self.axes)) if p not in self.parents]
        return [(p,) if self.parents[p] is None else (self.parents[p], p) for p in places]  # pyright: ignore

    def _repeat_parents(self, x: Tensor) -> tuple[Tensor, list[tuple[int, ...]]]:
        """Gives every nested axis its own copy of its parent, with zeros where two copies differ."""
        paths, seen, count = [], set(), len(self.axes)
        for path in self._paths():
            if len(path) == 2 and path[0] in seen:
                x = torch.diag_embed(x.movedim(1 + path[0], -1)).movedim((-2, -1), (1 + path[0], 1 + count))
                path = (count, path[1])
                count += 1
            seen.add(path[0])
            paths.append(path)
        return x, paths

    @property
    def _order(self) -> list[int]:
        """Dimensions of the group, with permutable axes first."""
        return [*self.places, *(n for n in range(len(self.group.shape)) if n not in self.places)]

    def fold_fixed(self, x: Float[Tensor, "B *_shape C"]) -> Float[Tensor, "B *_axes D"]:
        """The group's values with permutable axes first and everything else folded into the channels."""
        order = self._order
        if order != sorted(order):
            x = x.permute(0, *(1 + n for n in order), -1)
        return x.flatten(1 + len(self.axes))

    def unfold_fixed(self, x: Float[Tensor, "B *_axes D"]) -> Float[Tensor, "B *_shape C"]:
        """The inverse of `fold_fixed`, for any number of channels."""
        order, shape = self._order, self.group.shape
        x = x.unflatten(-1, (*(shape[n] for n in order[len(self.axes) :]), -1))
        return x if order == sorted(order) else x.permute(0, *(1 + order.index(n) for n in range(len(order))), -1)

    def pool(
        self, x: Float[Tensor, "B *_axes D"], kept: tuple[int, ...], how: Reduction
    ) -> Float[Tensor, "B *_kept D"]:
        """Reduces the folded values over all permutable axes except the kept ones, which come in the order given."""
        dims = [1 + place for place in range(len(self.axes)) if place not in kept]
        if dims:
            x = {"mean": x.mean, "sum": x.sum, "max": x.amax}[how](dims)
        order = sorted(kept)
        return x if list(kept) == order else x.permute(0, *(1 + order.index(place) for place in kept), -1)

    def spread(self, y: Float[Tensor, "B *_kept D"], kept: tuple[int, ...]) -> Tensor:
        """Expands values of some axes, in the order given, with dimensions of size 1 for all others."""
        if len(kept) > 1:
            y = y.permute(0, *(1 + kept.index(place) for place in sorted(kept)), -1)
        for place in range(len(self.axes)):
            if place not in kept:
                y = y.unsqueeze(1 + place)
        return y

    def find_places(self, spec: NetworkSpec, axes: tuple[int, ...]) -> list[tuple[int, ...]]:
        """All ways to find these axes in the group, nested ones with their parents; several if it has an axis twice."""
        choices = [[place for place, axis in enumerate(self.axes) if axis == wanted] for wanted in axes]
        parents = spec.parent_places(axes)
        return [
            places
            for places in itertools.product(*choices)
            if len(set(places)) == len(places)
            and all(self.parents[p] == (None if n is None else places[n]) for p, n in zip(places, parents, strict=True))
        ]


def shared_axes(spec: NetworkSpec, groups: Sequence[FoldedGroup]) -> list[tuple[int, ...]]:
    """All sets of permutable axes that groups can share, larger ones last; no axis without its parent."""
    found: dict[tuple[int, ...], None] = {}
    for group in groups:
        for count in range(len(group.axes) + 1):
            for places in itertools.combinations(range(len(group.axes)), count):
                axes = tuple(group.axes[n] for n in places)
                if places in group.find_places(spec, axes):
                    # The order of the axes does not matter: only the first one found is kept.
                    found.setdefault(next((s for s in found if sorted(s) == sorted(axes)), axes))
    return sorted(found, key=lambda axes: (len(axes), axes if len(axes) == 1 else ()))
