"""Parts of dimensions: slices, splits, concatenations."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from torch import fx

from neuralfunctionals.weight_space.labels import Family, Label, cut, fresh, pin, split_product, total, unify, unit
from neuralfunctionals.weight_space.propagation import (
    Labels,
    Propagation,
    argument,
    broadcast,
    collapse,
    operation_name,
    positions,
    positions_at,
    rule,
    shape_of,
    where,
)

# Parts of dimensions.


@rule("select", families=True)
def _select(self: Propagation, node: fx.Node) -> Labels:
    labels = list(self.of(node.args[0]))
    dimension, position = argument(node, 1, "dim") % len(labels), argument(node, 2, "index")
    taken = _take(labels, dimension, position)
    if taken is not None:
        return taken
    labels = [collapse(x) for x in labels]
    _take_part(labels.pop(dimension), position % shape_of(node.args[0])[dimension], 1, node)
    return labels


def _take(labels: Labels, dimension: int, position: int) -> Labels | None:
    """The labels of the other dimensions at one position of the dimension over q, k and v; None for others."""
    index, rest = labels[dimension], [*labels[:dimension], *labels[dimension + 1 :]]
    if not any(isinstance(x, Family) and x.index is index for x in rest):
        return None
    return [x.members[position] if isinstance(x, Family) and x.index is index else collapse(x) for x in rest]


def _cut(label: Label, cuts: Sequence[int], node: fx.Node) -> list[Label]:
    """The pieces of a label between these positions."""
    pieces = cut(label, cuts)
    if pieces is None:
        pin(label, f"it is cut at {where(node)}")
        bounds = [0, *(c for c in cuts if 0 < c < label.size), label.size]
        return [positions(b - a, node) for a, b in itertools.pairwise(bounds)]
    return pieces


def _take_part(label: Label, start: int, size: int, node: fx.Node, step: int = 1) -> Label:
    """The label of every `step`-th position from `start`."""
    if not size:
        return fresh(0)
    if step == 1:
        return _cut(label, [start, start + size], node)[1 if start else 0]
    pieces = split_product(label, size) if start < step and size * step == label.size else None
    if pieces is None:
        pin(label, f"every {step}th position is taken at {where(node)}")
        return positions(size, node)
    pin(pieces[1], positions_at(node))
    return pieces[0]


def _bounds(node: fx.Node, first: int) -> tuple[int, int, int]:
    """Dimension, start and step of a slice, whose arguments begin at `first`."""
    shape = shape_of(node.args[0])
    dimension = argument(node, first, "dim", 0) % len(shape)
    start, size = argument(node, first + 1, "start", 0) or 0, shape[dimension]
    return dimension, min(max(start + size if start < 0 else start, 0), size), argument(node, first + 3, "step", 1)


@rule("slice", families=True)
def _slice(self: Propagation, node: fx.Node) -> Labels:
    labels = list(self.of(node.args[0]))
    dimension, start, step = _bounds(node, 1)
    new = shape_of(node)[dimension]
    if shape_of(node.args[0])[dimension] == new:
        return labels
    taken = _take(labels, dimension, start) if new == 1 else None
    if taken is not None:
        return [*taken[:dimension], unit(), *taken[dimension:]]
    labels = [collapse(x) for x in labels]
    labels[dimension] = _take_part(labels[dimension], start, new, node, step)
    return labels


@rule("slice_scatter select_scatter")
def _write_part(self: Propagation, node: fx.Node) -> Labels:
    labels, new = list(self.of(node.args[0])), list(self.of(node.args[1]))
    if operation_name(node) == "slice_scatter":
        dimension, start, step = _bounds(node, 2)
    else:
        dimension = argument(node, 2, "dim") % len(labels)
        start, step = argument(node, 3, "index") % labels[dimension].size, 1
        new.insert(dimension, unit())
    part = _take_part(labels[dimension], start, new[dimension].size, node, step)
    for n, (old, label) in enumerate(zip(labels, new, strict=True)):
        unify(part if n == dimension else old, label, where(node))
    return labels


@rule("copy")
def _copy(self: Propagation, node: fx.Node) -> Labels:
    return broadcast([self.of(node.args[1])], shape_of(node), where(node))


@rule("split_with_sizes", families=True)
def _split(self: Propagation, node: fx.Node) -> list[Labels]:
    labels = self.of(node.args[0])
    dimension = argument(node, 2, "dim", 0) % len(labels)
    sizes = [int(v.shape[dimension]) for v in node.meta["val"]]
    taken = [_take(labels, dimension, n) for n in range(len(sizes))] if all(n == 1 for n in sizes) else [None]
    if taken[0] is not None:
        return [[*rest[:dimension], unit(), *rest[dimension:]] for rest in taken if rest is not None]
    labels = [collapse(x) for x in labels]
    pieces = _cut(labels[dimension], [sum(sizes[:n]) for n in range(1, len(sizes))], node)
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
