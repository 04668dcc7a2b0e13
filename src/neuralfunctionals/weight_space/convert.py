"""From modules and `state_dict`s to specs.

The layers of a chain are found by following `forward`, those of a `state_dict` by shapes and numbered names; neither
relies on the order of keys. Other modules are traced (see `trace`). Ambiguous networks are refused with the reason.
"""

from __future__ import annotations

import inspect
import math
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from neuralfunctionals.errors import UserError
from neuralfunctionals.weight_space.axes import Activation, Axis, Group, LayerSpec
from neuralfunctionals.weight_space.layer_order import find_order
from neuralfunctionals.weight_space.spec import NetworkSpec
from neuralfunctionals.weight_space.state import evaluation

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
# They treat every neuron separately, or all neurons alike, so they commute with permutations of neurons.
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
# Between a convolution and a dense layer, one of these must pool the positions.
_REMOVES_POSITIONS = ("flatten", "view", "reshape", "mean", "amax", "sum", "squeeze")
_SHAPE_FUNCTIONS = ("size", "getattr", "getitem", "dim", "ndimension", "numel")
_ACTIVATION_MODULES = (
    "ReLU Tanh GELU Sigmoid SiLU Softsign Tanhshrink Softplus Mish SELU ELU ReLU6 Hardtanh Hardswish"
).split()
_ACTIVATIONS = {"relu_": "relu", "LeakyReLU": "leaky_relu", **{name: name.lower() for name in _ACTIVATION_MODULES}}
"""Activations by the names of functions and modules, if these differ; only with their default arguments."""
_KEEPS_VALUES = "Identity Dropout Flatten contiguous dropout flatten float double view reshape squeeze".split()


def spec_from_module(
    module: nn.Module,
    example_inputs: Tensor | Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    verify: bool = True,
) -> NetworkSpec:
    """The spec of a module: see `NetworkSpec.from_module`.

    A plain chain is found by following `forward` with `torch.fx`: dense layers and convolutions, one after the other,
    with anything between them that treats every neuron separately (activations, pooling, dropout, scaling). Any other
    module is traced on example inputs.
    """
    # Imported here: few programs need the tracer, and torch.export is slow to import.
    from neuralfunctionals.weight_space.trace import trace_spec
    from neuralfunctionals.weight_space.verify import verify_chain, verify_spec

    if not isinstance(module, nn.Module):
        raise UserError(
            f"Expected a module, but got a {type(module).__name__}. Read a state_dict with NetworkSpec.from_state_dict."
        )
    with torch.random.fork_rng(devices=[]):  # forward may draw random numbers
        try:
            spec = chain_from_module(module)
            return verify_chain(spec, module, example_inputs) if verify else spec
        except UserError as error:
            if example_inputs is None:
                raise UserError(
                    f"{error} If {type(module).__name__} is not a plain chain of layers, give example inputs to have "
                    "it traced: NetworkSpec.from_module(module, example_inputs)."
                ) from error
        spec = trace_spec(module, example_inputs)
        return verify_spec(spec, module, example_inputs) if verify else spec


def chain_from_module(module: nn.Module) -> NetworkSpec:
    """Finds the layers of a module in the order in which its `forward` uses them.

    Raises:
        ValueError: For skip connections and branches, normalisation with parameters or statistics, layers used
            twice, parameters outside the layers, grouped convolutions, and anything that `torch.fx` cannot follow.
    """
    if isinstance(module, _LAYERS):
        return NetworkSpec((_layer_spec(module, ""),))
    options = _optional_arguments(module)
    try:
        with evaluation(module):
            graph = fx.Tracer().trace(module, concrete_args=options or None)
    except Exception as error:  # tracing runs the user's forward, which may raise anything
        raise UserError(
            f"Could not follow the forward of {type(module).__name__}: {error}. Expected layers called one after the "
            "other without branching on values."
        ) from error
    facts = _ChainFacts()
    layers = list(_follow_chain(module, graph, facts, options))
    pairs = zip(layers, facts.steps, strict=True)
    known = tuple(replace(layer, activation=_read_activation(steps)) for layer, steps in pairs)
    spec = NetworkSpec(known, pooling=facts.pooling)
    used = {group.key for group in spec.groups}
    unused = [name for name, _ in module.named_parameters(remove_duplicate=False) if name not in used]
    if unused:
        raise UserError(
            f"{type(module).__name__} has parameters outside its dense layers and convolutions: {', '.join(unused)}. "
            "Expected every parameter to be the weight or bias of a layer that forward uses."
        )
    return spec


