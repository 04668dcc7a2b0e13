"""Finds the axes of neurons of any module: exports it, labels its dimensions and writes the spec."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx, nn

from neuralfunctionals.errors import UserError
from neuralfunctionals.weight_space.axes import Axis, Group
from neuralfunctionals.weight_space.labels import (
    Family,
    Label,
    alternatives,
    fresh,
    leaves,
    product,
    restrict,
    unify,
)
from neuralfunctionals.weight_space.operations import RULES
from neuralfunctionals.weight_space.propagation import Propagation, collapse, like, operation_name, where
from neuralfunctionals.weight_space.spec import NetworkSpec
from neuralfunctionals.weight_space.state import copy_module, require_plain

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
    labels, propagation = _label_graph(exported, tensors)
    return _write_spec(name, tensors, labels, propagation)


def split_inputs(
    example_inputs: Tensor | Sequence[Any] | Mapping[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments, with floating-point numbers in float64."""
    if isinstance(example_inputs, Mapping):
        return (), {key: _to_double(value) for key, value in example_inputs.items()}
    args = (example_inputs,) if isinstance(example_inputs, Tensor) else tuple(example_inputs)
    return _to_double(args), {}


def _to_double(value: Any) -> Any:
    def convert(x: Any) -> Any:
        x = x.detach().cpu() if isinstance(x, Tensor) else x
        return x.double() if isinstance(x, Tensor) and x.is_floating_point() else x

    return pytree.tree_map(convert, value)


