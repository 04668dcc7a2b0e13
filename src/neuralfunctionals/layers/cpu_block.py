"""Calls the compiled halves of a block, `cpu_block.cpp`, where the machine has a C++ compiler with OpenMP.

Each half is an operator with its gradient: `x + MLP(norm(x))` and `x + attention(norm(x))`, in float32. They can be
differentiated once.
"""

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from neuralfunctionals.native import load_library

# Axes: B input networks, N packed entries, C channels, D = 3 C; T vectors that meet at one layer of neurons,
# n neurons of that layer; S scales of a norm, one or as many as groups.

_PANEL = 16
"""Channels are computed in such portions."""
_MANY_VALUES = 1 << 16
"""Smaller inputs are not worth a compiler's run of some seconds."""


def suits(x: Float[Tensor, "B N C"], parameters: Sequence[Tensor]) -> bool:
    """Whether the compiled operators can be used here, for this input, and are worth it."""
    return fits(x, parameters) and is_available()


def fits(x: Tensor, parameters: Sequence[Tensor], others: Sequence[Tensor] = ()) -> bool:
    """Whether a compiled operator can take these tensors, and the first is large enough to be worth it."""
    return (
        all(t.device.type == "cpu" and t.dtype == torch.float32 for t in (x, *parameters, *others))
        and not torch.is_autocast_enabled("cpu")
        and all(size % _PANEL == 0 for p in parameters for size in p.shape[-1:])
        and x.numel() >= _MANY_VALUES
    )


@torch.compiler.assume_constant_result
def is_available() -> bool:
    """Whether the compiled operators can be used here; builds them on the first call."""
    return _library() is not None


@functools.cache
def _library() -> ctypes.CDLL | None:
    return load_library(Path(__file__).with_name("cpu_block.cpp"), "-fopenmp")


def _call(name: str, *arguments: int | Sequence[int] | Sequence[Tensor] | Tensor) -> None:
    call(_library(), name, *arguments)


def call(library: ctypes.CDLL | None, name: str, *arguments: int | Sequence[int] | Sequence[Tensor] | Tensor) -> None:
    """Calls a function of a compiled library; tensors must be contiguous."""
    assert library is not None
    if getattr(library, name)(*map(_as_c, arguments)):
        raise MemoryError("Not enough memory for the scratch space of a layer.")


def _as_c(
    argument: int | Sequence[int] | Sequence[Tensor] | Tensor,
) -> "ctypes.c_int64 | ctypes.Array | ctypes.c_void_p":
    if isinstance(argument, int):
        return ctypes.c_int64(argument)
    if isinstance(argument, Tensor):
        assert argument.is_contiguous()
        return ctypes.c_void_p(argument.data_ptr())
    if argument and isinstance(argument[0], Tensor):
        assert all(t.is_contiguous() for t in argument)  # pyright: ignore
        return (ctypes.c_void_p * len(argument))(*(t.data_ptr() for t in argument))  # pyright: ignore
    return (ctypes.c_int64 * len(argument))(*argument)  # pyright: ignore


# Feed-forward. Parameters are a flat list: W1 (E, C), b1 (E), W2 (C, E), b2 (C) of the first group, then of the next.


@torch.library.custom_op("neuralfunctionals::residual_feed_forward", mutates_args=())
def _feed_forward(x: Tensor, scale: Tensor, shift: Tensor, parameters: list[Tensor], sizes: list[int]) -> Tensor:
    y = torch.empty_like(x)
    _call("feed_forward", *_feed_forward_arguments(x, scale, shift, parameters, sizes), y)
    return y


@torch.library.custom_op("neuralfunctionals::residual_feed_forward_backward", mutates_args=())
def _feed_forward_backward(
    y_gradient: Tensor, x: Tensor, scale: Tensor, shift: Tensor, parameters: list[Tensor], sizes: list[int]
) -> list[Tensor]:
    x_gradient = torch.empty_like(x)
    gradients = [torch.zeros_like(t) for t in (scale, shift, *parameters)]
    of_groups = []
    for n in range(len(sizes)):
        of_groups += [*gradients[4 * n + 2 : 4 * n + 6], gradients[0][n], gradients[1][n]]
    arguments = _feed_forward_arguments(x, scale, shift, parameters, sizes)
    _call("feed_forward_backward", *arguments, y_gradient.contiguous(), x_gradient, of_groups)
    return [x_gradient, *gradients]


def _feed_forward_arguments(
    x: Tensor, scale: Tensor, shift: Tensor, parameters: list[Tensor], sizes: list[int]
) -> tuple[int | list[int] | list[Tensor] | Tensor, ...]:
    shape = (*x.shape, parameters[0].shape[0], len(sizes))
    return *shape, sizes, x, scale, shift, parameters, torch.get_num_threads()


@_feed_forward.register_fake
def _(x: Tensor, scale: Tensor, shift: Tensor, parameters: list[Tensor], sizes: list[int]) -> Tensor:
    return torch.empty_like(x)


@_feed_forward_backward.register_fake
def _(
    y_gradient: Tensor, x: Tensor, scale: Tensor, shift: Tensor, parameters: list[Tensor], sizes: list[int]
) -> list[Tensor]:
    return [torch.empty_like(t) for t in (x, scale, shift, *parameters)]


def _keep_feed_forward(ctx, inputs, output) -> None:
    x, scale, shift, parameters, ctx.sizes = inputs
    ctx.save_for_backward(x, scale, shift, *parameters)