class _ChainFacts:
    """The function of a chain, from the steps between its layers."""

    def __init__(self) -> None:
        self.steps: list[list[tuple[str, Any]]] = []
        """For each layer, the names and arguments of the steps after it."""
        self.pooling: str | None = None
        self.numbers: dict[fx.Node, float] = {}
        """Buffers of one number, such as the frequency of sines."""

    def add(self, name: str, argument: Any = None) -> None:
        if self.steps:
            self.steps[-1].append((name, argument))

    def take_pooling(self, dimensions: int) -> None:
        """Removes global mean pooling from the steps before a dense layer that follows a convolution."""
        everywhere = tuple(range(2, 2 + dimensions)), tuple(range(-dimensions, 0))
        for step in self.steps[-1]:
            name, argument = step
            pools = name.lower().startswith("adaptive") and "avg" in name.lower() and argument in (1, "output_size=1")
            reduces = name == "mean" and isinstance(argument, (tuple, list)) and tuple(argument) in everywhere
            if pools or reduces:
                self.steps[-1].remove(step)
                self.pooling = "mean"
                return


def _read_activation(steps: Sequence[tuple[str, Any]]) -> Activation | None:
    """The activation that the steps compute; None if it is uncertain."""
    steps = [(name, x) for name, x in steps if name not in _KEEPS_VALUES]
    names = [_ACTIVATIONS.get(name, name) for name, _ in steps]
    if not names:
        return Activation("identity")
    if names == ["sin"]:
        return Activation("sine", 1.0)
    if names == ["mul", "sin"] and isinstance(steps[0][1], (int, float)) and steps[0][1] > 0:
        return Activation("sine", float(steps[0][1]))
    known = {*_ACTIVATIONS.values(), "erf"}
    return Activation(names[0]) if len(names) == 1 and names[0] in known and steps[0][1] is None else None


def _optional_arguments(module: nn.Module) -> dict[str, Any]:
    """The arguments of `forward` after the first that have plain defaults; chains are traced with these."""
    arguments = list(inspect.signature(module.forward).parameters.values())[1:]
    return {x.name: x.default for x in arguments if x.default is None or isinstance(x.default, (bool, int, float, str))}


