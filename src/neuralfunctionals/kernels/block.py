"""The two halves of a transformer block, `x + MLP(norm(x))` and `x + attention(norm(x))`; compiled: `block.cpp`."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from neuralfunctionals.kernels.choice import call
from neuralfunctionals.kernels.operation import Numbers, Operation, Shapes, Tensors

# Axes: B input networks, N packed entries, C channels, D = 3 C, E hidden channels, H heads, c channels of a head;
# T vectors that meet at one layer of neurons, n neurons of that layer; S scales of a norm, one or as many as groups.


def residual_feed_forward(
    x: Float[Tensor, "B N C"],
    parameters: Sequence[Tensor] | None,
    sizes: list[int],
    otherwise: Callable[[], Tensor] | None = None,
) -> Float[Tensor, "B N C"]:
    """`x + W2 gelu(W1 norm(x) + b1) + b2`, each group of entries with its own parameters.

    Args:
        x: Packed features.
        parameters: The norm's scale and shift, then `W1, b1, W2, b2` of each group; None if the modules compute more.
        sizes: Entries of each group, in packed order.
        otherwise: The same operation by modules, called if the compiled form cannot be used.
    """
    return _FEED_FORWARD(None if parameters is None else [x, *parameters], sizes, otherwise)


def residual_attention(
    x: Float[Tensor, "B N C"],
    parameters: Sequence[Tensor] | None,
    vectors: Sequence[Int[Tensor, "_T _n"]],
    sizes: list[int],
    num_heads: int,
    otherwise: Callable[[], Tensor] | None = None,
    *,
    between_groups: bool,
) -> Float[Tensor, "B N C"]:
    """`x + attention(norm(x))`: weight-space self-attention along all layers of neurons and between groups.

    Args:
        x: Packed features.
        parameters: The norm's scale and shift, weight and bias of the projection to queries, keys and values; None if
            the modules compute more.
        vectors: For each layer of neurons, the entries of the vectors that meet there, as 32-bit numbers.
        sizes: Entries of each group, in packed order.
        num_heads: Heads.
        otherwise: The same operation by modules, called if the compiled form cannot be used.
        between_groups: Whether to add the attention between the means of the groups.
    """
    tensors = None if parameters is None or x.shape[-1] % num_heads else [x, *parameters, *vectors]
    return _ATTENTION(tensors, [num_heads, int(between_groups), *sizes], otherwise)


def _normalize(x: Tensor, scale: Tensor, shift: Tensor, sizes: list[int]) -> Tensor:
    parts = zip(x.split(sizes if len(scale) > 1 else [x.shape[1]], dim=1), scale, shift, strict=True)
    return torch.cat([F.layer_norm(part, part.shape[-1:], a, b) for part, a, b in parts], dim=1)


# Feed-forward.


def _feed_forward_plain(tensors: Tensors, sizes: Numbers) -> Tensor:
    x, scale, shift, *rest = tensors
    outputs = []
    for n, part in enumerate(_normalize(x, scale, shift, sizes).split(sizes, dim=1)):
        w1, b1, w2, b2 = rest[4 * n : 4 * n + 4]
        outputs.append(F.linear(F.gelu(F.linear(part, w1, b1)), w2, b2))
    return x + torch.cat(outputs, dim=1)


def _feed_forward_shapes(tensors: Tensors, sizes: Numbers) -> Shapes:
    groups = len(sizes)
    found = {"x": (tensors[0], f"B {sum(sizes)} C")}
    found |= {"scale": (tensors[1], f"{groups} C"), "shift": (tensors[2], f"{groups} C")}
    for n in range(groups):
        w1, b1, w2, b2 = tensors[4 * n + 3 : 4 * n + 7]
        found |= {f"weight1 of group {n}": (w1, "E C"), f"bias1 of group {n}": (b1, "E")}
        found |= {f"weight2 of group {n}": (w2, "C E"), f"bias2 of group {n}": (b2, "C")}
    return found


def _feed_forward_arguments(tensors: Tensors, sizes: Numbers) -> tuple:
    x, scale, shift, *parameters = tensors
    shape = (*x.shape, parameters[0].shape[0], len(sizes))
    return *shape, sizes, x, scale, shift, parameters, torch.get_num_threads()


def _feed_forward(tensors: Tensors, sizes: Numbers, y: Tensor, kept: Tensor) -> None:
    call("block", "feed_forward", *_feed_forward_arguments(tensors, sizes), y)


def _feed_forward_backward(gradient: Tensor, kept: Tensor, tensors: Tensors, sizes: Numbers, results: Tensors) -> None:
    x_gradient, *others = results
    of_groups = []
    for n in range(len(sizes)):
        of_groups += [*others[4 * n + 2 : 4 * n + 6], others[0][n], others[1][n]]
    arguments = _feed_forward_arguments(tensors, sizes)
    call("block", "feed_forward_backward", *arguments, gradient, x_gradient, of_groups)


_FEED_FORWARD = Operation(
    "residual_feed_forward",
    "block",
    plain=_feed_forward_plain,
    shapes=_feed_forward_shapes,
    forward=_feed_forward,
    backward=_feed_forward_backward,
)


# Attention. `numbers` holds the number of heads, whether groups attend to each other, and the sizes of the groups.


def _attention_plain(tensors: Tensors, numbers: Numbers) -> Tensor:
    x, scale, shift, weight, bias, *vectors = tensors
    num_heads, between_groups, *sizes = numbers
    y, qkv = x, F.linear(_normalize(x, scale, shift, sizes), weight, bias)
    for entries in vectors:
        places, n = entries.flatten(), entries.shape[1]
        q, k, v = rearrange(qkv[:, places], "B (T n) (s H c) -> s B H T (n c)", n=n, s=3, H=num_heads)
        y = y.index_add(1, places, rearrange(_attend(q, k, v), "B H T (n c) -> B (T n) (H c)", n=n))
    if between_groups:
        pooled = torch.stack([part.mean(1) for part in qkv.split(sizes, dim=1)], dim=1)
        q, k, v = rearrange(pooled, "B G (s H c) -> s B H G c", s=3, H=num_heads)
        means = rearrange(_attend(q, k, v), "B H G c -> B G (H c)")
        y = y + means.repeat_interleave(torch.tensor(sizes), dim=1)
    return y


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


def _attention_shapes(tensors: Tensors, numbers: Numbers) -> Shapes:
    x, scale, shift, weight, bias = tensors[:5]
    sizes = numbers[2:]
    norms = len(sizes) if len(scale) > 1 else 1
    return {
        "x": (x, f"B {sum(sizes)} C"),
        "scale": (scale, f"{norms} C"),
        "shift": (shift, f"{norms} C"),
        "weight": (weight, "3*C C"),
        "bias": (bias, "3*C"),
    }


def _attention_arguments(tensors: Tensors, numbers: Numbers) -> tuple:
    x, scale, shift, weight, bias, *vectors = tensors
    num_heads, between_groups, *sizes = numbers
    norm_sizes = sizes if len(scale) > 1 else [x.shape[1]]
    group_sizes = sizes if between_groups else []
    shapes = [v.shape for v in vectors]
    return (
        *(*x.shape, num_heads, len(norm_sizes), norm_sizes, len(group_sizes), group_sizes),
        *(len(vectors), [t for t, _ in shapes], [n for _, n in shapes], vectors),
        *(x, scale, shift, weight, bias, torch.get_num_threads()),
    )


def _attention(tensors: Tensors, numbers: Numbers, y: Tensor, kept: Tensor) -> None:
    call("block", "attention", *_attention_arguments(tensors, numbers), y)


def _attention_backward(gradient: Tensor, kept: Tensor, tensors: Tensors, numbers: Numbers, results: Tensors) -> None:
    call("block", "attention_backward", *_attention_arguments(tensors, numbers), gradient, *results)


_ATTENTION = Operation(
    "residual_attention",
    "block",
    plain=_attention_plain,
    shapes=_attention_shapes,
    forward=_attention,
    backward=_attention_backward,
)
