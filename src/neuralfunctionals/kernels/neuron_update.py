"""Updates a layer of neurons from its neighbours' messages: `neuron_update`; compiled: `neuron_update.cpp`."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from neuralfunctionals.kernels.choice import call
from neuralfunctionals.kernels.operation import Numbers, Operation, Shapes, Tensors

# Axes: B input networks, n neurons, m neurons of a neighbouring layer, C channels, G gates, c channels behind one gate,
# n2, C2 twice as many (signed, then absolute), K neighbouring layers, D = C + K C2, E hidden channels.

Gates = Float[Tensor, "B G n2 _m"]
Neighbours = Float[Tensor, "B _m C"]


def neuron_update(
    state: Float[Tensor, "B n C"],
    gates: Sequence[Gates],
    neighbours: Sequence[Neighbours],
    parameters: Sequence[Tensor] | None,
    otherwise: Callable[[Float[Tensor, "B n D"]], Float[Tensor, "B n C"]] | None = None,
) -> Float[Tensor, "B n C"]:
    r"""Updates the states of a layer of neurons from those of its neighbours.

    $$ h \leftarrow h + W_2\, \mathrm{GELU}(W_1\, \mathrm{LN}[h, M_1, \dots, M_K] + b_1) + b_2, $$

    where $M_k$ are the sums of the states of neighbour $k$, weighted by its gates: signed, then absolute. With
    several gates, the channels are divided between them.

    Args:
        state: The neurons to update.
        gates: The gates of each neighbour, the signed above the absolute values; see `Gates` in `neuron_states`.
        neighbours: The neurons of the neighbouring layers; none, one or two.
        parameters: Scale and shift of the norm, $W_1, b_1, W_2, b_2$; None if the modules compute more.
        otherwise: Norm and MLP as modules, called if the compiled form cannot be used.
    """
    divides = not gates or state.shape[-1] % gates[0].shape[1] == 0
    tensors = None if parameters is None or not divides else [state, *gates, *neighbours, *parameters]
    plain = None if otherwise is None else lambda: state + otherwise(_see(state, gates, neighbours))
    return _UPDATE(tensors, [len(gates)], plain)


def _see(state: Tensor, gates: Sequence[Gates], neighbours: Sequence[Neighbours]) -> Float[Tensor, "B n D"]:
    """Each neuron's state and the sums of its neighbours' states, weighted by the signed and the absolute gates."""
    seen = [state]
    for gate, states in zip(gates, neighbours, strict=True):
        values = rearrange(states, "B m (G c) -> B G m c", G=gate.shape[1])
        seen.append(rearrange(gate @ values, "B G (s n) c -> B n (s G c)", s=2))
    return torch.cat(seen, dim=-1)


def _split(tensors: Tensors, numbers: Numbers) -> tuple[Tensor, Tensors, Tensors, Tensors]:
    k = numbers[0]
    return tensors[0], tensors[1 : k + 1], tensors[k + 1 : 2 * k + 1], tensors[2 * k + 1 :]


def _plain(tensors: Tensors, numbers: Numbers) -> Tensor:
    state, gates, neighbours, (norm_weight, norm_bias, weight1, bias1, weight2, bias2) = _split(tensors, numbers)
    normed = F.layer_norm(_see(state, gates, neighbours), norm_weight.shape, norm_weight, norm_bias)
    return state + F.linear(F.gelu(F.linear(normed, weight1, bias1)), weight2, bias2)


def _shapes(tensors: Tensors, numbers: Numbers) -> Shapes:
    state, gates, neighbours, (norm_weight, norm_bias, weight1, bias1, weight2, bias2) = _split(tensors, numbers)
    found = {"state": (state, "B n C")}
    for k, (gate, states) in enumerate(zip(gates, neighbours, strict=True)):
        found |= {f"neighbour {k}": (states, f"B m{k} C"), f"gates {k}": (gate, f"B G 2*n m{k}")}
    seen = f"{1 + 2 * len(gates)}*C"
    found |= {"norm weight": (norm_weight, seen), "norm bias": (norm_bias, seen)}
    found |= {"weight 1": (weight1, f"E {seen}"), "bias 1": (bias1, "E")}
    return found | {"weight 2": (weight2, "C E"), "bias 2": (bias2, "C")}


def _arguments(tensors: Tensors, numbers: Numbers) -> tuple:
    state, gates, neighbours, parameters = _split(tensors, numbers)
    num_gates = gates[0].shape[1] if gates else 1
    shape = (*state.shape, parameters[2].shape[0], num_gates, len(neighbours), [x.shape[1] for x in neighbours])
    return *shape, state, gates, neighbours, parameters, torch.get_num_threads()


def _forward(tensors: Tensors, numbers: Numbers, y: Tensor, hidden: Tensor) -> None:
    call("neuron_update", "neuron_update", *_arguments(tensors, numbers), y, hidden)


def _backward(gradient: Tensor, hidden: Tensor, tensors: Tensors, numbers: Numbers, results: Tensors) -> None:
    arguments = _arguments(tensors, numbers)
    call("neuron_update", "neuron_update_backward", *arguments, hidden, gradient, *_split(results, numbers))


def _kept_shape(tensors: Tensors) -> tuple[int, ...]:
    """Shape of `Kept` in the C++ file: values before the GELU, standardized rows, their factors."""
    batch, neurons, _ = tensors[0].shape
    hidden, seen = tensors[-4].shape
    return (batch * (neurons * hidden + (neurons + 1) * seen + neurons),)


_UPDATE = Operation(
    "neuron_update",
    "neuron_update",
    plain=_plain,
    shapes=_shapes,
    forward=_forward,
    backward=_backward,
    kept_shape=_kept_shape,
)
