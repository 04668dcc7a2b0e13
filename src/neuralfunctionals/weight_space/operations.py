"""How each operation of a traced module relates the dimensions of what it takes and gives: `propagate`.

One function for each kind of ATen operation. An operation that is not known pins all dimensions it touches.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from neuralfunctionals.weight_space.labels import (
    Family,
    Label,
    cut,
    find,
    fresh,
    pin,
    product,
    regroup,
    split_product,
    total,
    unify,
    unit,
)

Labels = list[Any]
"""A `Label` or `Family` for each dimension."""

_RULES: dict[str, Callable[..., Any]] = {}


def _rule(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _RULES.update(dict.fromkeys(names, function))
        return function

    return register


class Propagation:
    """Walks a traced graph and gives every tensor in it its labels."""

    def __init__(self, known: dict[fx.Node, Labels]) -> None:
        self.labels: dict[fx.Node, Any] = dict(known)
        self.notes: list[str] = []

    def run(self, graph: fx.Graph) -> None:
        for node in graph.nodes:
            if node.op == "call_function":
                self.labels[node] = self._apply(node)

    def _apply(self, node: fx.Node) -> Any:
        if node.target is operator.getitem:
            source: Any = node.args[0]
            return self.labels[source][node.args[1]]
        if "val" not in node.meta:  # an assertion, which gives nothing
            return None
        name = _operation(node)
        rule = _RULES.get(name)
        inputs = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), Tensor)]
        if not inputs:
            return self._constant(node)
        if rule is None and torch.Tag.pointwise in getattr(node.target, "tags", ()):
            rule = _pointwise
        if rule in (_view, _permute, _squeeze, _unsqueeze, _select, _slice, _unbind, _same) and rule is not None:
            return rule(self, node)
        for source in inputs:
            self.labels[source] = [collapse(x) for x in self.labels[source]]
        if rule is None:
            return self.give_up(node, f"the operation '{name}' is not known")
        return rule(self, node)

    def of(self, node: Any) -> Labels:
        return self.labels[node]

    def give_up(self, node: fx.Node, reason: str) -> Any:
        """Pins everything that an operation touches."""
        reason = f"{reason} ({where(node)})"
        touched = [x for n in node.all_input_nodes for x in _flat(self.labels.get(n))]
        if any(is_free(x) for x in touched):
            self.notes.append(reason)
        for label in touched:
            pin(label, reason)
        return _like(node.meta["val"], lambda n: fresh(n, "pinned", reason))

    def _constant(self, node: fx.Node) -> Any:
        """Made from nothing but numbers: positions are alike only where its values are."""
        try:
            with torch.no_grad():
                value = node.target(*node.args, **node.kwargs)  # pyright: ignore[reportCallIssue]
        except Exception:  # sizes that are symbols, devices that are not here: nothing is known then
            return _like(node.meta["val"], lambda n: fresh(n, "pinned", "a constant"))
        return constant_labels(value)


def constant_labels(value: Any) -> Any:
    """Labels of a tensor of constants: free along dimensions over which it does not change."""
    if not isinstance(value, Tensor):
        return None
    labels: Labels = []
    for dimension, size in enumerate(value.shape):
        alike = size == 1 or bool((value == value.narrow(dimension, 0, 1)).all())
        labels.append(fresh(size) if alike else fresh(size, "pinned", "constants"))
    return labels


def collapse(label: Any) -> Label:
    """One label for a whole family."""
    if isinstance(label, Family):
        for member in label.members[1:]:
            unify(label.members[0], member, "parts of a fused tensor")
        return label.members[0]
    return label


def is_free(label: Any) -> bool:
    """Whether some neurons of a label can still permute."""
    x = find(collapse(label))
    return any(map(is_free, x.parts)) if x.kind != "set" else x.role == "hidden"


def where(node: fx.Node) -> str:
    """The submodule and line that an operation comes from, for messages."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [str(path) for path, _ in stack.values() if path]
    module = f" in '{paths[-1]}'" if paths else ""
    return f"{_operation(node)}{module}"


def _operation(node: fx.Node) -> str:
    target: Any = node.target
    return target._schema.name.removeprefix("aten::") if hasattr(target, "_schema") else str(target)


def _flat(labels: Any) -> list[Label]:
    if labels is None:
        return []
    if isinstance(labels, list):
        return [x for part in labels for x in _flat(part)]
    return [collapse(labels)]


