"""Operations that combine neurons: sums, products, attention, convolutions, norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, fx

from neuralfunctionals.weight_space.labels import Label, fresh, pin, product, split_product, unify, unit
from neuralfunctionals.weight_space.propagation import (
    Labels,
    Propagation,
    argument,
    broadcast,
    like,
    positions,
    positions_at,
    rule,
    shape_of,
    where,
)

# Sums and products.


@rule("pointwise where maximum minimum bitwise_and logical_and polar complex")
def _pointwise(self: Propagation, node: fx.Node) -> Labels:
    tensors = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), Tensor)]
    return broadcast([self.of(n) for n in tensors], shape_of(node), where(node))


@rule("mm bmm addmm")
def _matmul(self: Propagation, node: fx.Node) -> Labels:
    *added, left, right = node.args
    a, b = self.of(left), self.of(right)
    unify(a[-1], b[-2], where(node))
    for x, y in zip(a[:-2], b[:-2], strict=True):
        unify(x, y, where(node))
    result = [*a[:-1], b[-1]]
    for extra in added:
        labels = self.of(extra)
        for x, y in zip(labels[::-1], result[::-1], strict=False):
            if x.size == y.size:
                unify(x, y, where(node))
    return result


@rule("_cdist_forward")
def _distances(self: Propagation, node: fx.Node) -> Labels:
    a, b = self.of(node.args[0]), self.of(node.args[1])
    unify(a[-1], b[-1], where(node))
    for x, y in zip(a[:-2], b[:-2], strict=True):
        unify(x, y, where(node))
    return [*a[:-1], b[-2]]


@rule("_trilinear")
def _trilinear(self: Propagation, node: fx.Node) -> Labels:
    """The product of three tensors, each with some dimensions inserted, summed over some."""
    result = [unit() for _ in range(node.args[0].meta["val"].ndim + len(node.args[3]))]  # pyright: ignore
    for source, inserted in zip(node.args[:3], node.args[3:6], strict=True):
        labels = iter(self.of(source))
        for n in range(len(result)):
            label = unit() if n in inserted else next(labels)  # pyright: ignore[reportOperatorIssue]
            if result[n].size == 1:
                result[n] = label
            elif label.size > 1:
                unify(result[n], label, where(node))
    return [x for n, x in enumerate(result) if n not in node.args[6]]  # pyright: ignore[reportOperatorIssue]


@rule("scaled_dot_product_attention")
def _attention(self: Propagation, node: fx.Node) -> Labels:
    query, key, value = (self.of(n) for n in node.args[:3])
    mask = argument(node, 3, "attn_mask")
    name = where(node)
    unify(query[-1], key[-1], name)
    unify(key[-2], value[-2], name)
    for q, k, v in zip(query[:-2], key[:-2], value[:-2], strict=True):
        unify(k, v, name)
        if q.size == k.size:
            unify(q, k, name)
        else:  # grouped queries
            unify(q, product([k, fresh(q.size // k.size)]), name)
    if isinstance(mask, fx.Node):
        labels = self.of(mask)
        for x, y in zip(labels[::-1], [key[-2], query[-2], *query[-3::-1]], strict=False):
            if x.size == y.size != 1:
                unify(x, y, name)
    if argument(node, 5, "is_causal", False):
        pin(query[-2], positions_at(node))
        pin(key[-2], positions_at(node))
    return [*query[:-1], value[-1]]


@rule("convolution")
def _convolution(self: Propagation, node: fx.Node) -> Labels:
    x, weight = self.of(node.args[0]), self.of(node.args[1])
    name, groups, is_transposed = where(node), argument(node, 8, "groups"), argument(node, 6, "transposed")
    for position in (*weight[2:], *x[2:]):
        pin(position, positions_at(node))
    if is_transposed:
        enters, leaves = weight[0], weight[1]
        if groups != 1:
            pieces = split_product(x[1], groups)
            unify(x[1], weight[0], name)
            leaves = product([pieces[0], leaves]) if pieces else self.give_up(node, "grouped channels")[1]
    else:
        enters, leaves = weight[1], weight[0]
        if groups != 1:
            group = fresh(groups)
            unify(x[1], product([group, enters]), name)
            unify(leaves, product([group, fresh(leaves.size // groups)]), name)
    if groups == 1:
        unify(x[1], enters, name)
    bias = argument(node, 2, "bias")
    if isinstance(bias, fx.Node):
        unify(self.of(bias)[0], leaves, name)
    return [x[0], leaves, *[positions(n, node) for n in shape_of(node)[2:]]]


# Norms.


def _unify_all(self: Propagation, label: Label, others: Sequence[Any], name: str) -> None:
    for other in others:
        if isinstance(other, fx.Node):
            unify(self.of(other)[0], label, name)


@rule("_native_batch_norm_legit_no_training _native_batch_norm_legit")
def _batch_norm(self: Propagation, node: fx.Node) -> list[Any]:
    labels = self.of(node.args[0])
    _unify_all(self, labels[1], node.args[1:5], where(node))
    return [labels, *like(node.meta["val"][1:], lambda n: fresh(n))]


@rule("native_layer_norm")
def _layer_norm(self: Propagation, node: fx.Node) -> Any:
    labels, count = self.of(node.args[0]), len(node.args[1])  # pyright: ignore[reportArgumentType]
    for extra in node.args[2:4]:
        if isinstance(extra, fx.Node):
            for x, y in zip(self.of(extra), labels[-count:], strict=True):
                unify(x, y, where(node))
    return [labels, *like(node.meta["val"][1:], lambda n: fresh(n))]


@rule("native_group_norm")
def _group_norm(self: Propagation, node: fx.Node) -> Any:
    labels, groups = self.of(node.args[0]), int(node.args[6])  # pyright: ignore[reportArgumentType]
    _unify_all(self, labels[1], node.args[1:3], where(node))
    pieces = split_product(labels[1], groups)
    if pieces is None:
        pin(labels[1], f"it has other groups at {where(node)}")
    statistics = [labels[0], fresh(groups) if pieces is None else pieces[0]]
    return [labels, statistics, statistics]
