"""Finds the axes of neurons of any module: exports it, labels its dimensions and writes the spec."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from neuralfunctionals.errors import UserError
from neuralfunctionals.weight_space.axes import Axis, Group
from neuralfunctionals.weight_space.labels import Label, alternatives, fresh, product, restrict
from neuralfunctionals.weight_space.operations import RULES
from neuralfunctionals.weight_space.propagation import Propagation, constant_labels
from neuralfunctionals.weight_space.spec import NetworkSpec

RUNNING = {"running_mean": "running mean", "running_var": "running variance"}
"""Buffers that belong to the function."""


def trace_spec(module: nn.Module, example_inputs: Tensor | Sequence[Any] | Mapping[str, Any]) -> NetworkSpec:
    """The spec of a module from a trace of its `forward`; not yet verified."""
    name = type(module).__name__
    args, kwargs = split_inputs(example_inputs)
    module = prepare(module)
    tensors = state_tensors(module)
    if not tensors:
        raise UserError(f"{name} has no parameters. Expected a network with weights.")
    exported = _export(module, args, kwargs, name)
    _refuse_hidden_weights(module, exported, name)
    labels, propagation = _label_graph(exported, tensors)
    return _write_spec(name, tensors, labels, propagation)


def split_inputs(
    example_inputs: Tensor | Sequence[Any] | Mapping[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments, with floating-point numbers in float64."""
    as_double = _to_double(example_inputs)
    if isinstance(as_double, Mapping):
        return (), dict(as_double)
    return ((as_double,) if isinstance(as_double, Tensor) else tuple(as_double)), {}


def _to_double(value: Any) -> Any:
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        return value.double() if value.is_floating_point() else value
    if isinstance(value, Mapping):
        return {key: _to_double(v) for key, v in value.items()}
    return type(value)(_to_double(v) for v in value) if isinstance(value, (tuple, list)) else value


def prepare(module: nn.Module) -> nn.Module:
    """A copy in evaluation mode and float64: in training mode, batch norm depends on the batch."""
    name = type(module).__name__
    lazy = [key for key, p in module.named_parameters() if nn.parameter.is_lazy(p)]
    if lazy:
        raise UserError(f"'{lazy[0]}' of {name} has no shape yet. Run the module once on data before reading it.")
    try:
        return copy.deepcopy(module).cpu().eval().double()
    except RuntimeError as error:
        raise UserError(f"{name} could not be copied: {error}. Give a module that copy.deepcopy accepts.") from error


@dataclass
class StateTensor:
    """A parameter, or a buffer that belongs to the function, under all its keys."""

    keys: list[str]
    tensor: Tensor
    is_parameter: bool


def state_tensors(module: nn.Module) -> list[StateTensor]:
    """Parameters and running statistics in the order of the `state_dict`; tied ones once."""
    found: dict[int, StateTensor] = {}
    saved = module.state_dict(keep_vars=True)
    for key, tensor in saved.items():
        is_parameter = isinstance(tensor, nn.Parameter)
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            continue
        if is_parameter or key.rpartition(".")[2] in RUNNING:
            found.setdefault(id(tensor), StateTensor([], tensor, is_parameter)).keys.append(key)
    return list(found.values())