def _like(value: Any, make: Callable[[int], Label]) -> Any:
    if isinstance(value, (tuple, list)):
        return [_like(v, make) for v in value]
    return [make(int(n)) for n in value.shape] if isinstance(value, Tensor) else None


def _shape(node: Any) -> list[int]:
    return [int(n) for n in node.meta["val"].shape]


def _argument(node: fx.Node, place: int, name: str, default: Any = None) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


# Dimensions stay as they are, or move.


@_rule("clone", "_to_copy", "alias", "detach", "contiguous", "lift_fresh_copy", "dropout", "native_dropout", "_softmax")
@_rule("_log_softmax", "softmax", "log_softmax", "_conj", "to", "zeros_like", "ones_like", "full_like", "empty_like")
def _same(self: Propagation, node: fx.Node) -> Any:
    labels = self.of(node.args[0])
    if isinstance(node.meta["val"], (tuple, list)):
        return [labels for _ in node.meta["val"]]
    return list(labels)


@_rule("permute", "transpose", "t", "movedim")
def _permute(self: Propagation, node: fx.Node) -> Labels:
    labels = list(self.of(node.args[0]))
    name = _operation(node)
    if name == "t":
        return labels[::-1]
    if name == "transpose":
        a, b = _argument(node, 1, "dim0"), _argument(node, 2, "dim1")
        labels[a], labels[b] = labels[b], labels[a]
        return labels
    if name == "permute":
        return [labels[d] for d in _argument(node, 1, "dims")]
    return self.give_up(node, "moved dimensions")


@_rule("squeeze")
def _squeeze(self: Propagation, node: fx.Node) -> Labels:
    sizes = _shape(node.args[0])
    dims = _argument(node, 1, "dim", range(len(sizes)))
    dims = [dims] if isinstance(dims, int) else list(dims)
    gone = {d % len(sizes) for d in dims if sizes[d] == 1}
    return [x for n, x in enumerate(self.of(node.args[0])) if n not in gone]


@_rule("unsqueeze")
def _unsqueeze(self: Propagation, node: fx.Node) -> Labels:
    labels = list(self.of(node.args[0]))
    labels.insert(_argument(node, 1, "dim") % (len(labels) + 1), unit())
    return labels


@_rule("expand")
def _expand(self: Propagation, node: fx.Node) -> Labels:
    labels, shape = self.of(node.args[0]), _shape(node)
    old = [1] * (len(shape) - len(labels)) + _shape(node.args[0])
    labels = [unit()] * (len(shape) - len(labels)) + labels
    return [x if a == b else fresh(b) for x, a, b in zip(labels, old, shape, strict=True)]


@_rule("repeat")
def _repeat(self: Propagation, node: fx.Node) -> Labels:
    repeats: Any = node.args[1]
    labels = [unit()] * (len(repeats) - len(self.of(node.args[0]))) + self.of(node.args[0])
    return [product([fresh(r), x]) for r, x in zip(repeats, labels, strict=True)]


@_rule("view", "reshape", "_unsafe_view", "flatten", "unflatten")
def _view(self: Propagation, node: fx.Node) -> Labels:
    shape, labels = _shape(node), self.of(node.args[0])
    chosen = _index_dimension(node, shape)
    families = [x for x in labels if isinstance(x, Family)]
    if families:  # q, k and v of a fused tensor, viewed alike
        index = families[0].index
        if all(f.index is index for f in families) and index in labels:
            return _view_of_family(node, labels, shape, index)
        labels = [collapse(x) for x in labels]
    if chosen is not None:
        return _view_of_fused(node, labels, shape, chosen)
    return regroup([collapse(x) for x in labels], shape, where(node))


def _view_of_fused(node: fx.Node, labels: Labels, shape: list[int], place: int) -> Labels:
    """A view whose new dimension is indexed afterwards: dimensions behind it have a label for each index."""
    labels, name = [collapse(x) for x in labels], where(node)
    old = _shape(node.args[0])
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
    index = fresh(shape[place], "pinned", f"an index at {name}")
    inner = [regroup([piece], shape[place + 1 : behind], name) for piece in pieces]
    families = [Family(index, list(members)) for members in zip(*inner, strict=True)]
    return [*labels[:place], index, *families, *labels[place + 1 :]]


