"""Confirms the axes of a spec by running the module: permuted neurons must leave its output unchanged."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from neuralfunctionals.errors import UserError
from neuralfunctionals.weight_space.axes import Group
from neuralfunctionals.weight_space.permutation import NeuronPermutation
from neuralfunctionals.weight_space.spec import NetworkSpec
from neuralfunctionals.weight_space.state import pack_module, write_module
from neuralfunctionals.weight_space.trace import prepare, split_inputs

_TOLERANCE = 1e-9
_SMALLEST_CHANGE = 1e-7
"""A wrong permutation must change the output by at least this, which is far above rounding in float64."""


def verify_spec(
    spec: NetworkSpec, module: nn.Module, example_inputs: Tensor | Sequence[Any] | Mapping[str, Any]
) -> NetworkSpec:
    r"""The spec with only those hidden axes whose permutation leaves the module's output unchanged.

    Checked in float64 and evaluation mode, with the module's own weights and with random ones, since scales that start
    at one and shifts that start at zero hide wrong axes. An axis that fails is dropped and noted in `spec.notes`. So is
    one that has no effect: permuting at least one of its tensors alone must change the output.
    """
    runs = Runs(module, example_inputs)
    notes = list(spec.notes)
    while True:
        failed = dict.fromkeys(_find_changing(spec, runs), "permuting it changes the output")
        if not failed:
            failed = dict.fromkeys(_find_unseen(spec, runs), "permuting it in single tensors changes nothing")
        if not failed:
            return replace(spec, notes=tuple(notes))
        notes += [f"'{spec.axes[n].name}' of {spec.axes[n].size} neurons is pinned: {why}" for n, why in failed.items()]
        spec = drop_axes(spec, set(failed))
        if not any(axis.role == "hidden" for axis in spec.axes):
            raise UserError(
                f"Found no hidden neurons of {runs.name} that permute without changing it: {'; '.join(notes[-3:])}. "
                "Check that forward is deterministic and uses its weights."
            )


def _hidden(spec: NetworkSpec) -> list[int]:
    return [n for n, axis in enumerate(spec.axes) if axis.role == "hidden" and axis.size > 1]


def _find_changing(spec: NetworkSpec, runs: Runs) -> list[int]:
    hidden = _hidden(spec)
    for weights, output in runs.draws(spec):
        if runs.difference(spec, weights[_permute(spec, hidden)], output) <= _TOLERANCE:
            continue
        alone = [n for n in hidden if runs.difference(spec, weights[_permute(spec, [n])], output) > _TOLERANCE]
        return alone or hidden
    return []


def _find_unseen(spec: NetworkSpec, runs: Runs) -> list[int]:
    """Hidden axes without effect in any tensor: dead neurons, or entries that are not used."""
    unseen = set(_hidden(spec))
    for weights, output in runs.draws(spec):
        for n in sorted(unseen):
            for group in (g for g in spec.groups if n in g.axes):
                order = _permute(spec, [n], [group])
                if runs.difference(spec, weights[order], output) > _SMALLEST_CHANGE:
                    unseen.discard(n)
                    break
    return sorted(unseen)


def _permute(spec: NetworkSpec, axes: Sequence[int], groups: Sequence[Group] | None = None) -> Tensor:
    """Permutes these axes, moving every neuron; only in these groups, if some are given."""
    generator = torch.Generator().manual_seed(0)
    sigma = []
    for n, identity in enumerate(NeuronPermutation.identity(spec).sigma):
        if n in axes:
            shifts = 1 + torch.randint(spec.axes[n].size - 1, (*identity.shape[:-1], 1), generator=generator)
            mixed = identity.view(-1, spec.axes[n].size)[:, torch.randperm(spec.axes[n].size, generator=generator)]
            # Random, but never the identity: a cycle in a random order.
            moved = torch.empty_like(mixed).scatter_(
                1, mixed, mixed.gather(1, (identity.view_as(mixed) + shifts.view(-1, 1)) % spec.axes[n].size)
            )
            identity = moved.view(identity.shape)
        sigma.append(identity)
    order = NeuronPermutation(spec, tuple(sigma)).entry_order(spec)
    if groups is not None:
        kept = torch.arange(spec.num_entries)
        for group in groups:
            kept[group.start : group.stop] = order[group.start : group.stop]
        order = kept
    return order


class Runs:
    """Runs a copy of the module with different weights."""

    def __init__(self, module: nn.Module, example_inputs: Any) -> None:
        self.name = type(module).__name__
        self.module = prepare(module)
        self.args, self.kwargs = split_inputs(example_inputs)
        self.kept: list[tuple[Tensor, list[Tensor]]] = []

    def draws(self, spec: NetworkSpec) -> list[tuple[Tensor, list[Tensor]]]:
        """The module's own weights and two random draws, with the outputs."""
        if not self.kept or len(self.kept[0][0]) != spec.num_entries:
            own = pack_module(spec, self.module).clone()
            self.kept = [(w, self(spec, w)) for w in (own, *(_draw_weights(spec, seed) for seed in (1, 2)))]
            again = self(spec, own)
            if any(not torch.equal(a, b) for a, b in zip(again, self.kept[0][1], strict=True)):
                raise UserError(f"{self.name} returns different outputs each time. Expected a deterministic forward.")
            if not self.kept[0][1]:
                raise UserError(f"{self.name} returns no tensor of real numbers, so there is nothing to compare.")
        return self.kept

    def __call__(self, spec: NetworkSpec, weights: Tensor) -> list[Tensor]:
        write_module(spec, weights, self.module)
        try:
            with torch.no_grad(), _DoublePrecision():
                output = list(_tensors(self.module(*self.args, **self.kwargs)))
        except RuntimeError as error:
            raise UserError(
                f"{self.name} does not run in float64 on the CPU: {error}. Pass verify=False to trust the trace alone."
            ) from error
        if not all(bool(x.isfinite().all()) for x in output):
            raise UserError(f"{self.name} returns outputs that are not finite. Use other example inputs.")
        return [x.clone() for x in output]

    def difference(self, spec: NetworkSpec, weights: Tensor, expected: list[Tensor]) -> float:
        """The largest change of an output, relative to its size; rounding in outputs near zero does not count."""
        pairs = zip(self(spec, weights), expected, strict=True)
        return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-5)) for a, b in pairs if a.numel())


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors(part)
    elif dataclasses.is_dataclass(value):
        yield from _tensors([getattr(value, f.name) for f in dataclasses.fields(value)])