def _export(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Any:
    """The graph in core operations, with attention as one operation."""
    entered: list[str] = []
    hooks = [
        part.register_forward_pre_hook(lambda _, __, path=path: entered.append(path))
        for path, part in module.named_modules()
        if path
    ]
    for p in module.parameters():
        p.requires_grad_(True)  # the fused inference path of nn.TransformerEncoder is one opaque operation
    try:
        with _quiet(), torch.enable_grad():
            program = torch.export.export(module, args, kwargs, strict=False)
            table = torch.export.default_decompositions()
            table.pop(torch.ops.aten.scaled_dot_product_attention.default, None)
            return program.run_decompositions(table)
    except Exception as error:  # the export runs the user's code, which may raise anything
        reason = str(error).strip().splitlines() or [type(error).__name__]
        part = f" in its part '{entered[-1]}'" if entered else ""
        raise UserError(
            f"Could not trace {name}{part}: {type(error).__name__}: {reason[0]} "
            "Check that module(*example_inputs) runs in float64 on the CPU, and that forward does not branch on the "
            "values of tensors; or name the axes yourself with NetworkSpec.from_axes."
        ) from error
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses the pages that a failed export writes to standard error, which do not help the user."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _refuse_hidden_weights(module: nn.Module, exported: Any, name: str) -> None:
    """Raises if forward uses a tensor that is not in the `state_dict`."""
    constants = {id(t) for t in exported.constants.values() if isinstance(t, Tensor)}
    buffers = {id(t) for t in module.buffers()}
    for path, part in module.named_modules():
        for attribute, value in vars(part).items():
            values = value if isinstance(value, (list, tuple)) else [value]
            values = [p for v in values for p in (v.parameters() if isinstance(v, nn.Module) else [v])]
            for tensor in values if attribute not in ("_modules", "_parameters", "_buffers") else []:
                is_weight = isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.numel() > 1
                if is_weight and id(tensor) in constants and id(tensor) not in buffers:
                    raise UserError(
                        f"{name} computes with the tensor '{path + '.' if path else ''}{attribute}', which is not a "
                        "parameter or buffer, so the state_dict does not contain it. Register it with nn.Parameter, "
                        "register_buffer or nn.ModuleList."
                    )


def _label_graph(exported: Any, tensors: list[StateTensor]) -> tuple[dict[str, list[Label]], Propagation]:
    """Labels of each tensor of the state, by its first key, after a walk through the graph."""
    known: dict[fx.Node, Any] = {}
    state = {key: [fresh(n) for n in t.tensor.shape] for t in tensors for key in t.keys[:1]}
    first = {key: t.keys[0] for t in tensors for key in t.keys}
    signature = exported.graph_signature
    held = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    constants = {**exported.constants, **exported.state_dict}
    for node in exported.graph.nodes:
        if node.op != "placeholder":
            continue
        value = node.meta.get("val")
        key = held.get(node.name)
        if key in first:
            known[node] = state[first[key]]
        elif node.name in signature.user_inputs and isinstance(value, Tensor):
            known[node] = [fresh(int(n), "input") for n in value.shape]
        elif key is not None and isinstance(value, Tensor):  # a buffer: its values may differ between networks
            known[node] = [fresh(int(n), "pinned", f"the buffer '{key}'") for n in value.shape]
        else:
            constant = signature.inputs_to_lifted_tensor_constants.get(node.name)
            known[node] = constant_labels(constants.get(constant)) if constant else None
    propagation = Propagation(known, RULES)
    propagation.run(exported.graph)
    names = {spec.arg.name for spec in signature.output_specs if hasattr(spec.arg, "name")}
    for node in exported.graph.nodes:
        if node.name in names and isinstance(node.meta.get("val"), Tensor):
            for label in propagation.labels[node] or []:
                restrict(label, "output")
    return state, propagation


def _write_spec(
    name: str, tensors: list[StateTensor], labels: dict[str, list[Label]], propagation: Propagation
) -> NetworkSpec:
    numbers: dict[int, int] = {}
    axes: list[Axis] = []
    groups: list[Group] = []
    atoms: list[Label] = []
    start = 0
    for n, state in enumerate(tensors, start=1):
        key, shape = state.keys[0], tuple(state.tensor.shape)
        # Strided blocks of the tensor; each of their dimensions is one set.
        for offset, factors in alternatives(product(labels[key])):
            neurons, inner = [], []
            for label, stride in factors:
                if label.size == 1:
                    continue
                if label.role == "pinned":
                    inner.append((label.size, stride))
                    continue
                if id(label) not in numbers:
                    numbers[id(label)] = len(axes)
                    role: Any = label.role
                    axes.append(Axis(label.size, role, _axis_name(key, axes)))
                    atoms.append(label)
                neurons.append((numbers[id(label)], label.size, stride))
            here = tuple(axis for axis, _, _ in neurons)
            dims = [(size, stride) for _, size, stride in neurons] + inner or [(1, 1)]
            sizes, strides = zip(*dims, strict=True)
            groups.append(Group(n, _kind(key, here), here, sizes, start, key, offset, strides, shape))
            start = groups[-1].stop
    if not any(axis.role == "hidden" for axis in axes):
        raise UserError(
            f"Found no hidden neurons in {name} that can permute. "
            + (f"Pinned: {'; '.join(propagation.notes[:3])}. " if propagation.notes else "")
            + "Expected at least two layers with neurons between them."
        )
    axes = _nest(axes, atoms, propagation)
    aliases = tuple((key, state.keys[0]) for state in tensors for key in state.keys[1:])
    return NetworkSpec(axes=tuple(axes), groups=tuple(groups), aliases=aliases, notes=tuple(propagation.notes))


def _kind(key: str, axes: tuple[int, ...]) -> str:
    last = key.rpartition(".")[2]
    if last in RUNNING:
        return RUNNING[last]
    return "bias" if "bias" in last else "weight" if len(axes) > 1 or last != "weight" else "scale"


def _axis_name(key: str, axes: Sequence[Axis]) -> str:
    base = key.rpartition(".")[0] or key
    taken = {axis.name for axis in axes}
    return next(n for n in (base, *(f"{base}/{i}" for i in range(2, len(axes) + 3))) if n not in taken)


def _nest(axes: list[Axis], atoms: list[Label], propagation: Propagation) -> list[Axis]:
    """Finds axes that only occur together with another axis: they permute separately for each of its neurons."""
    number = {id(atom): n for n, atom in enumerate(atoms)}
    companions: dict[int, set[int]] = {}
    for labels in _all_tensors(propagation.labels.values()):
        # A sum has several terms, in each of which the axes occur with others.
        terms: list[set[int]] = [set()]
        for label in labels:
            members = label.members if hasattr(label, "members") else [label]
            found = [f for m in members for _, f in alternatives(m)]
            terms = [t | {number[id(x)] for x, _ in f if id(x) in number} for t in terms for f in found][:4096]
        for term in terms:
            for n in term:
                companions[n] = companions.get(n, term) & term
    result = list(axes)
    for n, axis in enumerate(axes):
        parents = [
            m
            for m in companions.get(n, set()) - {n}
            if axes[m].role == "hidden" and n not in companions.get(m, set()) and axis.role == "hidden"
        ]
        # One level: the parent itself is not nested.
        parents = [m for m in parents if not (companions[m] - {m}) & set(parents)] or parents
        if parents and result[parents[0]].within is None:
            result[n] = Axis(axis.size, axis.role, axis.name, axis.activation, parents[0])
    nested_in = {axis.within for axis in result}
    for n in nested_in - {None}:
        assert n is not None
        result[n] = Axis(result[n].size, result[n].role, result[n].name, result[n].activation)
    return result


def _all_tensors(values: Any) -> Iterator[list[Any]]:
    for value in values:
        if isinstance(value, list) and value and not isinstance(value[0], list):
            yield [v for v in value if v is not None]
        elif isinstance(value, list):
            yield from _all_tensors(value)
