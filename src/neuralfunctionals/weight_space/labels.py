"""Labels of the dimensions of tensors, as trees: sets of neurons, their products and their sums.

A flattened dimension is a product (channel x position), and a concatenated one is a sum. Two dimensions that an
operation treats as one are unified, which splits sets if necessary; a mismatch that cannot be resolved pins both, so
that their positions never permute. This is always safe: at worst, too few neurons are found.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

_ORDER = {"hidden": 0, "output": 1, "input": 2, "pinned": 3}
"""When two roles are unified, the later one is kept."""


@dataclass(eq=False)
class Label:
    """A set of positions (`parts` is None), or a product or sum of labels.

    A set may turn out to be another label: it is then `bound` to it.
    """

    size: int
    kind: str = "set"
    parts: list[Label] = field(default_factory=list)
    role: str = "hidden"
    reason: str = ""
    bound: Label | None = None

    def __repr__(self) -> str:
        x = find(self)
        if x.kind != "set":
            return (
                f"({' x '.join(map(repr, x.parts))})" if x.kind == "product" else f"({' + '.join(map(repr, x.parts))})"
            )
        return f"{x.size}{'' if x.role == 'hidden' else ':' + x.role}#{id(x) % 9973}"


@dataclass(eq=False)
class Family:
    """The label of a dimension that depends on the position along another dimension, such as that of q, k and v."""

    index: Label
    members: list[Label]


def fresh(size: int, role: str = "hidden", reason: str = "") -> Label:
    """A new set of positions."""
    return unit() if size == 1 else Label(size, role=role, reason=reason)


def unit() -> Label:
    """The label of a dimension of size 1."""
    return Label(1, "product")


def find(label: Label) -> Label:
    """The current value of a label: flat products of sets and sums, flat sums of sets and products."""
    while label.bound is not None:
        label = label.bound
    if label.kind == "set":
        return label
    parts: list[Label] = []
    for part in map(find, label.parts):
        parts += part.parts if part.kind == label.kind else [part]
    label.parts = parts
    return parts[0] if len(parts) == 1 else label


def product(parts: Iterable[Label]) -> Label:
    """The product of labels, from outer to inner: a flattened dimension."""
    parts = [p for p in parts if p.size != 1]
    return parts[0] if len(parts) == 1 else Label(math.prod(p.size for p in parts), "product", parts)


def total(parts: Iterable[Label]) -> Label:
    """The sum of labels: a concatenated dimension."""
    parts = [p for p in parts if p.size]
    return parts[0] if len(parts) == 1 else Label(sum(p.size for p in parts), "sum", parts)


def leaves(label: Label) -> Iterator[Label]:
    """The sets that a label is made of."""
    label = find(label)
    if label.kind == "set":
        yield label
    for part in label.parts:
        yield from leaves(part)


def restrict(label: Label, role: str, reason: str = "") -> None:
    """Marks all neurons of a label as input, output or pinned."""
    for leaf in leaves(label):
        if _ORDER[role] > _ORDER[leaf.role]:
            leaf.role, leaf.reason = role, reason


def pin(label: Label, reason: str) -> None:
    """Marks all positions of a label as not permutable."""
    restrict(label, "pinned", reason)


def bind(label: Label, other: Label) -> None:
    """Makes a set stand for another label."""
    restrict(other, label.role, label.reason)
    label.bound = other


def unify(a: Label, b: Label, where: str) -> None:
    """Unifies two labels of equal size."""
    a, b = find(a), find(b)
    if a is b:
        return
    if a.size != b.size:
        raise AssertionError(f"labels of sizes {a.size} and {b.size} meet at {where}")
    if a.kind == "set" and a not in list(leaves(b)):
        bind(a, b)
    elif b.kind == "set" and b not in list(leaves(a)):
        bind(b, a)
    elif a.kind == b.kind == "product":
        _unify_products(a, b, where)
    elif "sum" in (a.kind, b.kind) and "set" not in (a.kind, b.kind):
        _unify_sums(a, b, where)
    else:
        _pin_both(a, b, where)


def _pin_both(a: Label, b: Label, where: str) -> None:
    for x in (a, b):
        pin(x, f"dimensions that do not fit meet at {where}")


def _unify_products(a: Label, b: Label, where: str) -> None:
    left, right = list(a.parts), list(b.parts)
    while left and right:
        x, y = find(left.pop(0)), find(right.pop(0))
        if x.size == y.size:
            unify(x, y, where)
            continue
        large, small, rest = (x, y, left) if x.size > y.size else (y, x, right)
        pieces = split_product(large, small.size)
        if pieces is None:
            _pin_both(a, b, where)
            return
        outer, inner = pieces
        unify(outer, small, where)
        rest.insert(0, inner)


def _unify_sums(a: Label, b: Label, where: str) -> None:
    cuts = sorted({c for x in (a, b) if x.kind == "sum" for c in _cuts(x)})
    left, right = cut(a, cuts), cut(b, cuts)
    if left is None or right is None:
        _pin_both(a, b, where)
        return
    for x, y in zip(left, right, strict=True):
        unify(x, y, where)


def _cuts(label: Label) -> list[int]:
    places, here = [], 0
    for part in label.parts[:-1]:
        here += part.size
        places.append(here)
    return places


def split_product(label: Label, outer_size: int) -> tuple[Label, Label] | None:
    """Splits a label into an outer factor of that size and an inner one; None if this is not possible."""
    label = find(label)
    if label.size % outer_size:
        return None
    inner_size = label.size // outer_size
    if label.kind == "set":
        outer, inner = (fresh(n, label.role, label.reason) for n in (outer_size, inner_size))
        bind(label, product([outer, inner]))
        return outer, inner
    if label.kind == "product":
        parts = list(label.parts)
        outer = _take_factors(parts, outer_size)
        return None if outer is None else (product(outer), product(parts))
    # A sum: every part must have the inner label as its inner factor.
    if any(part.size % inner_size for part in label.parts):
        return None
    pieces = [split_product(part, part.size // inner_size) for part in label.parts]
    if any(p is None for p in pieces):
        return None
    first = pieces[0]
    assert first is not None
    for piece in pieces[1:]:
        assert piece is not None
        unify(first[1], piece[1], "a view of a concatenation")
    return total(p[0] for p in pieces if p is not None), first[1]


def cut(label: Label, cuts: Sequence[int]) -> list[Label] | None:
    """Cuts a label at these positions into a sum; None if it cannot be cut there."""
    label = find(label)
    bounds = [0, *(c for c in cuts if 0 < c < label.size), label.size]
    sizes = [b - a for a, b in itertools.pairwise(bounds)]
    if len(sizes) == 1:
        return [label]
    if label.kind == "set":
        parts = [fresh(n, label.role, label.reason) for n in sizes]
        bind(label, total(parts))
        return parts
    if label.kind == "product":
        outer, *inner = label.parts
        step = math.prod(p.size for p in inner)
        if any(c % step for c in bounds):
            return None
        pieces = cut(outer, [c // step for c in bounds[1:-1]])
        return None if pieces is None else [product([p, *inner]) for p in pieces]
    result, here = [], 0
    for part in label.parts:
        inside = [c - here for c in bounds if here < c < here + part.size]
        pieces = cut(part, inside)
        if pieces is None:
            return None
        result += pieces
        here += part.size
    # Parts that no cut separates belong together.
    joined: list[Label] = []
    for n in sizes:
        piece: list[Label] = []
        while sum(p.size for p in piece) < n:
            piece.append(result.pop(0))
        joined.append(total(piece))
    return joined


def regroup(labels: Sequence[Label], shape: Sequence[int], where: str) -> list[Label]:
    """The labels of a view in another shape."""
    factors, result = list(labels), []
    for size in shape:
        taken = _take_factors(factors, size)
        if taken is None:
            return _give_up(labels, shape, where)
        result.append(product(taken) if size != 1 else unit())
    return result


def _take_factors(factors: list[Label], size: int) -> list[Label] | None:
    """Removes the first factors, whose product has that size, splitting the last if needed; None if impossible."""
    taken: list[Label] = []
    wanted = size
    while factors and wanted > 1:
        factor = find(factors.pop(0))
        if factor.kind == "product":
            factors[:0] = factor.parts
            continue
        if factor.size > wanted:
            pieces = split_product(factor, wanted)
            if pieces is None:
                return None
            factor, rest = pieces
            factors.insert(0, rest)
        if wanted % factor.size:
            return None
        wanted //= factor.size
        taken.append(factor)
    return taken if wanted == 1 else None


def _give_up(labels: Sequence[Label], shape: Sequence[int], where: str) -> list[Label]:
    reason = f"a view of other factors at {where}"
    for label in labels:
        pin(label, reason)
    return [fresh(n, "pinned", reason) for n in shape]


def alternatives(label: Label) -> list[tuple[int, list[tuple[Label, int]]]]:
    """A label as a sum of products of sets: the start of each product, and its factors with their strides.

    Neighbouring sets that never permute are joined.
    """
    label = find(label)
    if label.kind == "set":
        return [(0, [(label, 1)])]
    if label.kind == "product":
        result: list[tuple[int, list[tuple[Label, int]]]] = [(0, [])]
        for n, part in enumerate(label.parts, start=1):
            inner = math.prod(p.size for p in label.parts[n:])
            found = [(o * inner, [(x, stride * inner) for x, stride in f]) for o, f in alternatives(part)]
            result = [(s + o, [*f, *g]) for s, f in result for o, g in found]
        return result
    result, start, joinable = [], 0, False
    for part in label.parts:
        found = alternatives(part)
        pinned = len(found) == 1 and all(x.role == "pinned" or x.size == 1 for x, _ in found[0][1])
        if pinned and joinable:
            begin = result.pop()[0]
            result.append((begin, [(Label(start + part.size - begin, role="pinned"), 1)]))
        elif pinned:
            result.append((start, [(Label(part.size, role="pinned"), 1)]))
        else:
            result += [(start + o, f) for o, f in found]
        joinable = pinned
        start += part.size
    return result