def _draw_weights(spec: NetworkSpec, seed: int) -> Tensor:
    """Random weights that keep the scale of activations; variances are positive."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(spec.num_entries, generator=generator, dtype=torch.float64)
    for group in spec.groups:
        part = values[group.start : group.stop]
        if group.kind == "running variance":
            part.abs_().add_(0.5)
        elif len(group.axes) > 1 or group.kernel_size > 1:
            rows = group.shape[0]
            part.mul_(math.sqrt(2 / max(group.size // rows, 1)))
        else:
            part.mul_(0.5).add_(0.5 if group.kind == "scale" else 0.0)
    return values


class _DoublePrecision(TorchDispatchMode):
    """Turns casts to lower precision inside forward into casts to float64: rounding would hide differences."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") in (torch.float32, torch.float16, torch.bfloat16):
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


def drop_axes(spec: NetworkSpec, dropped: set[int]) -> NetworkSpec:
    """The spec in which some axes do not permute."""
    kept = [n for n in range(len(spec.axes)) if n not in dropped]
    number = {n: i for i, n in enumerate(kept)}
    axes = tuple(
        replace(spec.axes[n], within=number.get(w) if (w := spec.axes[n].within) is not None else None) for n in kept
    )
    groups, start = [], 0
    for g in spec.groups:
        strides = g.strides or tuple(math.prod(g.shape[i + 1 :]) for i in range(len(g.shape)))
        order = [i for i, a in enumerate(g.axes) if a in number]
        inner = [i for i in range(len(g.shape)) if i not in order]
        groups.append(
            replace(
                g,
                axes=tuple(number[g.axes[i]] for i in order),
                shape=tuple(g.shape[i] for i in order + inner),
                strides=tuple(strides[i] for i in order + inner),
                tensor_shape=g.tensor_shape or g.shape,
                start=start,
            )
        )
        start = groups[-1].stop
    return replace(spec, layers=(), axes=axes, groups=tuple(groups))
