"""Reductions, pooling and look-ups."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from neuralfunctionals.weight_space.labels import fresh, pin, unit
from neuralfunctionals.weight_space.propagation import (
    Labels,
    Propagation,
    argument,
    operation_name,
    rule,
    shape_of,
    where,
)

# Reductions and pooling.


@rule("sum mean amax amin prod var any all max min linalg_vector_norm argmax argmin var_mean")
def _reduce(self: Propagation, node: fx.Node) -> Any:
    labels, name = self.of(node.args[0]), operation_name(node)
    dims = argument(node, 2 if name == "linalg_vector_norm" else 1, "dim")
    dims = range(len(labels)) if dims is None or dims == [] else [dims] if isinstance(dims, int) else dims
    gone = {d % max(len(labels), 1) for d in dims}
    value = node.meta["val"]
    if name in ("argmax", "argmin", "max", "min") and (name[:3] == "arg" or isinstance(value, (tuple, list))):
        for d in gone:
            pin(labels[d], f"a position is returned at {where(node)}")
    one = value[0] if isinstance(value, (tuple, list)) else value
    keeps = one.ndim == len(labels)
    result = [unit() if n in gone else x for n, x in enumerate(labels) if keeps or n not in gone]
    return [result for _ in value] if isinstance(value, (tuple, list)) else result


@rule(
    "max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d "
    "adaptive_max_pool2d upsample_nearest2d upsample_bilinear2d"
)
def _pool(self: Propagation, node: fx.Node) -> Any:
    labels = self.of(node.args[0])
    spatial = 3 if "3d" in operation_name(node) else 2
    for label in labels[-spatial:]:
        pin(label, f"positions at {where(node)}")

    def one(value: Tensor) -> Labels:
        return [*labels[:-spatial], *[fresh(int(n), "pinned", "positions") for n in value.shape[-spatial:]]]

    value = node.meta["val"]
    return [one(v) for v in value] if isinstance(value, (tuple, list)) else one(value)


@rule("cumsum cumprod flip")
def _ordered(self: Propagation, node: fx.Node) -> Labels:
    labels, dims = self.of(node.args[0]), node.args[1]
    for d in [dims] if isinstance(dims, int) else dims:  # pyright: ignore[reportGeneralTypeIssues, reportOptionalIterable]
        pin(labels[d], f"the order of positions counts at {where(node)}")
    return labels


@rule("sort topk")
def _compared(self: Propagation, node: fx.Node) -> Any:
    return self.give_up(node, "positions are compared")


# Look-ups.


@rule("embedding")
def _embedding(self: Propagation, node: fx.Node) -> Labels:
    table, places = self.of(node.args[0]), self.of(node.args[1])
    pin(table[0], f"rows are looked up at {where(node)}")
    return [*places, table[1]]


@rule("index_select")
def _index_select(self: Propagation, node: fx.Node) -> Labels:
    labels = list(self.of(node.args[0]))
    dimension = argument(node, 1, "dim")
    pin(labels[dimension], f"positions are looked up at {where(node)}")
    labels[dimension] = self.of(node.args[2])[0]
    return labels


@rule("index")
def _index(self: Propagation, node: fx.Node) -> Any:
    labels = list(self.of(node.args[0]))
    indices: Any = node.args[1]
    used = [n for n, i in enumerate(indices) if i is not None]
    for n in used:
        pin(labels[n], f"positions are looked up at {where(node)}")
    if len(used) != 1 or indices[used[0]].meta["val"].dtype == torch.bool:
        new, kept = shape_of(node), [x for n, x in enumerate(labels) if n not in used]
        count = len(new) - len(kept)
        if used == list(range(used[0], used[-1] + 1)) and all(
            i is None or i.meta["val"].dtype != torch.bool for i in indices
        ):
            middle = [fresh(n, "pinned", "looked up") for n in new[used[0] : used[0] + count]]
            return [*labels[: used[0]], *middle, *labels[used[-1] + 1 :]]
        return self.give_up(node, "several look-ups at once")
    return [*labels[: used[0]], *self.of(indices[used[0]]), *labels[used[0] + 1 :]]
