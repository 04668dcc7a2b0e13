"""From modules and `state_dict`s to specs and flat vectors, and back.

A module's layers are found by following its `forward`, a `state_dict`'s by shapes and numbered names; neither
trusts the order of keys. What cannot be read for certain is refused with the reason.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, fx, nn

from neuralfunctionals.weight_space.layer_order import find_order
from neuralfunctionals.weight_space.spec import LayerSpec, NetworkSpec

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
# Treat every neuron alone, or all neurons alike, so that permuting neurons commutes with them.
_NEURONWISE_MODULES = (
    "CELU Dropout Dropout1d Dropout2d Dropout3d AlphaDropout ELU Flatten GELU Hardshrink Hardsigmoid Hardswish "
    "Hardtanh Identity LeakyReLU LogSigmoid Mish ReLU ReLU6 SELU SiLU Sigmoid Softplus Softshrink Softsign Tanh "
    "Tanhshrink Threshold AvgPool1d AvgPool2d AvgPool3d MaxPool1d MaxPool2d MaxPool3d AdaptiveAvgPool1d "
    "AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d LPPool1d LPPool2d "
    "LPPool3d LayerNorm RMSNorm InstanceNorm1d InstanceNorm2d InstanceNorm3d"
).split()
_NEURONWISE_FUNCTIONS = (
    "abs add amax celu clamp contiguous cos div dropout elu erf exp flatten gelu hardsigmoid hardswish hardtanh "
    "leaky_relu log logsigmoid max_pool1d max_pool2d max_pool3d mean mish mul neg pow relu relu_ relu6 reshape "
    "selu sigmoid sign silu sin softplus softsign sqrt square squeeze sub sum tanh truediv unsqueeze view float "
    "double avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d "
    "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d boolean_dispatch fn _adaptive_max_pool1d"
).split()
# Between a convolution and a dense layer one of these must remove the positions.
_REMOVES_POSITIONS = ("flatten", "view", "reshape", "mean", "amax", "sum", "squeeze")
_SHAPE_FUNCTIONS = ("size", "getattr", "getitem", "dim", "ndimension", "numel")


def spec_from_module(module: nn.Module) -> NetworkSpec:
    """Finds the layers of a module in the order in which its `forward` uses them.

    Understood are dense layers and convolutions, one after the other, with anything between them that treats
    every neuron alone (activations, pooling, dropout, scaling); nesting and names do not matter.

    Raises:
        ValueError: For skip connections and branches, normalisation with parameters or statistics, layers used
            twice, parameters outside the layers, grouped convolutions, and whatever `torch.fx` cannot follow.
    """
    if isinstance(module, _LAYERS):
        return NetworkSpec((_layer_spec(module, ""),))
    try:
        graph = fx.Tracer().trace(module)
    except Exception as error:  # tracing runs the user's forward, which may raise anything
        raise ValueError(
            f"Could not follow the forward of {type(module).__name__}: {error}. Expected layers called one after the "
            "other without branching on values; for other code use NetworkSpec.from_state_dict(module.state_dict(), "
            "layers=[...]) with the layers' names from input to output."
        ) from error
    spec = NetworkSpec(tuple(_follow_chain(module, graph)))
    used = {key for layer in spec.layers for key in _keys(layer)}
    unused = [name for name, _ in module.named_parameters(remove_duplicate=False) if name not in used]
    if unused:
        raise ValueError(
            f"{type(module).__name__} has parameters outside its dense layers and convolutions: {', '.join(unused)}. "
            "Expected every parameter to be the weight or bias of a layer that forward uses."
        )
    return spec


def _follow_chain(module: nn.Module, graph: fx.Graph) -> Iterator[LayerSpec]:
    """Walks a traced forward, in which every step must take the result of the one before it."""
    current: fx.Node | None = None
    shapes: set[fx.Node] = set()  # nodes that hold sizes, not activations
    seen: set[str] = set()
    unknown: str | None = None  # an operation between layers that may mix neurons
    last: LayerSpec | None = None
    positions_removed = False
    for node in graph.nodes:
        if node.op == "placeholder":
            current = node if current is None else current
            continue
        if node.op == "output":
            if current not in node.all_input_nodes:
                raise ValueError(f"The output of {type(module).__name__} does not come from its last layer.")
            continue
        name = _name(node)
        inputs = [n for n in node.all_input_nodes if n not in shapes]
        if _is_shape(node, name) or (not inputs and node.op != "get_attr"):
            shapes.add(node)
            continue
        if inputs != [current]:
            raise ValueError(
                f"'{node.name}' in {type(module).__name__} takes {[n.name for n in inputs] or [node.target]} where "
                f"only the previous result ({current}) was expected. Skip connections, branches and tensors other than "
                "layers' weights are not supported: a network must be a chain of layers."
            )
        current = node
        if node.op != "call_module":
            positions_removed |= name in _REMOVES_POSITIONS or name.startswith("adaptive_")
            unknown = unknown if name in _NEURONWISE_FUNCTIONS else f"the operation '{name}'"
            continue
        target = str(node.target)
        part = module.get_submodule(target)
        if not isinstance(part, _LAYERS):
            _refuse_parameters(part, target)
            kind = type(part).__name__
            positions_removed |= kind == "Flatten" or kind.startswith("Adaptive")
            unknown = unknown if kind in _NEURONWISE_MODULES else f"'{target}' ({kind})"
            continue
        if target in seen:
            raise ValueError(
                f"The layer '{target}' is used twice. Expected each layer once: shared layers are not supported."
            )
        if last is not None and unknown:
            raise ValueError(
                f"Between the layers '{last.name}' and '{target}' stands {unknown}, which may mix neurons. "
                "Expected activations, pooling and other operations that treat every neuron alone."
            )
        layer = _layer_spec(part, target)
        if last is not None and last.kernel and not layer.kernel and not positions_removed:
            raise ValueError(
                f"The dense layer '{target}' follows the convolution '{last.name}' directly. "
                "Expected global pooling between them, such as nn.AdaptiveAvgPool2d(1) and nn.Flatten()."
            )
        seen.add(target)
        last, unknown, positions_removed = layer, None, False
        yield layer


def _name(node: fx.Node) -> str:
    target: Any = node.target
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))


def _is_shape(node: fx.Node, name: str) -> bool:
    if node.op not in ("call_function", "call_method") or name not in _SHAPE_FUNCTIONS:
        return False
    # x[...] and x.T are not sizes; size(), x.shape and entries of x.shape are.
    if node.target is operator.getitem:
        return isinstance(node.args[0], fx.Node) and _is_shape(node.args[0], _name(node.args[0]))
    return name != "getattr" or node.args[1] in ("shape", "ndim", "dtype", "device")


def _refuse_parameters(part: nn.Module, name: str) -> None:
    kind = type(part).__name__
    if next(part.parameters(), None) is None and next(part.buffers(), None) is None:
        return
    reason = "Normalisation with parameters or statistics" if "Norm" in kind else f"A {kind} with parameters"
    raise ValueError(
        f"{reason} is not supported, but '{name}' is a {kind}. "
        "Expected dense layers and convolutions with activations and pooling between them."
    )


def _layer_spec(layer: nn.Module, name: str) -> LayerSpec:
    assert isinstance(layer, _LAYERS)
    if nn.parameter.is_lazy(layer.weight):
        raise ValueError(f"The layer '{name}' has no shape yet. Run the module once on data before reading its spec.")
    if not isinstance(layer, nn.Linear) and layer.groups != 1:
        raise ValueError(
            f"The convolution '{name}' has {layer.groups} groups. Expected groups=1: in grouped convolutions "
            "neurons of different groups cannot change places."
        )
    out_neurons, in_neurons, *kernel = layer.weight.shape
    return LayerSpec(out_neurons, in_neurons, tuple(kernel), layer.bias is not None, name)


def _keys(layer: LayerSpec) -> list[str]:
    return [layer.key("weight")] + ([layer.key("bias")] if layer.has_bias else [])


def spec_from_state_dict(state_dict: Mapping[str, Tensor], layers: Sequence[str] | None = None) -> NetworkSpec:
    """Finds the layers of a `state_dict` from their shapes and names, whatever the order of its keys.

    Neighbouring layers must fit, convolutions come before dense layers, and names that differ only in their
    numbers (`net.2`, `net.10`) follow these numbers. If several orders remain, none is guessed.

    Args:
        state_dict: Keys `name.weight` and `name.bias`.
        layers: Names from input to output, to settle the order by hand.
    """
    weights = {k.rpartition(".")[0]: v for k, v in state_dict.items() if k.rpartition(".")[2] == "weight"}
    expected = {key for name in weights for key in (f"{name}.weight".lstrip("."), f"{name}.bias".lstrip("."))}
    strangers = [k for k in state_dict if k not in expected] + [f"{n}.weight" for n, w in weights.items() if w.ndim < 2]
    if strangers or not weights:
        raise ValueError(
            "Expected a state_dict with the weights and biases of dense layers and convolutions only, but found "
            f"{', '.join(sorted(strangers)) or 'no weights'}. Normalisation, embeddings and buffers are not supported."
        )
    specs = {
        name: LayerSpec(
            w.shape[0], w.shape[1], tuple(w.shape[2:]), LayerSpec(1, 1, name=name).key("bias") in state_dict, name
        )
        for name, w in weights.items()
    }
    if layers is not None:
        if sorted(layers) != sorted(specs):
            raise ValueError(f"Expected the names of all layers, {sorted(specs)}, in order, but got {list(layers)}.")
        return NetworkSpec(tuple(specs[name] for name in layers))
    return NetworkSpec(tuple(find_order(specs)))


def require_plain(name: str, tensor: Tensor, start: str = "Expected") -> None:
    """Raises unless a tensor is an ordinary array that holds its values."""
    if not isinstance(tensor, Tensor) or nn.parameter.is_lazy(tensor):
        kind = f"a {type(tensor).__name__}"
    elif tensor.is_nested or tensor.layout != torch.strided:
        kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
    elif tensor.is_quantized or tensor.is_meta:
        kind = "quantized" if tensor.is_quantized else "on the meta device, without values"
    else:
        return
    raise ValueError(
        f"{start} '{name}' to be an ordinary tensor, but it is {kind}. Convert it first, for instance with "
        "to_dense() or dequantize()."
    )


def pack_state_dict(spec: NetworkSpec, state_dict: Mapping[str, Tensor]) -> Float[Tensor, "N"]:
    """The weights and biases as one vector, in the order of `spec.groups`."""
    expected = [(spec.layers[g.layer - 1].key(g.kind), g.shape) for g in spec.groups]
    for key, shape in expected:
        if key not in state_dict:
            raise ValueError(f"Expected the key '{key}' in the state_dict, but it has {sorted(state_dict)}.")
        require_plain(key, state_dict[key])
        if tuple(state_dict[key].shape) != shape or not state_dict[key].is_floating_point():
            raise ValueError(
                f"Expected '{key}' to hold real numbers of shape {shape}, but got {state_dict[key].dtype} of shape "
                f"{tuple(state_dict[key].shape)}. All networks of a batch must have one spec: {spec}."
            )
    return torch.cat([state_dict[key].flatten() for key, _ in expected])


def unpack_state_dict(spec: NetworkSpec, vector: Float[Tensor, "N"]) -> dict[str, Tensor]:
    """The inverse of `pack_state_dict`; every tensor is a copy of its own."""
    names = [spec.layers[g.layer - 1].key(g.kind) for g in spec.groups]
    if len(set(names)) < len(names):
        raise ValueError(f"Expected layers of different names for a state_dict, but the network {spec} has {names}.")
    return {n: vector[g.start : g.stop].view(g.shape).clone() for n, g in zip(names, spec.groups, strict=True)}
