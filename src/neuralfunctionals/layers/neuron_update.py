"""One update of a layer of neurons from the messages of its neighbours: `neuron_update`.

On a CPU in float32 a compiled operator with its gradient, `neuron_update.cpp`, takes the place of the plain form.
"""

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.autograd import forward_ad

from neuralfunctionals.layers import cpu_block
from neuralfunctionals.native import load_library

# Axes: B input networks, n neurons, m neurons of a neighbouring layer, C channels, G gates, c channels behind one gate,
# n2, C2 twice as many (signed, then absolute), K neighbouring layers, D = C + K C2, E hidden channels.

Gates = Float[Tensor, "B G n2 _m"]
Neighbours = Float[Tensor, "B _m C"]


def neuron_update(
    state: Float[Tensor, "B n C"],
    gates: Sequence[Gates],
    neighbours: Sequence[Neighbours],
    norm_weight: Float[Tensor, "D"],
    norm_bias: Float[Tensor, "D"],
    weight1: Float[Tensor, "E D"],
    bias1: Float[Tensor, "E"],
    weight2: Float[Tensor, "C E"],
    bias2: Float[Tensor, "C"],
) -> Float[Tensor, "B n C"]:
    r"""Updates the states of a layer of neurons from those of its neighbours.

    $$ h \leftarrow h + W_2\, \mathrm{GELU}(W_1\, \mathrm{LN}[h, M_1, \dots, M_K] + b_1) + b_2, $$

    where $M_k$ are the sums of the states of neighbour $k$, weighted by its gates: signed, then absolute. With
    several gates, the channels are divided between them.

    Args:
        state: The neurons to update.
        gates: For each neighbour its gates, the signed above the absolute ones; see `Gates` in `neuron_states`.
        neighbours: The neurons of the neighbouring layers; none, one or two.
        norm_weight: Scale of the norm.
        norm_bias: Shift of the norm.
        weight1: First layer of the MLP.
        bias1: Its bias.
        weight2: Second layer of the MLP.
        bias2: Its bias.
    """
    parameters = [norm_weight, norm_bias, weight1, bias1, weight2, bias2]
    others = [*gates, *neighbours]
    if _is_plain_needed() or not cpu_block.fits(state, parameters, others) or _library() is None:
        return _plain(state, gates, neighbours, parameters)
    needs_gradient = torch.is_grad_enabled() and any(t.requires_grad for t in (state, *others, *parameters))
    tensors = [[t.contiguous() for t in part] for part in ([state], gates, neighbours, parameters)]
    return _update(tensors[0][0], *tensors[1:], keep_hidden=needs_gradient)[0]


def _plain(
    state: Float[Tensor, "B n C"], gates: Sequence[Gates], neighbours: Sequence[Neighbours], parameters: list[Tensor]
) -> Float[Tensor, "B n C"]:
    norm_weight, norm_bias, weight1, bias1, weight2, bias2 = parameters
    seen = torch.cat([state, *(_send(g, x) for g, x in zip(gates, neighbours, strict=True))], dim=-1)
    normed = F.layer_norm(seen, seen.shape[-1:], norm_weight, norm_bias)
    return state + F.linear(F.gelu(F.linear(normed, weight1, bias1)), weight2, bias2)


def _send(gates: Float[Tensor, "B G n2 m"], states: Float[Tensor, "B m C"]) -> Float[Tensor, "B n C2"]:
    """The sums of all states behind each neuron, through the signed and through the absolute gates."""
    values = rearrange(states, "B m (G c) -> B G m c", G=gates.shape[1])
    return rearrange(gates @ values, "B G (s n) c -> B n (s G c)", s=2)


def _is_plain_needed() -> bool:
    """Whether something looks into the operations or transforms them: only the plain form allows that."""
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


@functools.cache
def _library() -> ctypes.CDLL | None:
    return load_library(Path(__file__).with_name("neuron_update.cpp"), "-fopenmp")


