"""The feed-forward of a block in an order that suits the caches of a CPU.

It computes exactly what `FeedForward` writes down plainly. But there a batch fills five buffers four times as wide
as the features, and on a CPU a large fresh buffer costs more than the arithmetic that fills it. Here one network is
taken at a time, whose rows of a layer are contiguous; only the values before the activation are kept, and the
activation is computed again in the backward pass. As an operator of its own it stays whole under `torch.compile`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

# Axes: B input networks, N packed entries, C channels, E hidden channels.
# Parameters are a flat list: W1 (E, C), b1 (E), W2 (C, E), b2 (C) of the first group, then of the next.

_MANY_ROWS = 256
"""Groups with fewer entries are taken for the whole batch: one copy instead of many small products."""


@torch.library.custom_op("neuralfunctionals::feed_forward", mutates_args=())
def _feed_forward(x: Tensor, sizes: list[int], parameters: list[Tensor]) -> tuple[Tensor, Tensor]:
    output, hidden = torch.empty_like(x), _new_hidden(x, parameters)
    for (w1, b1, w2, b2), (rows, results), kept in _batches(sizes, parameters, [x, output], hidden):
        torch.addmm(b1, rows, w1.T, out=kept)
        _write(results, torch.addmm(b2, F.gelu(kept), w2.T))
    return output, hidden


@torch.library.custom_op("neuralfunctionals::feed_forward_backward", mutates_args=())
def _feed_forward_backward(
    gradient: Tensor, x: Tensor, hidden: Tensor, sizes: list[int], parameters: list[Tensor]
) -> list[Tensor]:
    gradient = gradient.contiguous()
    x_gradient = torch.empty_like(x)
    parameter_gradients = {id(p): torch.zeros_like(p) for p in parameters}
    for own, (rows, y_rows, results), kept in _batches(sizes, parameters, [x, gradient, x_gradient], hidden):
        w1, _, w2, _ = own
        w1_gradient, b1_gradient, w2_gradient, b2_gradient = (parameter_gradients[id(p)] for p in own)
        w2_gradient.addmm_(y_rows.T, F.gelu(kept))
        b2_gradient += y_rows.sum(0)
        before = torch.ops.aten.gelu_backward(y_rows @ w2, kept)
        w1_gradient.addmm_(before.T, rows)
        b1_gradient += before.sum(0)
        _write(results, before @ w1)
    return [x_gradient, *parameter_gradients.values()]


def _batches(
    sizes: list[int], parameters: list[Tensor], tensors: list[Tensor], hidden: Tensor
) -> Iterator[tuple[list[Tensor], list[Tensor], Tensor]]:
    """Parameters, the rows of each tensor that they act on, and the place of these rows in the hidden values."""
    groups = zip(*(t.split(sizes, dim=1) for t in tensors), strict=True)
    start = 0
    for n, group in enumerate(groups):
        own = parameters[4 * n : 4 * n + 4]
        parts = list(zip(*group, strict=True)) if sizes[n] >= _MANY_ROWS else [group]
        for part in parts:
            # The last tensor is written to, so that it is not flattened, which may copy.
            rows = [t.reshape(-1, t.shape[-1]) for t in part[:-1]]
            yield own, [*rows, part[-1]], hidden[start : start + len(rows[0])]
            start += len(rows[0])


def _write(results: Tensor, values: Tensor) -> None:
    results.copy_(values.view_as(results))


def _new_hidden(x: Tensor, parameters: list[Tensor]) -> Tensor:
    return x.new_empty(x.shape[0] * x.shape[1], parameters[0].shape[0])


@_feed_forward.register_fake
def _(x: Tensor, sizes: list[int], parameters: list[Tensor]) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), _new_hidden(x, parameters)


@_feed_forward_backward.register_fake
def _(gradient: Tensor, x: Tensor, hidden: Tensor, sizes: list[int], parameters: list[Tensor]) -> list[Tensor]:
    return [torch.empty_like(x), *(torch.empty_like(p) for p in parameters)]


def _keep(ctx, inputs, output) -> None:
    x, ctx.sizes, parameters = inputs
    ctx.save_for_backward(x, output[1], *parameters)


def _differentiate(ctx, gradient: Tensor, _):
    x, hidden, *parameters = ctx.saved_tensors
    x_gradient, *rest = _feed_forward_backward(gradient, x, hidden, ctx.sizes, parameters)
    return x_gradient, None, rest


_feed_forward.register_autograd(_differentiate, setup_context=_keep)


def feed_forward(
    x: Float[Tensor, "B N C"], sizes: list[int], parameters: list[Tensor]
) -> Float[Tensor, "B N C"]:
    """`W2 gelu(W1 x + b1) + b2`, each group of entries with its own parameters.

    Args:
        x: Packed features.
        sizes: Entries of each group, in packed order.
        parameters: `W1, b1, W2, b2` of each group, one after the other.
    """
    return _feed_forward(x.contiguous(), sizes, parameters)[0]