def _view_of_family(node: fx.Node, labels: Labels, shape: list[int], index: Label) -> Labels:
    """A view of a tensor that holds a family, if it keeps the indexed dimension: the view of each member."""
    place = labels.index(index)
    before, after = math.prod(_shape(node.args[0])[:place]), 0
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
    """A small dimension that the view makes and that later steps index: the one over q, k and v."""
    old = _shape(node.args[0])
    for place, size in enumerate(shape):
        if 1 < size <= 4 and shape != old and size not in old and _is_indexed(node, place):
            return place
    return None


def _is_indexed(node: fx.Node, place: int, depth: int = 0) -> bool:
    ndim = len(_shape(node))
    for user in node.users:
        name = _operation(user) if user.op == "call_function" else ""
        args: Any = user.args
        if name in ("select", "unbind", "slice") and (args[1] if len(args) > 1 else 0) % ndim == place:
            return name != "slice" or _shape(user)[place] == 1
        moved = _follow(user, name, place, ndim)
        if moved is not None and depth < 12 and _is_indexed(user, moved, depth + 1):
            return True
    return False


def _follow(user: fx.Node, name: str, place: int, ndim: int) -> int | None:
    """Where a dimension stands after a step that moves dimensions."""
    args: Any = user.args
    if name in ("clone", "contiguous", "alias"):
        return place
    if name == "permute":
        return [d % ndim for d in args[1]].index(place)
    if name == "transpose":
        a, b = args[1] % ndim, args[2] % ndim
        return b if place == a else a if place == b else place
    if name == "unsqueeze":
        return place + (args[1] % (ndim + 1) <= place)
    if name == "squeeze":
        dims = [args[1]] if isinstance(args[1], int) else args[1]
        return place - sum(d % ndim < place for d in dims)
    return None


# Parts of dimensions.


@_rule("select")
def _select(self: Propagation, node: fx.Node) -> Labels:
    labels = list(self.of(node.args[0]))
    index = labels.pop(_argument(node, 1, "dim") % len(labels))
    return _take(labels, index, _argument(node, 2, "index"), where(node))


def _take(labels: Labels, index: Any, position: int, name: str) -> Labels:
    """The labels of the other dimensions at one position of a dimension."""
    if not any(isinstance(x, Family) for x in labels):
        pin(collapse(index), f"single positions are taken at {name}")
    return [x.members[position] if isinstance(x, Family) and x.index is index else collapse(x) for x in labels]


@_rule("unbind")
def _unbind(self: Propagation, node: fx.Node) -> list[Labels]:
    labels = list(self.of(node.args[0]))
    index = labels.pop(_argument(node, 1, "dim", 0))
    return [_take(labels, index, n, where(node)) for n in range(len(node.meta["val"]))]


def _cut_at(self: Propagation, node: fx.Node, dimension: int, cuts: Sequence[int]) -> list[Label]:
    label = collapse(self.of(node.args[0])[dimension])
    pieces = cut(label, cuts)
    if pieces is None:
        pin(label, f"cut at {where(node)}")
        bounds = [0, *(c for c in cuts if 0 < c < label.size), label.size]
        return [fresh(b - a, "pinned") for a, b in itertools.pairwise(bounds)]
    return pieces


@_rule("slice")
def _slice(self: Propagation, node: fx.Node) -> Labels:
    labels = list(self.of(node.args[0]))
    dimension = _argument(node, 1, "dim", 0) % len(labels)
    size, new = _shape(node.args[0])[dimension], _shape(node)[dimension]
    start, step = _argument(node, 2, "start", 0) or 0, _argument(node, 4, "step", 1)
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


@_rule("split", "split_with_sizes", "chunk")
def _split(self: Propagation, node: fx.Node) -> list[Labels]:
    labels = self.of(node.args[0])
    dimension = _argument(node, 2, "dim", 0) % len(labels)
    sizes = [int(v.shape[dimension]) for v in node.meta["val"]]
    cuts = [sum(sizes[:n]) for n in range(1, len(sizes))]
    pieces = _cut_at(self, node, dimension, cuts)
    return [[*labels[:dimension], piece, *labels[dimension + 1 :]] for piece in pieces]


@_rule("cat")
def _cat(self: Propagation, node: fx.Node) -> Labels:
    parts: Any = node.args[0]
    parts = [p for p in parts if _shape(p) != [0]]
    dimension = _argument(node, 1, "dim", 0) % len(_shape(node))
    first = list(self.of(parts[0]))
    for part in parts[1:]:
        for n, (x, y) in enumerate(zip(first, self.of(part), strict=True)):
            if n != dimension:
                unify(x, y, where(node))
    first[dimension] = total(self.of(p)[dimension] for p in parts)
    return first