def _differentiate_feed_forward(ctx, gradient: Tensor):
    x, scale, shift, *parameters = ctx.saved_tensors
    results = _feed_forward_backward(gradient, x, scale, shift, parameters, ctx.sizes)
    return *results[:3], results[3:], None


_feed_forward.register_autograd(_differentiate_feed_forward, setup_context=_keep_feed_forward)


def residual_feed_forward(
    x: Float[Tensor, "B N C"],
    scale: Float[Tensor, "S C"],
    shift: Float[Tensor, "S C"],
    parameters: Sequence[Tensor],
    sizes: list[int],
) -> Float[Tensor, "B N C"]:
    """`x + W2 gelu(W1 norm(x) + b1) + b2`, each group of entries with its own parameters.

    Args:
        x: Packed features.
        scale: The norm's scale, for each group.
        shift: The norm's shift, for each group.
        parameters: `W1, b1, W2, b2` of each group, one after the other.
        sizes: Entries of each group, in packed order.
    """
    x, scale, shift, *parameters = (t.contiguous() for t in (x, scale, shift, *parameters))
    return _feed_forward(x, scale, shift, parameters, sizes)


# Attention.


@torch.library.custom_op("neuralfunctionals::residual_attention", mutates_args=())
def _attention(
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    weight: Tensor,
    bias: Tensor,
    vectors: list[Tensor],
    sizes: list[int],
    num_heads: int,
    between_groups: bool,
) -> Tensor:
    y = torch.empty_like(x)
    _call(
        "attention", *_attention_arguments(x, scale, shift, weight, bias, vectors, sizes, num_heads, between_groups), y
    )
    return y


@torch.library.custom_op("neuralfunctionals::residual_attention_backward", mutates_args=())
def _attention_backward(
    y_gradient: Tensor,
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    weight: Tensor,
    bias: Tensor,
    vectors: list[Tensor],
    sizes: list[int],
    num_heads: int,
    between_groups: bool,
) -> list[Tensor]:
    x_gradient = torch.empty_like(x)
    gradients = [torch.zeros_like(t) for t in (scale, shift, weight, bias)]
    arguments = _attention_arguments(x, scale, shift, weight, bias, vectors, sizes, num_heads, between_groups)
    scale_gradient, shift_gradient, weight_gradient, bias_gradient = gradients
    results = x_gradient, weight_gradient, bias_gradient, scale_gradient, shift_gradient
    _call("attention_backward", *arguments, y_gradient.contiguous(), *results)
    return [x_gradient, *gradients]


def _attention_arguments(
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    weight: Tensor,
    bias: Tensor,
    vectors: list[Tensor],
    sizes: list[int],
    num_heads: int,
    between_groups: bool,
) -> tuple[int | list[int] | list[Tensor] | Tensor, ...]:
    norm_sizes = sizes if len(scale) > 1 else [x.shape[1]]
    group_sizes = sizes if between_groups else []
    shapes = [v.shape for v in vectors]
    return (
        *(*x.shape, num_heads, len(norm_sizes), norm_sizes, len(group_sizes), group_sizes),
        *(len(vectors), [t for t, _ in shapes], [n for _, n in shapes], vectors),
        *(x, scale, shift, weight, bias, torch.get_num_threads()),
    )


@_attention.register_fake
def _(
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    weight: Tensor,
    bias: Tensor,
    vectors: list[Tensor],
    sizes: list[int],
    num_heads: int,
    between_groups: bool,
) -> Tensor:
    return torch.empty_like(x)


@_attention_backward.register_fake
def _(
    y_gradient: Tensor,
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    weight: Tensor,
    bias: Tensor,
    vectors: list[Tensor],
    sizes: list[int],
    num_heads: int,
    between_groups: bool,
) -> list[Tensor]:
    return [torch.empty_like(t) for t in (x, scale, shift, weight, bias)]


def _keep_attention(ctx, inputs, output) -> None:
    *tensors, vectors, ctx.sizes, ctx.num_heads, ctx.between_groups = inputs
    ctx.save_for_backward(*tensors, *vectors)


def _differentiate_attention(ctx, gradient: Tensor):
    tensors, vectors = ctx.saved_tensors[:5], list(ctx.saved_tensors[5:])
    results = _attention_backward(gradient, *tensors, vectors, ctx.sizes, ctx.num_heads, ctx.between_groups)
    return *results, [None] * len(vectors), None, None, None


_attention.register_autograd(_differentiate_attention, setup_context=_keep_attention)


def residual_attention(
    x: Float[Tensor, "B N C"],
    scale: Float[Tensor, "S C"],
    shift: Float[Tensor, "S C"],
    weight: Float[Tensor, "D C"],
    bias: Float[Tensor, "D"],
    vectors: list[Int[Tensor, "_T _n"]],
    sizes: list[int],
    num_heads: int,
    *,
    between_groups: bool,
) -> Float[Tensor, "B N C"]:
    """`x + attention(norm(x))`: weight-space self-attention along all layers of neurons and between groups.

    Args:
        x: Packed features.
        scale: The norm's scale, one for all entries or one for each group.
        shift: The norm's shift, likewise.
        weight: Projection to queries, keys and values.
        bias: Its bias.
        vectors: For each layer of neurons the entries of the vectors that meet there, as 32-bit numbers.
        sizes: Entries of each group, in packed order.
        num_heads: Heads.
        between_groups: Whether to add the attention between the means of the groups.
    """
    x, scale, shift, weight, bias = (t.contiguous() for t in (x, scale, shift, weight, bias))
    return _attention(x, scale, shift, weight, bias, vectors, sizes, num_heads, between_groups)