def _follow_chain(
    module: nn.Module, graph: fx.Graph, facts: _ChainFacts, options: Mapping[str, Any]
) -> Iterator[LayerSpec]:
    """Walks a traced forward, in which every step must take the result of the one before it."""
    current: fx.Node | None = None
    shapes: set[fx.Node] = set()  # nodes that hold sizes or options, not activations
    parameters: dict[fx.Node, str] = {}
    buffers = dict(module.named_buffers())
    seen: set[str] = set()
    unknown: str | None = None  # an operation between layers that may mix neurons
    last: LayerSpec | None = None
    positions_removed = False
    for node in graph.nodes:
        if node.op == "placeholder":
            if current is not None and node.name.rpartition("_")[0] in options:
                shapes.add(node)
            current = node if current is None else current
            continue
        if node.op == "output":
            if current not in node.all_input_nodes:
                raise UserError(f"The output of {type(module).__name__} does not come from its last layer.")
            continue
        name = _name(node)
        if node.op == "get_attr":
            parameters[node] = str(node.target)
            if (buffer := buffers.get(str(node.target))) is not None and buffer.numel() == 1:
                facts.numbers[node] = buffer.item()
                shapes.add(node)
            continue
        layer = _functional_layer(module, node, current, parameters)
        inputs = [n for n in node.all_input_nodes if n not in shapes]
        if _is_shape(node, name) or not inputs:
            shapes.add(node)
            continue
        if layer is None and inputs != [current]:
            raise UserError(
                f"'{node.name}' in {type(module).__name__} takes {[parameters.get(n, n.name) for n in inputs]} where "
                f"only the previous result ({current}) was expected. Skip connections, branches and tensors other than "
                "layers' weights are not supported: a network must be a chain of layers."
            )
        current = node
        if layer is None and node.op != "call_module":
            positions_removed |= name in _REMOVES_POSITIONS or name.startswith("adaptive_")
            unknown = unknown if name in _NEURONWISE_FUNCTIONS else f"the operation '{name}'"
            facts.add(name, _constant_argument(node, facts.numbers))
            continue
        target = str(node.target) if layer is None else layer.name
        part = module.get_submodule(target)
        if layer is None and not isinstance(part, _LAYERS):
            _refuse_parameters(part, target)
            kind = type(part).__name__
            positions_removed |= kind == "Flatten" or kind.startswith("Adaptive")
            unknown = unknown if kind in _NEURONWISE_MODULES else f"'{target}' ({kind})"
            options_shown = part.extra_repr().replace("inplace=True", "").strip(", ")
            facts.add(kind, None if options_shown in ("", _default_repr(kind)) else options_shown)
            continue
        if target in seen:
            raise UserError(
                f"The layer '{target}' is used twice. Expected each layer once: shared layers are not supported."
            )
        if last is not None and unknown:
            raise UserError(
                f"Between the layers '{last.name}' and '{target}' there is {unknown}, which may mix neurons. "
                "Expected activations, pooling and other operations that treat every neuron separately."
            )
        layer = _layer_spec(part, target) if layer is None else layer
        if last is not None and last.kernel and not layer.kernel and not positions_removed:
            raise UserError(
                f"The dense layer '{target}' follows the convolution '{last.name}' directly. "
                "Expected global pooling between them, such as nn.AdaptiveAvgPool2d(1) and nn.Flatten()."
            )
        seen.add(target)
        if last is not None and last.kernel and not layer.kernel:
            facts.take_pooling(len(last.kernel))
        facts.steps.append([])
        last, unknown, positions_removed = layer, None, False
        yield layer


def _functional_layer(
    module: nn.Module, node: fx.Node, current: fx.Node | None, parameters: Mapping[fx.Node, str]
) -> LayerSpec | None:
    """The dense layer of `F.linear(x, self.weight, self.bias)`, with parameters of these names; else None."""
    if node.target is not nn.functional.linear:
        return None
    given = dict(zip(("input", "weight", "bias"), node.args, strict=False)) | dict(node.kwargs)
    keys = {kind: parameters.get(x) for kind in ("weight", "bias") if isinstance(x := given.get(kind), fx.Node)}
    name = (keys.get("weight") or "").rpartition(".")[0]
    wanted = {kind: LayerSpec(1, 1, name=name).key(kind) for kind in keys}
    weight = dict(module.named_parameters(remove_duplicate=False)).get(wanted.get("weight", ""))
    if given.get("input") is not current or keys != wanted or weight is None or weight.ndim != 2:
        return None
    out_neurons, in_neurons = weight.shape
    return LayerSpec(out_neurons, in_neurons, (), "bias" in keys, name)