@_rule("constant_pad_nd")
def _pad(self: Propagation, node: fx.Node) -> Labels:
    labels = list(self.of(node.args[0]))
    pads: Any = node.args[1]
    for n in range(len(pads) // 2):
        before, after = pads[2 * n], pads[2 * n + 1]
        if before < 0 or after < 0:
            return self.give_up(node, "negative padding")
        labels[-1 - n] = total([fresh(before), labels[-1 - n], fresh(after)])
    return labels


# Neurons meet.


@_rule("where", "maximum", "minimum", "masked_fill", "lerp", "addcmul", "addcdiv", "bitwise_and", "logical_and")
def _pointwise(self: Propagation, node: fx.Node) -> Labels:
    shape = _shape(node)
    result = [unit() for _ in shape]
    for source in node.all_input_nodes:
        if not isinstance(source.meta.get("val"), Tensor):
            continue
        labels = [collapse(x) for x in self.of(source)]
        for n, label in enumerate(labels, start=len(shape) - len(labels)):
            if label.size == 1:
                continue
            if result[n].size == 1:
                result[n] = label
            else:
                unify(result[n], label, where(node))
    return [x if x.size == n else fresh(n) for x, n in zip(result, shape, strict=True)]


@_rule("mm", "bmm", "addmm", "baddbmm", "mv", "dot", "linear")
def _matmul(self: Propagation, node: fx.Node) -> Labels:
    name = _operation(node)
    *added, left, right = node.args if name not in ("linear",) else [node.args[0], node.args[1]]
    a, b = self.of(left), self.of(right)
    if name == "linear":
        unify(a[-1], b[-1], where(node))
        result = [*a[:-1], b[0]]
        added = [x for x in node.args[2:] if isinstance(x, fx.Node)]
    elif name in ("mv", "dot"):
        unify(a[-1], b[0], where(node))
        return a[:-1]
    else:
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


@_rule("scaled_dot_product_attention")
def _attention(self: Propagation, node: fx.Node) -> Labels:
    query, key, value = (self.of(n) for n in node.args[:3])
    mask = _argument(node, 3, "attn_mask")
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
    if _argument(node, 5, "is_causal", False):
        pin(query[-2], f"causal attention at {name}")
        pin(key[-2], f"causal attention at {name}")
    return [*query[:-1], value[-1]]


@_rule("convolution")
def _convolution(self: Propagation, node: fx.Node) -> Labels:
    x, weight = self.of(node.args[0]), self.of(node.args[1])
    name, groups, is_transposed = where(node), _argument(node, 8, "groups"), _argument(node, 6, "transposed")
    for position in (*weight[2:], *x[2:]):
        pin(position, f"positions at {name}")
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
    bias = _argument(node, 2, "bias")
    if isinstance(bias, fx.Node):
        unify(self.of(bias)[0], leaves, name)
    return [x[0], leaves, *[fresh(n, "pinned", f"positions at {name}") for n in _shape(node)[2:]]]


# Norms.


def _unify_all(self: Propagation, label: Label, others: Sequence[Any], name: str) -> None:
    for other in others:
        if isinstance(other, fx.Node):
            unify(self.of(other)[0], label, name)


@_rule("_native_batch_norm_legit_no_training", "_native_batch_norm_legit", "native_batch_norm", "batch_norm")
def _batch_norm(self: Propagation, node: fx.Node) -> list[Any]:
    labels = self.of(node.args[0])
    _unify_all(self, labels[1], node.args[1:5], where(node))
    return [labels, *_like(node.meta["val"][1:], lambda n: fresh(n))]


@_rule("native_layer_norm", "rms_norm", "_fused_rms_norm")
def _layer_norm(self: Propagation, node: fx.Node) -> Any:
    labels, count = self.of(node.args[0]), len(node.args[1])  # pyright: ignore[reportArgumentType]
    for extra in node.args[2:4]:
        if isinstance(extra, fx.Node):
            for x, y in zip(self.of(extra), labels[-count:], strict=True):
                unify(x, y, where(node))
    value = node.meta["val"]
    return [labels, *_like(value[1:], lambda n: fresh(n))] if isinstance(value, (tuple, list)) else labels


@_rule("native_group_norm")
def _group_norm(self: Propagation, node: fx.Node) -> Any:
    labels, groups = self.of(node.args[0]), int(node.args[6])  # pyright: ignore[reportArgumentType]
    _unify_all(self, labels[1], node.args[1:3], where(node))
    if split_product(labels[1], groups) is None:
        pin(labels[1], f"groups at {where(node)}")
    return [labels, *_like(node.meta["val"][1:], lambda n: fresh(n))]


# Dimensions vanish, or stay in place.


@_rule(
    "sum", "mean", "amax", "amin", "prod", "var", "std", "any", "all", "logsumexp", "max", "min", "linalg_vector_norm"
)
@_rule("argmax", "argmin", "var_mean")
def _reduce(self: Propagation, node: fx.Node) -> Any:
    labels, name = self.of(node.args[0]), _operation(node)
    dims = _argument(node, 2 if name == "linalg_vector_norm" else 1, "dim")
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


@_rule("max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool1d", "avg_pool2d", "avg_pool3d")
@_rule("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool1d", "adaptive_max_pool2d", "max_pool2d")
@_rule("upsample_nearest2d", "upsample_bilinear2d", "upsample_nearest1d", "upsample_bicubic2d", "pixel_shuffle")
@_rule("reflection_pad1d", "reflection_pad2d", "replication_pad2d")
def _pool(self: Propagation, node: fx.Node) -> Any:
    name = _operation(node)
    if name == "pixel_shuffle":
        return self.give_up(node, "channels become positions")
    labels = self.of(node.args[0])
    spatial = 3 if "3d" in name else 1 if "1d" in name else 2
    for label in labels[-spatial:]:
        pin(label, f"positions at {where(node)}")

    def one(value: Tensor) -> Labels:
        return [*labels[:-spatial], *[fresh(int(n), "pinned", "positions") for n in value.shape[-spatial:]]]

    value = node.meta["val"]
    return [one(v) for v in value] if isinstance(value, (tuple, list)) else one(value)


@_rule("cumsum", "flip", "roll", "sort", "topk", "cumprod", "tril", "triu")
def _ordered(self: Propagation, node: fx.Node) -> Any:
    labels, name = self.of(node.args[0]), _operation(node)
    if name in ("topk", "sort"):
        return self.give_up(node, "positions are compared")
    dims = node.args[2 if name == "roll" else 1] if len(node.args) > 1 else [-1]
    dims = [-2, -1] if name in ("tril", "triu") else [dims] if isinstance(dims, int) else dims
    for d in dims:  # pyright: ignore[reportGeneralTypeIssues, reportOptionalIterable]
        pin(labels[d], f"the order of positions counts at {where(node)}")
    return labels


# Look-ups.


@_rule("embedding")
def _embedding(self: Propagation, node: fx.Node) -> Labels:
    table, places = self.of(node.args[0]), self.of(node.args[1])
    pin(table[0], f"rows are looked up at {where(node)}")
    return [*places, table[1]]


@_rule("index_select")
def _index_select(self: Propagation, node: fx.Node) -> Labels:
    labels = list(self.of(node.args[0]))
    dimension = _argument(node, 1, "dim")
    pin(labels[dimension], f"positions are looked up at {where(node)}")
    labels[dimension] = self.of(node.args[2])[0]
    return labels


@_rule("index")
def _index(self: Propagation, node: fx.Node) -> Any:
    labels = list(self.of(node.args[0]))
    indices: Any = node.args[1]
    used = [n for n, i in enumerate(indices) if i is not None]
    for n in used:
        pin(labels[n], f"positions are looked up at {where(node)}")
    if len(used) != 1 or indices[used[0]].meta["val"].dtype == torch.bool:
        new, kept = _shape(node), [x for n, x in enumerate(labels) if n not in used]
        count = len(new) - len(kept)
        if used == list(range(used[0], used[-1] + 1)) and all(
            i is None or i.meta["val"].dtype != torch.bool for i in indices
        ):
            middle = [fresh(n, "pinned", "looked up") for n in new[used[0] : used[0] + count]]
            return [*labels[: used[0]], *middle, *labels[used[-1] + 1 :]]
        return self.give_up(node, "several look-ups at once")
    return [*labels[: used[0]], *self.of(indices[used[0]]), *labels[used[0] + 1 :]]