def prepare(module: nn.Module) -> nn.Module:
    """A copy in evaluation mode and float64: in training mode, batch norm depends on the batch."""
    name = type(module).__name__
    for key, parameter in module.named_parameters():
        if nn.parameter.is_lazy(parameter):
            raise UserError(f"'{key}' of {name} has no shape yet. Run the module once on data before reading it.")
        if not parameter.is_floating_point():
            raise UserError(
                f"The parameter '{key}' of {name} holds numbers of type {str(parameter.dtype).removeprefix('torch.')}. "
                "Expected real floating-point parameters; integers belong in buffers."
            )
        require_plain(key, parameter, f"{name}: expected")
    return copy_module(module).cpu().eval().double()


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
    """The graph in core operations, and in a few others whose decompositions hide what they do."""
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
            _refuse_hidden_weights(module, program, name)
            table = torch.export.default_decompositions()
            for operation in (torch.ops.aten.scaled_dot_product_attention, torch.ops.aten.select_scatter):
                table.pop(operation.default, None)
            program = program.run_decompositions(table)
    except UserError:
        raise
    except Exception as error:  # the export runs the user's code, which may raise anything
        reason = str(error).strip().splitlines() or [type(error).__name__]
        part = f" in its part '{entered[-1]}'" if entered else ""
        raise UserError(
            f"Could not trace {name}{part}: {type(error).__name__}: {reason[0].removesuffix('.')}. {_WHAT_TO_CHECK}"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    for node in program.graph.nodes:
        if any(isinstance(n, torch.SymInt) for x in pytree.tree_leaves(node.meta.get("val")) for n in _shape(x)):
            raise UserError(
                f"Could not trace {name}: the shape of a tensor depends on values ({where(node)}). {_WHAT_TO_CHECK}"
            )
    return program


_WHAT_TO_CHECK = (
    "Check that module(*example_inputs) runs in float64 on the CPU, and that forward does not branch on the values of "
    "tensors; or name the axes yourself with NetworkSpec.from_axes."
)


def _shape(value: Any) -> Sequence[Any]:
    return value.shape if isinstance(value, Tensor) else ()


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


def _refuse_hidden_weights(module: nn.Module, program: Any, name: str) -> None:
    """Raises if forward uses a tensor that is not in the `state_dict`, other than one that it creates itself."""
    held = program.graph_signature.inputs_to_lifted_tensor_constants
    for node in program.graph.nodes:
        tensor = program.constants.get(held.get(node.name)) if node.op == "placeholder" else None
        if (
            not isinstance(tensor, Tensor)
            or tensor.numel() < 2
            or not (tensor.is_floating_point() or tensor.is_complex())
        ):
            continue
        users = [user for user in node.users if operation_name(user) != "lift_fresh_copy"]
        if users:
            path = _find_attribute(module, tensor)
            what = f"a tensor of shape {tuple(tensor.shape)}" if path is None else f"the tensor '{path}'"
            raise UserError(
                f"{name} computes with {what}, which is not a parameter or buffer ({where(users[0])}), so the "
                "state_dict does not contain it. Register it with nn.Parameter, register_buffer or nn.ModuleList."
            )


def _find_attribute(value: Any, tensor: Tensor, depth: int = 6) -> str | None:
    """The path of a tensor in the attributes of an object, through lists, dicts and other objects."""
    if isinstance(value, Mapping):
        parts = value.items()
    elif isinstance(value, (list, tuple)):
        parts = enumerate(value)
    else:
        plain = {k: v for k, v in getattr(value, "__dict__", {}).items() if k not in ("_modules", "_parameters")}
        parts = {**plain, **(dict(value.named_children()) if isinstance(value, nn.Module) else {})}.items()
    for key, part in parts if depth else ():
        if part is tensor:
            return str(key)
        found = None if isinstance(part, (Tensor, str)) else _find_attribute(part, tensor, depth - 1)
        if found is not None:
            return f"{key}.{found}"
    return None


def _label_graph(exported: Any, tensors: list[StateTensor]) -> tuple[dict[str, list[Label]], Propagation]:
    """Labels of each tensor of the state, by its first key, after a walk through the graph."""
    known: dict[fx.Node, Any] = {}
    constants: dict[fx.Node, Any] = {}
    state = {t.keys[0]: [fresh(n) for n in t.tensor.shape] for t in tensors}
    first = {key: t.keys[0] for t in tensors for key in t.keys}
    signature = exported.graph_signature
    held = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
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
            known[node] = [fresh(int(n), "pinned", f"it meets the buffer '{key}'") for n in value.shape]
        elif node.name in signature.inputs_to_lifted_tensor_constants:
            constants[node] = exported.constants[signature.inputs_to_lifted_tensor_constants[node.name]]
        else:
            known[node] = like(value, lambda n: fresh(n, "pinned"))
    propagation = Propagation(known, constants, RULES)
    propagation.run(exported.graph)
    results = {spec.arg.name: spec for spec in signature.output_specs if hasattr(spec.arg, "name")}
    for node in exported.graph.nodes:
        if node.name in results and isinstance(node.meta.get("val"), Tensor):
            for n, label in enumerate(propagation.of(node)):
                changed = first.get(results[node.name].target)  # a running statistic that forward updates
                if changed is None:
                    restrict(collapse(label), "output")
                else:
                    unify(collapse(label), state[changed][n], f"the update of '{changed}'")
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
            groups.append(Group(n, _kind(key, len(shape)), here, sizes, start, key, offset, strides, shape))
            start = groups[-1].stop
    reasons = _why_pinned(labels)
    if not any(axis.role == "hidden" for axis in axes):
        reasons = [*(r for r in reasons if not _is_usual(r)), *filter(_is_usual, reasons)][:3]
        advice = f"{'; '.join(reasons)}. If they do permute, name the axes yourself with NetworkSpec.from_axes."
        raise UserError(
            f"Found no hidden neurons in {name} that can permute. "
            + (advice if reasons else "Expected layers with neurons between them.")
        )
    axes = _nest(axes, atoms, propagation)
    aliases = tuple((key, state.keys[0]) for state in tensors for key in state.keys[1:])
    notes = tuple(reason for reason in reasons if not _is_usual(reason))
    return NetworkSpec(axes=tuple(axes), groups=tuple(groups), aliases=aliases, notes=notes)


def _why_pinned(labels: dict[str, list[Label]]) -> list[str]:
    """For each reason other than the obvious ones, the tensors with dimensions that it pins."""
    found: dict[str, list[str]] = {}
    for key, dimensions in labels.items():
        for leaf in (leaf for label in dimensions for leaf in leaves(label)):
            if leaf.role == "pinned" and leaf.reason and key not in found.setdefault(leaf.reason, []):
                found[leaf.reason].append(key)
    return [
        f"'{keys[0]}'{f' and {len(keys) - 1} more' if len(keys) > 1 else ''} cannot permute: {reason}"
        for reason, keys in found.items()
    ]


def _is_usual(reason: str) -> bool:
    """Whether it is no surprise that something does not permute: pixels, places in a text, rows of a table."""
    return ": positions at " in reason


def _kind(key: str, ndim: int) -> str:
    last = key.rpartition(".")[2]
    if last in RUNNING:
        return RUNNING[last]
    return "bias" if "bias" in last else "scale" if last == "weight" and ndim == 1 else "weight"


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
            found = [f for _, f in alternatives(label)]
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


def _all_tensors(values: Any) -> Iterator[list[Label]]:
    """The labels of every tensor; of one that holds q, k and v, those of each."""
    for value in values:
        if isinstance(value, list) and any(isinstance(x, list) for x in value):
            yield from _all_tensors(value)
        elif isinstance(value, list):
            count = max((len(x.members) for x in value if isinstance(x, Family)), default=1)
            for n in range(count):
                yield [x.members[n] if isinstance(x, Family) else x for x in value]
