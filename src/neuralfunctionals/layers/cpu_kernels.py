"""The two heavy steps of a block in an order that suits the caches of a CPU: feed-forward and axis attention.

They compute exactly what `FeedForward` and `WeightSpaceSelfAttention` write down plainly. But there a batch fills
many buffers larger than the features, and on a CPU a large fresh buffer costs more than the arithmetic that fills
it. Here few networks are taken at a time; little is kept for the backward pass, and the rest is computed or
gathered again. As operators of their own they stay whole under `torch.compile`; they can be differentiated once.
This is what runs where the compiled `cpu_block` does not: without a compiler, with dropout, in double precision.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from neuralfunctionals.weight_space import Group, NetworkSpec

# Axes: B input networks, N packed entries, C channels, E hidden channels; H heads, c channels of a head,
# T vectors that meet at one layer of neurons, n neurons of that layer.


# Feed-forward. Parameters are a flat list: W1 (E, C), b1 (E), W2 (C, E), b2 (C) of the first group, then of the next.

_MANY_ROWS = 256
"""Groups with fewer entries are taken for the whole batch: one copy instead of many small products."""


@torch.library.custom_op("neuralfunctionals::feed_forward", mutates_args=())
def _feed_forward(x: Tensor, sizes: list[int], parameters: list[Tensor], mask: Tensor) -> tuple[Tensor, Tensor]:
    output, hidden = torch.empty_like(x), _new_hidden(x, parameters)
    for n, (rows, results), here in _batches(sizes, [x, output]):
        w1, b1, w2, b2 = _of_group(parameters, n)
        torch.addmm(b1, rows, w1.T, out=hidden[here])
        _write(results, torch.addmm(b2, _activate(hidden[here], mask[here]), w2.T))
    return output, hidden


@torch.library.custom_op("neuralfunctionals::feed_forward_backward", mutates_args=())
def _feed_forward_backward(
    gradient: Tensor, x: Tensor, hidden: Tensor, sizes: list[int], parameters: list[Tensor], mask: Tensor
) -> list[Tensor]:
    gradient = gradient.contiguous()
    x_gradient = torch.empty_like(x)
    parameter_gradients = [torch.zeros_like(p) for p in parameters]
    for n, (rows, y_rows, results), here in _batches(sizes, [x, gradient, x_gradient]):
        w1, _, w2, _ = _of_group(parameters, n)
        w1_gradient, b1_gradient, w2_gradient, b2_gradient = _of_group(parameter_gradients, n)
        w2_gradient.addmm_(y_rows.T, _activate(hidden[here], mask[here]))
        b2_gradient += y_rows.sum(0)
        after = y_rows @ w2
        before = torch.ops.aten.gelu_backward(after * mask[here] if len(mask) else after, hidden[here])
        w1_gradient.addmm_(before.T, rows)
        b1_gradient += before.sum(0)
        _write(results, before @ w1)
    return [x_gradient, *parameter_gradients]


def _of_group(parameters: list[Tensor], n: int) -> list[Tensor]:
    return parameters[4 * n : 4 * n + 4]


def _batches(sizes: list[int], tensors: list[Tensor]) -> Iterator[tuple[int, list[Tensor], slice]]:
    """A group, some of its rows in each tensor, and where these rows stand in the hidden values."""
    groups = zip(*(t.split(sizes, dim=1) for t in tensors), strict=True)
    start = 0
    for n, group in enumerate(groups):
        parts = list(zip(*group, strict=True)) if sizes[n] >= _MANY_ROWS else [group]
        for part in parts:
            # The last tensor is written to, so that it is not flattened, which may copy.
            rows = [t.reshape(-1, t.shape[-1]) for t in part[:-1]]
            yield n, [*rows, part[-1]], slice(start, start + len(rows[0]))
            start += len(rows[0])


def _activate(hidden: Tensor, mask: Tensor) -> Tensor:
    activation = F.gelu(hidden)
    return activation.mul_(mask) if len(mask) else activation


def _write(results: Tensor, values: Tensor) -> None:
    results.copy_(values.view_as(results))


def _new_hidden(x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    return x.new_empty(x.shape[0] * x.shape[1], parameters[0].shape[0])


@_feed_forward.register_fake
def _(x: Tensor, sizes: list[int], parameters: list[Tensor], mask: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), _new_hidden(x, parameters)


@_feed_forward_backward.register_fake
def _(
    gradient: Tensor, x: Tensor, hidden: Tensor, sizes: list[int], parameters: list[Tensor], mask: Tensor
) -> list[Tensor]:
    return [torch.empty_like(x), *(torch.empty_like(p) for p in parameters)]


def _keep_feed_forward(ctx, inputs, output) -> None:
    x, ctx.sizes, parameters, mask = inputs
    ctx.save_for_backward(x, output[1], mask, *parameters)


def _differentiate_feed_forward(ctx, gradient: Tensor, _):
    x, hidden, mask, *parameters = ctx.saved_tensors
    x_gradient, *rest = _feed_forward_backward(gradient, x, hidden, ctx.sizes, parameters, mask)
    return x_gradient, None, rest, None


_feed_forward.register_autograd(_differentiate_feed_forward, setup_context=_keep_feed_forward)


def feed_forward(
    x: Float[Tensor, "B N C"], sizes: list[int], parameters: Sequence[Tensor], dropout: float = 0.0
) -> Float[Tensor, "B N C"]:
    """`W2 dropout(gelu(W1 x + b1)) + b2`, each group of entries with its own parameters.

    Args:
        x: Packed features.
        sizes: Entries of each group, in packed order.
        parameters: `W1, b1, W2, b2` of each group, one after the other.
        dropout: Probability of dropping a hidden value.
    """
    mask = _dropout_mask(_new_hidden(x, parameters), dropout) if dropout else x.new_empty(0)
    return _feed_forward(x.contiguous(), sizes, list(parameters), mask)[0]


def _dropout_mask(like: Tensor, dropout: float) -> Tensor:
    return F.dropout(torch.ones_like(like), dropout)


_CHUNK_VALUES = 500_000
"""Queries, keys and values that axis attention takes at a time: about two megabytes."""

# Axis attention. Features are seen as rows of one head's channels: row `entry * H + head` of (B, N * H, c), and
# row `(entry * 3 + s) * H + head` of (B, N * 3 * H, c) for query, key and value, s = 0, 1, 2.


@dataclass(frozen=True, eq=False)
class AxisPlan:
    """Where the vectors of each layer of neurons stand among the rows, and where their results go."""

    num_heads: int
    num_neurons: list[int]
    """Neurons of each axis."""
    rows: list[Tensor]
    """For each axis the rows of its vectors, in the order (H, T, n)."""
    qkv_rows: list[Tensor]
    """For each axis the rows of its queries, then of its keys, then of its values, in the same order."""
    merge: list[Tensor]
    """For each row of the output, its one or two places among the results of all axes; the last place is zero."""
    merge_qkv: list[Tensor]
    """The same for the gradients of queries, keys and values."""

    def num_vectors(self) -> list[int]:
        """How many vectors meet at each axis."""
        return [len(r) // (self.num_heads * n) for r, n in zip(self.rows, self.num_neurons, strict=True)]

    def tensors(self) -> list[Tensor]:
        """All that an operator can take, in one list."""
        return [*self.rows, *self.qkv_rows, *self.merge, *self.merge_qkv]

    @classmethod
    def from_tensors(cls, tensors: list[Tensor], num_heads: int, num_neurons: list[int]) -> "AxisPlan":
        """The inverse of `tensors`."""
        a = len(num_neurons)
        return cls(num_heads, num_neurons, tensors[:a], tensors[a : 4 * a], tensors[4 * a : -2], tensors[-2:])

    @classmethod
    def of(cls, spec: NetworkSpec, num_heads: int) -> "AxisPlan":
        """The plan for networks without kernels."""
        rows, qkv_rows, num_neurons = [], [], []
        heads = torch.arange(num_heads, device="cpu")[:, None, None]
        for vectors in axis_vectors(spec):
            rows.append((vectors * num_heads + heads).flatten())
            qkv_rows += [((vectors * 3 + s) * num_heads + heads).flatten() for s in range(3)]
            num_neurons.append(vectors.shape[1])
        return cls(num_heads, num_neurons, rows, qkv_rows, _two_places(rows), _two_places(qkv_rows))


def axis_vectors(spec: NetworkSpec) -> list[Int[Tensor, "_T _n"]]:
    """For each layer of neurons the entries of the vectors that meet there."""
    return [
        torch.cat([_vectors_over(axis, g) for g in spec.groups if axis in g.axes])
        for axis in range(spec.num_layers + 1)
    ]


def _vectors_over(axis: int, group: Group) -> Int[Tensor, "T n"]:
    """Entries of a group: columns of the weights before the axis, rows of those after it, or the bias."""
    # On the CPU also where a model is made without memory, on the meta device.
    entries = torch.arange(group.start, group.stop, device="cpu").view(group.shape)
    if group.kind == "bias":
        return entries[None]
    return entries.T if group.layer == axis else entries


def _two_places(rows: list[Tensor]) -> list[Tensor]:
    """For each row the places, one or two, where it occurs; for want of a second, the place behind the last."""
    every = torch.cat(rows)
    order = every.argsort(stable=True)
    counts = every.bincount()
    starts = counts.cumsum(0) - counts
    second = torch.where(counts == 2, order[(starts + 1).clamp(max=len(order) - 1)], len(order))
    return [order[starts], second]


@torch.library.custom_op("neuralfunctionals::axis_attention", mutates_args=())
def _axis_attention(
    qkv: Tensor, plan_tensors: list[Tensor], num_heads: int, num_neurons: list[int], masks: list[Tensor]
) -> list[Tensor]:
    plan = AxisPlan.from_tensors(plan_tensors, num_heads, num_neurons)
    output, *attention = _new_results(qkv, plan)
    for here in _chunks(qkv):
        results = []
        for axis in range(len(num_neurons)):
            q, k, v = _gather_qkv(qkv[here], plan, axis)
            a = torch.bmm(q, k.mT).mul_(q.shape[-1] ** -0.5).softmax(-1)
            attention[axis][here] = a.view_as(attention[axis][here])
            results.append(torch.bmm(_masked(a, masks, axis, here), v))
        _merge(results, plan.merge, _lines(output[here], num_heads))
    return [output, *attention]


@torch.library.custom_op("neuralfunctionals::axis_attention_backward", mutates_args=())
def _axis_attention_backward(
    gradient: Tensor,
    qkv: Tensor,
    plan_tensors: list[Tensor],
    num_heads: int,
    num_neurons: list[int],
    attention: list[Tensor],
    masks: list[Tensor],
) -> Tensor:
    plan = AxisPlan.from_tensors(plan_tensors, num_heads, num_neurons)
    gradient, qkv_gradient = gradient.contiguous(), torch.empty_like(qkv)
    for here in _chunks(qkv):
        results = []
        for axis in range(len(num_neurons)):
            q, k, v = _gather_qkv(qkv[here], plan, axis)
            y = _lines(gradient[here], num_heads).index_select(1, plan.rows[axis]).view_as(q)
            a = attention[axis][here].flatten(0, 1)
            a_gradient = _masked(torch.bmm(y, v.mT), masks, axis, here)
            scores = torch.ops.aten._softmax_backward_data(a_gradient, a, -1, a.dtype).mul_(q.shape[-1] ** -0.5)
            results += [torch.bmm(scores, k), torch.bmm(scores.mT, q), torch.bmm(_masked(a, masks, axis, here).mT, y)]
        _merge(results, plan.merge_qkv, _lines(qkv_gradient[here], 3 * num_heads))
    return qkv_gradient


def _chunks(qkv: Tensor) -> Iterator[slice]:
    """As many networks at a time as keep the gathered vectors near the core."""
    size = max(1, round(_CHUNK_VALUES / (qkv.shape[1] * qkv.shape[2])))
    return (slice(start, start + size) for start in range(0, len(qkv), size))


def _lines(x: Float[Tensor, "B N D"], count: int) -> Float[Tensor, "B NH c"]:
    return x.view(x.shape[0], x.shape[1] * count, x.shape[2] // count)


def _gather_qkv(qkv: Float[Tensor, "B N D"], plan: AxisPlan, axis: int) -> list[Float[Tensor, "BH T nc"]]:
    lines = _lines(qkv, 3 * plan.num_heads)
    shape = (len(qkv) * plan.num_heads, -1, plan.num_neurons[axis] * lines.shape[-1])
    return [lines.index_select(1, rows).view(shape) for rows in plan.qkv_rows[3 * axis : 3 * axis + 3]]


def _masked(a: Float[Tensor, "BH T T"], masks: list[Tensor], axis: int, here: slice) -> Float[Tensor, "BH T T"]:
    return a * masks[axis][here].flatten(0, 1) if masks else a


def _merge(results: list[Float[Tensor, "BH _T _nc"]], merge: list[Tensor], target: Float[Tensor, "B NH c"]) -> None:
    """Writes to each row the sum of what the axes have for it."""
    batch, _, channels = target.shape
    every = [r.view(batch, -1, channels) for r in results]
    every = torch.cat([*every, target.new_zeros(batch, 1, channels)], dim=1)
    torch.add(every.index_select(1, merge[0]), every.index_select(1, merge[1]), out=target)


def _new_results(qkv: Tensor, plan: AxisPlan) -> list[Tensor]:
    output = qkv.new_empty(*qkv.shape[:2], qkv.shape[2] // 3)
    return [output, *(qkv.new_empty(len(qkv), plan.num_heads, t, t) for t in plan.num_vectors())]


@_axis_attention.register_fake
def _(
    qkv: Tensor, plan_tensors: list[Tensor], num_heads: int, num_neurons: list[int], masks: list[Tensor]
) -> list[Tensor]:
    return _new_results(qkv, AxisPlan.from_tensors(plan_tensors, num_heads, num_neurons))


@_axis_attention_backward.register_fake
def _(
    gradient: Tensor,
    qkv: Tensor,
    plan_tensors: list[Tensor],
    num_heads: int,
    num_neurons: list[int],
    attention: list[Tensor],
    masks: list[Tensor],
) -> Tensor:
    return torch.empty_like(qkv)


def _keep_axis_attention(ctx, inputs, output) -> None:
    qkv, plan_tensors, ctx.num_heads, ctx.num_neurons, masks = inputs
    ctx.lengths = [len(plan_tensors), len(output) - 1, len(masks)]
    ctx.save_for_backward(qkv, *plan_tensors, *output[1:], *masks)


def _differentiate_axis_attention(ctx, gradients: list[Tensor]):
    qkv, *rest = ctx.saved_tensors
    plan, attention, masks = (rest[sum(ctx.lengths[:n]) : sum(ctx.lengths[: n + 1])] for n in range(3))
    gradient = _axis_attention_backward(gradients[0], qkv, plan, ctx.num_heads, ctx.num_neurons, attention, masks)
    return gradient, [None] * ctx.lengths[0], None, None, [None] * ctx.lengths[2]


_axis_attention.register_autograd(_differentiate_axis_attention, setup_context=_keep_axis_attention)


def axis_attention(qkv: Float[Tensor, "B N D"], plan: AxisPlan, dropout: float = 0.0) -> Float[Tensor, "B N C"]:
    """The first two terms of weight-space self-attention, for all layers of neurons.

    Args:
        qkv: Queries, keys and values of all entries, joined along the channels.
        plan: The plan of the networks.
        dropout: Probability of dropping an entry of the attention matrices.
    """
    sizes = plan.num_vectors() if dropout else []
    masks = [_dropout_mask(qkv.new_empty(len(qkv), plan.num_heads, t, t), dropout) for t in sizes]
    return _axis_attention(qkv.contiguous(), plan.tensors(), plan.num_heads, plan.num_neurons, masks)[0]
