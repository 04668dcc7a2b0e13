"""Follows the axes of neurons through a traced module: `Propagation`, and `rule` to register operations.

The rules are in `operations`, one function for each kind of ATen operation. An operation without a rule pins all
dimensions that it touches.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from neuralfunctionals.weight_space.labels import Family, Label, find, fresh, pin, unify

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


class Propagation:
    """Walks through a traced graph and assigns labels to every tensor."""

    def __init__(self, known: dict[fx.Node, Labels], rules: Rules) -> None:
        self.rules = rules
        self.labels: dict[fx.Node, Any] = dict(known)
        self.notes: list[str] = []

    def run(self, graph: fx.Graph) -> None:
        for node in graph.nodes:
            if node.op == "call_function":
                self.labels[node] = self._apply(node)

    def _apply(self, node: fx.Node) -> Any:
        if node.target is operator.getitem:
            source: Any = node.args[0]
            return self.labels[source][node.args[1]]
        if "val" not in node.meta:  # an assertion, which has no result
            return None
        name = operation_name(node)
        found = self.rules.get(name)
        inputs = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), Tensor)]
        if not inputs:
            return self._constant(node)
        if found is None and torch.Tag.pointwise in getattr(node.target, "tags", ()):
            found = self.rules["pointwise"]
        function, knows_families = found or (None, False)
        if not knows_families:
            for source in inputs:
                self.labels[source] = [collapse(x) for x in self.labels[source]]
        if function is None:
            return self.give_up(node, f"the operation '{name}' is not known")
        return function(self, node)

    def of(self, node: Any) -> Labels:
        return self.labels[node]

    def give_up(self, node: fx.Node, reason: str) -> Any:
        """Pins everything that an operation touches."""
        reason = f"{reason} ({where(node)})"
        touched = [x for n in node.all_input_nodes for x in _flat(self.labels.get(n))]
        if any(is_free(x) for x in touched):
            self.notes.append(reason)
        for label in touched:
            pin(label, reason)
        return like(node.meta["val"], lambda n: fresh(n, "pinned", reason))

    def _constant(self, node: fx.Node) -> Any:
        """A tensor of constants: positions are only interchangeable if their values are equal."""
        try:
            with torch.no_grad():
                value = node.target(*node.args, **node.kwargs)  # pyright: ignore[reportCallIssue]
        except Exception:  # symbolic sizes or missing devices: nothing is known then
            return like(node.meta["val"], lambda n: fresh(n, "pinned", "a constant"))
        return constant_labels(value)


def constant_labels(value: Any) -> Any:
    """Labels of a tensor of constants: free along dimensions over which it does not change."""
    if not isinstance(value, Tensor):
        return None
    labels: Labels = []
    for dimension, size in enumerate(value.shape):
        alike = size == 1 or bool((value == value.narrow(dimension, 0, 1)).all())
        labels.append(fresh(size) if alike else fresh(size, "pinned", "constants"))
    return labels


def collapse(label: Any) -> Label:
    """One label for a whole family."""
    if isinstance(label, Family):
        for member in label.members[1:]:
            unify(label.members[0], member, "parts of a fused tensor")
        return label.members[0]
    return label


def is_free(label: Any) -> bool:
    """Whether some neurons of a label can still permute."""
    x = find(collapse(label))
    return any(map(is_free, x.parts)) if x.kind != "set" else x.role == "hidden"


def where(node: fx.Node) -> str:
    """The submodule and line that an operation comes from, for messages."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [str(path) for path, _ in stack.values() if path]
    module = f" in '{paths[-1]}'" if paths else ""
    return f"{operation_name(node)}{module}"


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