def _constant_argument(node: fx.Node, numbers: Mapping[fx.Node, float]) -> Any:
    """The number in an operation such as `30 * x`, or its options; None if it has none."""
    given = [numbers.get(x, x) if isinstance(x, fx.Node) else x for x in node.args]
    options = [value for name, value in node.kwargs.items() if name != "inplace" and value is not None]
    rest = [x for x in (*given, *options) if not isinstance(x, fx.Node) and x is not False]
    return None if not rest else rest[0] if len(rest) == 1 else rest


def _default_repr(kind: str) -> str:
    """The repr of a module with default arguments: with others, it computes another function."""
    made: nn.Module = getattr(nn, kind)() if kind in _ACTIVATIONS else nn.Identity()
    return made.extra_repr()


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
    raise UserError(
        f"{reason} is not supported, but '{name}' is a {kind}. "
        "Expected dense layers and convolutions with activations and pooling between them."
    )


def _layer_spec(layer: nn.Module, name: str) -> LayerSpec:
    assert isinstance(layer, _LAYERS)
    if nn.parameter.is_lazy(layer.weight):
        raise UserError(f"The layer '{name}' has no shape yet. Run the module once on data before reading its spec.")
    if not isinstance(layer, nn.Linear) and layer.groups != 1:
        raise UserError(
            f"The convolution '{name}' has {layer.groups} groups. Expected groups=1: in grouped convolutions "
            "neurons of different groups cannot be exchanged."
        )
    out_neurons, in_neurons, *kernel = layer.weight.shape
    spec = LayerSpec(out_neurons, in_neurons, tuple(kernel), layer.bias is not None, name)
    if isinstance(layer, nn.Linear):
        return spec
    plain = layer.padding_mode == "zeros" and set(layer.dilation) == {1} and not isinstance(layer.padding, str)
    return replace(spec, stride=layer.stride, padding=layer.padding) if plain else spec  # pyright: ignore


def spec_from_state_dict(
    state_dict: Mapping[str, Tensor], layers: Sequence[str] | None = None, *, is_chain: bool = False
) -> NetworkSpec:
    """Finds the layers of a `state_dict` from their shapes and names, in any order of its keys.

    Neighbouring layers must fit, convolutions come before dense layers, and layers whose names differ only in
    numbers (`net.2`, `net.10`) are in the order of these numbers. If several orders remain, it raises.

    Args:
        state_dict: Keys `name.weight` and `name.bias`.
        layers: Names from input to output, to set the order explicitly.
        is_chain: Whether the layers are known to follow each other directly, without skip connections.
    """
    weights = {k.rpartition(".")[0]: v for k, v in state_dict.items() if k.rpartition(".")[2] == "weight"}
    stacked = {v.shape[0] for k, v in state_dict.items() if k.rpartition(".")[2] == "bias" and v.ndim == 2}
    if len(stacked) == 1 and all(v.shape[:1] == (*stacked,) for v in state_dict.values()):
        raise UserError(
            f"Expected the state_dict of one network, but its tensors seem to be a stack of {stacked.pop()} "
            "networks. Make a list of it: [{k: x[i] for k, x in stacked.items()} for i in range(len(networks))]."
        )
    expected = {key for name in weights for key in (f"{name}.weight".lstrip("."), f"{name}.bias".lstrip("."))}
    strangers = [k for k in state_dict if k not in expected] + [f"{n}.weight" for n, w in weights.items() if w.ndim < 2]
    if strangers or not weights:
        raise UserError(
            "Expected a state_dict with the weights and biases of dense layers and convolutions only, but found "
            f"{', '.join(sorted(strangers)) or 'no weights'}. A state_dict alone does not say what other tensors do: "
            "pass the module as well (--module on the command line), or the spec that "
            "NetworkSpec.from_module(module, example_inputs) finds."
        )
    specs = {
        name: LayerSpec(
            w.shape[0], w.shape[1], tuple(w.shape[2:]), LayerSpec(1, 1, name=name).key("bias") in state_dict, name
        )
        for name, w in weights.items()
    }
    if layers is not None:
        if sorted(layers) != sorted(specs):
            raise UserError(f"Expected the names of all layers, {sorted(specs)}, in order, but got {list(layers)}.")
        return NetworkSpec(tuple(specs[name] for name in layers))
    order = find_order(specs)
    if not is_chain:
        _refuse_possible_skips(order)
    return NetworkSpec(tuple(order))


