"""Parts of dimensions: slices, splits, concatenations."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from torch import fx

from neuralfunctionals.weight_space.labels import Family, Label, cut, fresh, pin, total, unify, unit
from neuralfunctionals.weight_space.propagation import Labels, Propagation, argument, collapse, rule, shape_of, where

# Parts of dimensions.


@rule("select", families=True)
def _select(self: Propagation, node: fx.Node) -> Labels:
    labels = list(self.of(node.args[0]))
    index = labels.pop(argument(node, 1, "dim") % len(labels))
    return _take(labels, index, argument(node, 2, "index"), where(node))


def _take(labels: Labels, index: Any, position: int, name: str) -> Labels:
    """The labels of the other dimensions at one position of a dimension."""
    if not any(isinstance(x, Family) for x in labels):
        pin(collapse(index), f"single positions are taken at {name}")
    return [x.members[position] if isinstance(x, Family) and x.index is index else collapse(x) for x in labels]


def _cut_at(self: Propagation, node: fx.Node, dimension: int, cuts: Sequence[int]) -> list[Label]:
    label = collapse(self.of(node.args[0])[dimension])
    pieces = cut(label, cuts)
    if pieces is None:
        pin(label, f"cut at {where(node)}")
        bounds = [0, *(c for c in cuts if 0 < c < label.size), label.size]
        return [fresh(b - a, "pinned") for a, b in itertools.pairwise(bounds)]
    return pieces


@rule("slice", families=True)
def _slice(self: Propagation, node: fx.Node) -> Labels:
    labels = list(self.of(node.args[0]))
    dimension = argument(node, 1, "dim", 0) % len(labels)
    size, new = shape_of(node.args[0])[dimension], shape_of(node)[dimension]
    start, step = argument(node, 2, "start", 0) or 0, argument(node, 4, "step", 1)
    if size == new:
        return labels
    start = min(max(start + size if start < 0 else start, 0), size)
    if new == 1 and any(isinstance(x, Family) for x in labels):
        taken = _take([x for n, x in enumerate(labels) if n != dimension], labels[dimension], start, where(node))
        return [*taken[:dimension], unit(), *taken[dimension:]]
    labels = [collapse(x) for x in labels]
    if step != 1:
        pin(labels[dimension], f"every {step}th position is taken at {where(node)}")
        labels[dimension] = fresh(new, "pinned")
        return labels
    pieces = _cut_at(self, node, dimension, [start, start + new])
    labels[dimension] = pieces[1 if start else 0] if new else fresh(0)
    return labels


@rule("split_with_sizes")
def _split(self: Propagation, node: fx.Node) -> list[Labels]:
    labels = self.of(node.args[0])
    dimension = argument(node, 2, "dim", 0) % len(labels)
    sizes = [int(v.shape[dimension]) for v in node.meta["val"]]
    cuts = [sum(sizes[:n]) for n in range(1, len(sizes))]
    pieces = _cut_at(self, node, dimension, cuts)
    return [[*labels[:dimension], piece, *labels[dimension + 1 :]] for piece in pieces]


@rule("cat")
def _cat(self: Propagation, node: fx.Node) -> Labels:
    parts: Any = node.args[0]
    parts = [p for p in parts if shape_of(p) != [0]]
    dimension = argument(node, 1, "dim", 0) % len(shape_of(node))
    first = list(self.of(parts[0]))
    for part in parts[1:]:
        for n, (x, y) in enumerate(zip(first, self.of(part), strict=True)):
            if n != dimension:
                unify(x, y, where(node))
    first[dimension] = total(self.of(p)[dimension] for p in parts)
    return first


@rule("constant_pad_nd")
def _pad(self: Propagation, node: fx.Node) -> Labels:
    labels = list(self.of(node.args[0]))
    pads: Any = node.args[1]
    for n in range(len(pads) // 2):
        before, after = pads[2 * n], pads[2 * n + 1]
        if before < 0 or after < 0:
            return self.give_up(node, "negative padding")
        labels[-1 - n] = total([fresh(before), labels[-1 - n], fresh(after)])
    return labels
