"""Follows the axes of neurons through a traced module: `Propagation`, and `rule` to register operations.

The rules are in `operations`, one function for each kind of ATen operation. An operation without a rule pins all
dimensions that it touches.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from neuralfunctionals.weight_space.labels import Family, Label, fresh, pin, unify, unit

Labels = list[Any]
"""A `Label` or `Family` for each dimension."""

Rules = dict[str, tuple[Callable[..., Any], bool]]
"""Rules of operations by ATen name, and whether they support the parts of fused tensors."""
RULES: Rules = {}


def rule(names: str, *, families: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function as the rule of some operations, by their ATen names.

    Args:
        names: The operations, one word each; `pointwise` stands for all operations that torch tags as pointwise and
            that have no other rule.
        families: Whether it supports the parts of fused tensors, which are taken as one label otherwise.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        RULES.update(dict.fromkeys(names.split(), (function, families)))
        return function

    return register


_FILL = ("full_like", "empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted")
"""Operations that make a tensor of one value, or of arbitrary values to be overwritten."""


class Propagation:
    """Walks through a traced graph and assigns labels to every tensor."""

    def __init__(self, known: dict[fx.Node, Labels], constants: dict[fx.Node, Any], rules: Rules) -> None:
        self.rules = rules
        self.labels: dict[fx.Node, Any] = dict(known)
        self.constants = dict(constants)
        """Values that depend on neither weights nor inputs; these nodes have no labels of their own."""

    def run(self, graph: fx.Graph) -> None:
        for node in graph.nodes:
            if node.op == "call_function" and not self._evaluate(node):
                self.labels[node] = self._apply(node)

    def _evaluate(self, node: fx.Node) -> bool:
        """Computes a node whose inputs are all constant; returns whether it is one."""
        if "val" not in node.meta:
            return False
        if operation_name(node) in _FILL:
            fill = node.args[1] if operation_name(node) == "full_like" else 0
            self.constants[node] = torch.full(shape_of(node), fill, dtype=node.meta["val"].dtype)  # pyright: ignore
            return True
        if not all(n in self.constants for n in node.all_input_nodes):
            return False
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: self.constants[n])
        try:
            with torch.no_grad():
                self.constants[node] = node.target(*args, **kwargs)  # pyright: ignore[reportCallIssue]
        except Exception:  # symbolic sizes or missing devices: nothing is known then
            return False
        return True

    def _apply(self, node: fx.Node) -> Any:
        if node.target is operator.getitem:
            source: Any = node.args[0]
            return self.labels[source][node.args[1]]
        if node.meta.get("val") is None:  # an assertion, which has no result
            return None
        name = operation_name(node)
        found = self.rules.get(name)
        if found is None and torch.Tag.pointwise in getattr(node.target, "tags", ()):
            found = self.rules["pointwise"]
        function, knows_families = found or (None, False)
        if not knows_families:
            for source in node.all_input_nodes:
                if isinstance(source.meta.get("val"), Tensor) and source not in self.constants:
                    self.labels[source] = [collapse(x) for x in self.labels[source]]
        if function is None:
            return self.give_up(node, f"the operation '{name}' is not known")
        return function(self, node)

    def of(self, node: Any) -> Labels:
        """The labels of a tensor; those of a constant are new ones for each use."""
        return constant_labels(self.constants[node]) if node in self.constants else self.labels[node]

    def give_up(self, node: fx.Node, reason: str) -> Any:
        """Pins everything that an operation touches."""
        reason = f"{reason} ({where(node)})"
        for label in (x for n in node.all_input_nodes for x in _flat(self.labels.get(n))):
            pin(label, reason)
        return like(node.meta["val"], lambda n: fresh(n, "pinned", reason))


def constant_labels(value: Tensor) -> Labels:
    """Labels of a tensor of constants: free along dimensions over which it does not change."""
    labels: Labels = []
    for dimension, size in enumerate(value.shape):
        alike = size <= 1 or bool((value == value.narrow(dimension, 0, 1)).all())
        labels.append(fresh(size) if alike else fresh(size, "pinned", "it meets constants that differ"))
    return labels


def collapse(label: Any) -> Label:
    """One label for a whole family."""
    if isinstance(label, Family):
        for member in label.members[1:]:
            unify(label.members[0], member, "parts of a fused tensor")
        return label.members[0]
    return label


def broadcast(tensors: Sequence[Labels], shape: Sequence[int], name: str) -> Labels:
    """The labels of tensors that are expanded to one shape; positions along which all are repeated are alike."""
    result = [unit() for _ in shape]
    for labels in tensors:
        for n, label in enumerate(labels, start=len(shape) - len(labels)):
            if result[n].size == 1:
                result[n] = label
            elif label.size != 1:
                unify(result[n], label, name)
    return [x if x.size == n else fresh(n) for x, n in zip(result, shape, strict=True)]


def where(node: fx.Node) -> str:
    """The submodule and line that an operation comes from, for messages."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [str(path) for path, _ in stack.values() if path]
    module = f" in '{paths[-1]}'" if paths else ""
    return f"{operation_name(node)}{module}"


def positions(size: int, node: fx.Node) -> Label:
    """The label of a dimension of pixels, places or the like, which never permute."""
    return fresh(size, "pinned", positions_at(node))


def positions_at(node: fx.Node) -> str:
    """The reason why positions do not permute."""
    return f"positions at {where(node)}"


def operation_name(node: fx.Node) -> str:
    """The ATen name of an operation."""
    target: Any = node.target
    return target._schema.name.removeprefix("aten::") if hasattr(target, "_schema") else str(target)


def _flat(labels: Any) -> list[Label]:
    if labels is None:
        return []
    if isinstance(labels, list):
        return [x for part in labels for x in _flat(part)]
    return [collapse(labels)]


def like(value: Any, make: Callable[[int], Label]) -> Any:
    """A label for each dimension of a tensor, or of several."""
    if isinstance(value, (tuple, list)):
        return [like(v, make) for v in value]
    return [make(int(n)) for n in value.shape] if isinstance(value, Tensor) else None


def shape_of(node: Any) -> list[int]:
    """The shape of a node's result."""
    return [int(n) for n in node.meta["val"].shape]


def argument(node: fx.Node, place: int, name: str, default: Any = None) -> Any:
    """An argument of an operation, given by position or by name."""
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)