def _refuse_possible_skips(layers: Sequence[LayerSpec]) -> None:
    """A `state_dict` does not show sums of layers' outputs: layers must have one numbered list of names.

    The layer after the list may have another name. Layers of different widths cannot be added.
    """
    names = [layer.name for layer in layers]
    is_followed = all(re.search(r"(^|\.)\d+(\.|$)", name) for name in names[:-1])
    lists = {
        re.split(r"\d", name)[0] if re.search(r"\d", name) else name for name in names[: -1 if is_followed else None]
    }
    widths = [layers[0].in_neurons, *(layer.out_neurons for layer in layers)]
    if len(lists) > 1 and len(set(widths[1:])) < len(widths) - 1:
        raise UserError(
            f"The shapes of {', '.join(names)} also allow a network with skip connections, which a state_dict does not "
            f"show. If the layers follow each other directly, confirm it with layers={names}, or on the command line "
            f"with --layers {','.join(names)}. Otherwise read the module: NetworkSpec.from_module(module, "
            "example_inputs)."
        )


def spec_from_axes(
    tensors: Mapping[str, Sequence[str | None]],
    sizes: Mapping[str, int] | Mapping[str, Tensor] | nn.Module,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
) -> NetworkSpec:
    """A spec from the names of the axes of each tensor; see `NetworkSpec.from_axes`."""
    state: Mapping[str, Any] = sizes.state_dict() if isinstance(sizes, nn.Module) else sizes
    known = {name: size for name, size in state.items() if isinstance(size, int)}
    used: dict[str, list[tuple[str, int]]] = {}
    for key, names in tensors.items():
        for place, name in enumerate(names):
            if name is not None:
                used.setdefault(name, []).append((key, place))
    shapes: dict[str, tuple[int, ...]] = {}
    for key, names in tensors.items():
        if isinstance(state.get(key), Tensor):
            shapes[key] = tuple(state[key].shape)
        elif None not in names and all(name in known for name in names):
            shapes[key] = tuple(known[str(name)] for name in names)
        if len(shapes.get(key, ())) != len(names):
            raise UserError(
                f"Expected a size for each of the axes {tuple(names)} of '{key}', but got {shapes.get(key)}. Give the "
                "sizes of all axes, or a state_dict to read them from."
            )
        for name, size in zip(names, shapes[key], strict=True):
            if name is not None and known.setdefault(name, size) != size:
                raise UserError(f"The axis '{name}' has {known[name]} neurons elsewhere, but {size} in '{key}'.")
    numbers = {name: n for n, name in enumerate(used)}
    axes = []
    for name, places in used.items():
        # Neurons that permute freely join at least two tensors; others belong to the input or output.
        alone = len({key for key, _ in places}) == 1 and not inputs and not outputs
        role = "input" if name in inputs or (alone and places[0][1]) else "output" if name in outputs or alone else None
        axes.append(Axis(known[name], role or "hidden", name))
    groups, start = [], 0
    for n, (key, names) in enumerate(tensors.items(), start=1):
        shape = shapes[key]
        strides = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
        order = [i for i, x in enumerate(names) if x is not None] + [i for i, x in enumerate(names) if x is None]
        here = tuple(numbers[x] for x in names if x is not None)
        kind = "weight" if len(here) > 1 or "bias" not in key else "bias"
        block = (tuple(shape[i] for i in order), start, key, 0, tuple(strides[i] for i in order), shape)
        groups.append(Group(n, kind, here, *block))
        start = groups[-1].stop
    return NetworkSpec(axes=tuple(axes), groups=tuple(groups))
