"""Operations that keep, move or reshape dimensions."""

from __future__ import annotations

import math
from typing import Any

from torch import fx

from neuralfunctionals.weight_space.labels import Family, Label, cut, find, fresh, pin, product, regroup, unit
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

# Keep or move dimensions.


@rule("clone _to_copy alias native_dropout", families=True)
def _same(self: Propagation, node: fx.Node) -> Any:
    labels = self.of(node.args[0])
    if isinstance(node.meta["val"], (tuple, list)):
        return [labels for _ in node.meta["val"]]
    return list(labels)


@rule("_softmax _log_softmax")
def _softmax(self: Propagation, node: fx.Node) -> Labels:
    return self.of(node.args[0])


@rule("view_as_real view_as_complex")
def _complex(self: Propagation, node: fx.Node) -> Labels:
    labels = self.of(node.args[0])
    if operation_name(node) == "view_as_real":
        return [*labels, positions(2, node)]
    pin(labels[-1], positions_at(node))
    return labels[:-1]


@rule("permute", families=True)
def _permute(self: Propagation, node: fx.Node) -> Labels:
    labels = self.of(node.args[0])
    return [labels[d] for d in argument(node, 1, "dims")]


@rule("squeeze", families=True)
def _squeeze(self: Propagation, node: fx.Node) -> Labels:
    sizes = shape_of(node.args[0])
    dims = argument(node, 1, "dim", range(len(sizes)))
    dims = [dims] if isinstance(dims, int) else list(dims)
    gone = {d % len(sizes) for d in dims if sizes[d] == 1}
    return [x for n, x in enumerate(self.of(node.args[0])) if n not in gone]


@rule("unsqueeze", families=True)
def _unsqueeze(self: Propagation, node: fx.Node) -> Labels:
    labels = list(self.of(node.args[0]))
    labels.insert(argument(node, 1, "dim") % (len(labels) + 1), unit())
    return labels


@rule("expand")
def _expand(self: Propagation, node: fx.Node) -> Labels:
    return broadcast([self.of(node.args[0])], shape_of(node), where(node))


@rule("repeat")
def _repeat(self: Propagation, node: fx.Node) -> Labels:
    repeats: Any = node.args[1]
    labels = [unit()] * (len(repeats) - len(self.of(node.args[0]))) + self.of(node.args[0])
    return [product([fresh(r), x]) for r, x in zip(repeats, labels, strict=True)]


@rule("view", families=True)
def _view(self: Propagation, node: fx.Node) -> Labels:
    shape, labels = shape_of(node), self.of(node.args[0])
    chosen = _index_dimension(node, shape)
    families = [x for x in labels if isinstance(x, Family)]
    if families:  # q, k and v of a fused tensor, in the same view
        index = families[0].index
        if all(f.index is index for f in families) and index in labels:
            return _view_of_family(node, labels, shape, index)
        labels = [collapse(x) for x in labels]
    if chosen is not None:
        return _view_of_fused(node, labels, shape, chosen)
    return regroup([collapse(x) for x in labels], shape, where(node))


def _view_of_fused(node: fx.Node, labels: Labels, shape: list[int], place: int) -> Labels:
    """A view whose new dimension is indexed afterwards: dimensions after it have a label for each index."""
    labels, name = [collapse(x) for x in labels], where(node)
    old = shape_of(node.args[0])
    ends = {math.prod(old[:n]) for n in range(len(old) + 1)}
    behind = next(n for n in range(place + 1, len(shape) + 1) if math.prod(shape[:n]) in ends)
    if math.prod(shape[place + 1 : behind]) == 1:
        return regroup(labels, shape, name)
    merged = [*shape[:place], math.prod(shape[place:behind]), *shape[behind:]]
    labels = regroup(labels, merged, name)
    step = merged[place] // shape[place]
    pieces = cut(labels[place], [step * n for n in range(1, shape[place])])
    if pieces is None:
        return regroup(labels, shape, name)
    index = positions(shape[place], node)
    inner = [regroup([piece], shape[place + 1 : behind], name) for piece in pieces]
    families = [Family(index, list(members)) for members in zip(*inner, strict=True)]
    return [*labels[:place], index, *families, *labels[place + 1 :]]


def _view_of_family(node: fx.Node, labels: Labels, shape: list[int], index: Label) -> Labels:
    """A view of a tensor that holds a family, if it keeps the indexed dimension: the view of each member."""
    place = labels.index(index)
    before, after = math.prod(shape_of(node.args[0])[:place]), 0
    while after < len(shape) and math.prod(shape[:after]) < before:
        after += 1
    if after >= len(shape) or math.prod(shape[:after]) != before or shape[after] != index.size:
        return regroup([collapse(x) for x in labels], shape, where(node))
    views = []
    for n in range(index.size):
        own = [x.members[n] if isinstance(x, Family) else x for x in labels]
        front = regroup(own[:place], shape[:after], where(node))
        views.append([*front, index, *regroup(own[place + 1 :], shape[after + 1 :], where(node))])
    return [
        xs[0] if len({id(find(x)) for x in xs}) == 1 else Family(index, list(xs)) for xs in zip(*views, strict=True)
    ]


def _index_dimension(node: fx.Node, shape: list[int]) -> int | None:
    """A small dimension that the view creates and that later steps index: the one over q, k and v."""
    old = shape_of(node.args[0])
    kept = {(math.prod(old[:n]), size) for n, size in enumerate(old)}
    for place, size in enumerate(shape):
        is_new = (math.prod(shape[:place]), size) not in kept
        if 1 < size <= 4 and is_new and _is_indexed(node, place):
            return place
    return None


def _is_indexed(node: fx.Node, place: int, depth: int = 0) -> bool:
    ndim = len(shape_of(node))
    for user in node.users:
        name = operation_name(user) if user.op == "call_function" else ""
        args: Any = user.args
        if name in ("select", "slice") and (args[1] if len(args) > 1 else 0) % ndim == place:
            return name != "slice" or shape_of(user)[place] == 1
        if name == "split_with_sizes" and (args[2] if len(args) > 2 else 0) % ndim == place:
            return all(size == 1 for size in args[1])
        moved = _follow(user, name, place, ndim)
        if moved is not None and depth < 12 and _is_indexed(user, moved, depth + 1):
            return True
    return False


def _follow(user: fx.Node, name: str, place: int, ndim: int) -> int | None:
    """The position of a dimension after a step that moves dimensions."""
    args: Any = user.args
    if name in ("clone", "alias"):
        return place
    if name == "permute":
        return [d % ndim for d in args[1]].index(place)
    if name == "unsqueeze":
        return place + (args[1] % (ndim + 1) <= place)
    if name == "squeeze":
        dims = [args[1]] if isinstance(args[1], int) else args[1]
        return place - sum(d % ndim < place for d in dims)
    return None
