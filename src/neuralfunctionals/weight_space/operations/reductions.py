"""Reductions, pooling and look-ups."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from neuralfunctionals.weight_space.labels import Label, fresh, pin, unify, unit
from neuralfunctionals.weight_space.propagation import (
    Labels,
    Propagation,
    argument,
    broadcast,
    like,
    operation_name,
    positions,
    positions_at,
    rule,
    shape_of,
    where,
)

# Reductions and pooling.


def _pin_compared(node: fx.Node, label: Label) -> None:
    """Pins a dimension whose positions are returned; values alone do not depend on their order."""
    value, name = node.meta["val"], operation_name(node)
    returned = any(user.args[1] == 1 for user in node.users) if isinstance(value, (tuple, list)) else name[:3] == "arg"
    if returned:
        pin(label, f"positions are compared at {where(node)}")


@rule("sum mean amax amin prod var any all max min median mode kthvalue linalg_vector_norm argmax argmin var_mean")
def _reduce(self: Propagation, node: fx.Node) -> Any:
    labels, name, value = self.of(node.args[0]), operation_name(node), node.meta["val"]
    default = -1 if name in ("mode", "kthvalue") else None
    dims = argument(node, 2 if name in ("linalg_vector_norm", "kthvalue") else 1, "dim", default)
    dims = range(len(labels)) if dims is None or dims == [] else [dims] if isinstance(dims, int) else dims
    gone = {d % max(len(labels), 1) for d in dims}
    for d in gone if labels and name != "var_mean" else ():
        _pin_compared(node, labels[d])
    one = value[0] if isinstance(value, (tuple, list)) else value
    keeps = one.ndim == len(labels)
    result = [unit() if n in gone else x for n, x in enumerate(labels) if keeps or n not in gone]
    return [result for _ in value] if isinstance(value, (tuple, list)) else result


@rule("sort topk")
def _sort(self: Propagation, node: fx.Node) -> list[Labels]:
    labels = list(self.of(node.args[0]))
    name, values = operation_name(node), node.meta["val"][0]
    dimension = argument(node, 1 if name == "sort" else 2, "dim", -1) % max(len(labels), 1)
    if labels:
        _pin_compared(node, labels[dimension])
        labels[dimension] = fresh(int(values.shape[dimension]), "pinned", f"it is sorted at {where(node)}")
    return [labels, labels]


@rule(
    "max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d "
    "adaptive_max_pool2d adaptive_max_pool3d upsample_nearest2d upsample_bilinear2d _upsample_bilinear2d_aa "
    "_upsample_bicubic2d_aa grid_sampler_2d grid_sampler_3d"
)
def _pool(self: Propagation, node: fx.Node) -> Any:
    labels, name = self.of(node.args[0]), operation_name(node)
    spatial = 3 if "3d" in name else 2
    for label in labels[-spatial:]:
        pin(label, positions_at(node))
    if name.startswith("grid"):  # the places to look at, for each image
        places = self.of(node.args[1])
        unify(places[0], labels[0], where(node))
        pin(places[-1], positions_at(node))
        return [*labels[:-spatial], *places[1:-1]]

    def one(value: Tensor) -> Labels:
        return [*labels[:-spatial], *[positions(int(n), node) for n in value.shape[-spatial:]]]

    value = node.meta["val"]
    return [one(v) for v in value] if isinstance(value, (tuple, list)) else one(value)


@rule("unfold")
def _unfold(self: Propagation, node: fx.Node) -> Labels:
    labels = list(self.of(node.args[0]))
    dimension: Any = node.args[1]
    pin(labels[dimension], f"windows are taken at {where(node)}")
    labels[dimension] = positions(shape_of(node)[dimension], node)
    return [*labels, positions(shape_of(node)[-1], node)]


@rule("cumsum cumprod cummax cummin logcumsumexp flip _fft_c2c _fft_r2c _fft_c2r")
def _ordered(self: Propagation, node: fx.Node) -> Any:
    labels, dims, value = list(self.of(node.args[0])), node.args[1], node.meta["val"]
    several = isinstance(value, (tuple, list))
    for d in [dims] if isinstance(dims, int) else dims:  # pyright: ignore[reportGeneralTypeIssues, reportOptionalIterable]
        pin(labels[d], f"the order of positions counts at {where(node)}")
        labels[d] = positions(int((value[0] if several else value).shape[d]), node)
    return [labels for _ in value] if several else labels


# Look-ups: positions are found by number, so that those of the tensor looked up in never permute.


@rule("embedding _embedding_bag_forward_only _embedding_bag")
def _embedding(self: Propagation, node: fx.Node) -> Any:
    table, places = self.of(node.args[0]), self.of(node.args[1])
    pin(table[0], positions_at(node))
    value = node.meta["val"]
    if isinstance(value, Tensor):
        return [*places, table[1]]
    for source in node.all_input_nodes[1:]:  # the entries of bags, their starts and weights
        for label in self.of(source):
            pin(label, positions_at(node))
    bags = positions(int(value[0].shape[0]), node)
    return [[bags, table[1]], *like(value[1:], lambda n: positions(n, node))]


@rule("index_select")
def _index_select(self: Propagation, node: fx.Node) -> Labels:
    labels = list(self.of(node.args[0]))
    dimension = argument(node, 1, "dim")
    pin(labels[dimension], positions_at(node))
    labels[dimension] = self.of(node.args[2])[0]
    return labels


@rule("gather")
def _gather(self: Propagation, node: fx.Node) -> Labels:
    labels, places = self.of(node.args[0]), self.of(node.args[2])
    return _unify_around(self, node, labels, places)


@rule("scatter scatter_add scatter_reduce")
def _scatter(self: Propagation, node: fx.Node) -> Labels:
    labels, places = self.of(node.args[0]), self.of(node.args[2])
    if isinstance(node.args[3], fx.Node) and self.of(node.args[3]):
        for x, y in zip(places, self.of(node.args[3]), strict=True):
            if x.size != y.size:
                return self.give_up(node, "part of a tensor is written")
            unify(x, y, where(node))
    _unify_around(self, node, labels, places)
    return labels


def _unify_around(self: Propagation, node: fx.Node, labels: Labels, places: Labels) -> Labels:
    """Unifies a tensor with numbers of places along one of its dimensions, which is pinned."""
    dimension: Any = node.args[1]
    for n, (x, y) in enumerate(zip(labels, places, strict=True)):
        if n == dimension % len(labels):
            pin(x, positions_at(node))
        elif x.size == y.size:
            unify(x, y, where(node))
        else:
            pin(x, f"it is looked up at {where(node)}")
            pin(y, f"it is looked up at {where(node)}")
    return places


@rule("index")
def _index(self: Propagation, node: fx.Node) -> Any:
    found = _look_up(self, node, self.of(node.args[0]), node.args[1])
    return self.give_up(node, "several look-ups at once") if found is None else found


@rule("index_put")
def _index_put(self: Propagation, node: fx.Node) -> Any:
    labels, values = self.of(node.args[0]), self.of(node.args[2])
    indices: Any = node.args[1]
    if len(indices) == 1 and indices[0].meta["val"].dtype == torch.bool and not values:
        for x, y in zip(labels, self.of(indices[0]), strict=False):  # a number is written where the mask is true
            unify(x, y, where(node))
        return labels
    found = _look_up(self, node, labels, indices)
    if found is None:
        return self.give_up(node, "several look-ups at once")
    for x, y in zip(found[::-1], values[::-1], strict=False):
        if x.size == y.size:
            unify(x, y, where(node))
    return labels


def _look_up(self: Propagation, node: fx.Node, labels: Labels, indices: Any) -> Labels | None:
    """The labels of `x[indices]`; None for masks, and for indices that are not next to each other."""
    used = [n for n, i in enumerate(indices) if i is not None]
    for n in used:
        pin(labels[n], positions_at(node))
    if any(indices[n].meta["val"].dtype == torch.bool for n in used) or used[-1] - used[0] >= len(used):
        return None
    shape = torch.broadcast_shapes(*(shape_of(indices[n]) for n in used))
    places = broadcast([self.of(indices[n]) for n in used], shape, where(node))
    return [*labels[: used[0]], *places, *labels[used[-1] + 1 :]]