def _call(name: str, *arguments: int | Sequence[int] | Sequence[Tensor] | Tensor) -> None:
    cpu_block.call(_library(), name, *arguments)


# The values before the GELU are kept for the backward pass, in an order of the operator's own.


@torch.library.custom_op("neuralfunctionals::neuron_update", mutates_args=())
def _update(
    state: Tensor, gates: list[Tensor], neighbours: list[Tensor], parameters: list[Tensor], keep_hidden: bool
) -> tuple[Tensor, Tensor]:
    y, hidden = _new_results(state, parameters, keep_hidden)
    _call("neuron_update", *_arguments(state, gates, neighbours, parameters), y, hidden)
    return y, hidden


@torch.library.custom_op("neuralfunctionals::neuron_update_backward", mutates_args=())
def _update_backward(
    y_gradient: Tensor,
    hidden: Tensor,
    state: Tensor,
    gates: list[Tensor],
    neighbours: list[Tensor],
    parameters: list[Tensor],
) -> list[Tensor]:
    of_state, *rest = [torch.empty_like(t) for t in (state, *gates, *neighbours, *parameters)]
    k = len(gates)
    arguments = _arguments(state, gates, neighbours, parameters)
    results = of_state, rest[:k], rest[k : 2 * k], rest[2 * k :]
    _call("neuron_update_backward", *arguments, hidden, y_gradient.contiguous(), *results)
    return [of_state, *rest]


def _arguments(
    state: Tensor, gates: list[Tensor], neighbours: list[Tensor], parameters: list[Tensor]
) -> tuple[int | list[int] | list[Tensor] | Tensor, ...]:
    num_gates = gates[0].shape[1] if gates else 1
    shape = (*state.shape, parameters[2].shape[0], num_gates, len(neighbours), [x.shape[1] for x in neighbours])
    return *shape, state, gates, neighbours, parameters, torch.get_num_threads()


def _new_results(state: Tensor, parameters: list[Tensor], keep_hidden: bool) -> tuple[Tensor, Tensor]:
    rows = state.shape[0] * state.shape[1] if keep_hidden else 0
    return torch.empty_like(state), state.new_empty(rows, parameters[2].shape[0])


@_update.register_fake
def _(
    state: Tensor, gates: list[Tensor], neighbours: list[Tensor], parameters: list[Tensor], keep_hidden: bool
) -> tuple[Tensor, Tensor]:
    return _new_results(state, parameters, keep_hidden)


@_update_backward.register_fake
def _(
    y_gradient: Tensor,
    hidden: Tensor,
    state: Tensor,
    gates: list[Tensor],
    neighbours: list[Tensor],
    parameters: list[Tensor],
) -> list[Tensor]:
    return [torch.empty_like(t) for t in (state, *gates, *neighbours, *parameters)]


def _keep(ctx, inputs, output) -> None:
    state, gates, neighbours, parameters, _ = inputs
    ctx.num_neighbours = len(gates)
    ctx.save_for_backward(output[1], state, *gates, *neighbours, *parameters)


def _differentiate(ctx, y_gradient: Tensor, _):
    hidden, *inputs = ctx.saved_tensors
    k = ctx.num_neighbours
    arguments = inputs[0], inputs[1 : k + 1], inputs[k + 1 : 2 * k + 1], inputs[2 * k + 1 :]
    if torch.is_grad_enabled():  # to be differentiated again, which the operator cannot
        needed = [t for t in inputs if t.requires_grad]
        found = iter(torch.autograd.grad(_plain(*arguments), needed, y_gradient, create_graph=True))
        results = [next(found) if t.requires_grad else None for t in inputs]
    else:
        results = _update_backward(y_gradient, hidden, *arguments)
    return results[0], results[1 : k + 1], results[k + 1 : 2 * k + 1], results[2 * k + 1 :], None


_update.register_autograd(_differentiate, setup_context=_keep)
