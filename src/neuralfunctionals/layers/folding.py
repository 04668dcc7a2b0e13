"""Views of features by their permutable axes: what every linear and pooling layer starts from.

Under a symmetry, some layers of neurons permute and some stay in place. Neurons that stay, and kernel
positions, are no different from channels: they fold into them. A group of entries is then a set (no axis
left), one vector of channels for each neuron (one axis), or for each pair of neurons (two axes).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

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
    """How many fixed neurons and kernel positions stand behind each channel."""

    @classmethod
    def of(cls, spec: NetworkSpec, symmetry: Symmetry) -> list[FoldedGroup]:
        """The groups of a network under a symmetry, in packed order."""
        fixed = spec.fixed_axes(symmetry)
        return [
            cls(
                group=g,
                axes=tuple(a for a in g.axes if a not in fixed),
                fold=g.kernel_size * math.prod(spec.widths[a] for a in g.axes if a in fixed),
            )
            for g in spec.groups
        ]

    def fold_fixed(self, x: Float[Tensor, "B *_shape C"]) -> Float[Tensor, "B *_axes D"]:
        """The group's values, permutable axes first, everything else folded into the channels."""
        if self._fixed_axis_first:
            x = x.movedim(1, 2)
        return x.flatten(1 + len(self.axes))

    def unfold_fixed(self, x: Float[Tensor, "B *_axes D"]) -> Float[Tensor, "B *_shape C"]:
        """The inverse of `fold_fixed`, for any number of channels."""
        shape = self.group.shape
        if self._fixed_axis_first:
            return x.unflatten(-1, (shape[0], *shape[2:], -1)).movedim(2, 1)
        return x.unflatten(-1, (*shape[len(self.axes) :], -1))

    def pool(
        self, x: Float[Tensor, "B *_axes D"], kept: tuple[int, ...], how: Reduction
    ) -> Float[Tensor, "B *_kept D"]:
        """Reduces the folded values over all permutable axes except the kept ones."""
        dims = [1 + place for place, axis in enumerate(self.axes) if axis not in kept]
        if not dims:
            return x
        return {"mean": x.mean, "sum": x.sum, "max": x.amax}[how](dims)

    @property
    def _fixed_axis_first(self) -> bool:
        """The last layer's weights under HNP: output neurons stand first but stay in place."""
        return len(self.axes) == 1 and self.axes[0] != self.group.axes[0]
