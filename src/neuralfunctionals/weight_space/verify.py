"""Confirms the axes of a spec by running the module: permuted neurons must leave its output unchanged."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from neuralfunctionals.errors import UserError
from neuralfunctionals.weight_space.features import WeightSpaceFeatures
from neuralfunctionals.weight_space.function import functional_call, require_function
from neuralfunctionals.weight_space.permutation import NeuronPermutation
from neuralfunctionals.weight_space.spec import NetworkSpec
from neuralfunctionals.weight_space.state import pack_state_dict, write_module
from neuralfunctionals.weight_space.trace import prepare, split_inputs

_TOLERANCE = 1e-9
_SMALLEST_CHANGE = 1e-7
"""A wrong permutation must change the output by at least this, which is far above rounding in float64."""
_SIZES = (8, 16, 28, 32, 64, 128, 224, 512, 1024, 4096)
"""Sizes of images and signals to try on modules without example inputs."""
_LARGEST_INPUT = 1_000_000


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
        changing = _find_changing(spec, runs)
        nested = {n for n in changing if spec.axes[n].within is not None}
        if nested:  # perhaps they permute, but in the same way for each neuron of the outer axis
            axes = (replace(a, within=None) if n in nested else a for n, a in enumerate(spec.axes))
            spec = replace(spec, axes=tuple(axes))
            continue
        failed = dict.fromkeys(changing, "permuting it changes the output")
        failed = failed or dict.fromkeys(_find_unseen(spec, runs), "its entries have no effect")
        if not failed:
            return replace(spec, notes=tuple(notes))
        notes += [f"'{spec.axes[n].name}' of {spec.axes[n].size} neurons is pinned: {why}" for n, why in failed.items()]
        spec = drop_axes(spec, set(failed))
        if not any(axis.role == "hidden" for axis in spec.axes):
            raise UserError(
                f"Found no hidden neurons of {runs.name} that permute without changing it: {'; '.join(notes[-3:])}. "
                "Check that forward uses its weights, or name the axes yourself with NetworkSpec.from_axes."
            )


def verify_chain(
    spec: NetworkSpec, module: nn.Module, example_inputs: Tensor | Sequence[Any] | Mapping[str, Any] | None
) -> NetworkSpec:
    """The spec of a chain, if permuting its hidden neurons leaves the module's output unchanged, as above.

    Without example inputs, random ones are tried. Activations are forgotten if the module computes something else.

    Raises:
        ValueError: If the module is not this chain, or does not run.
    """
    if not _hidden(spec):
        return spec
    runs = _run_somehow(spec, module) if example_inputs is None else Runs(module, example_inputs)
    for find, what in ((_find_changing, "permuting {} changes the output"), (_find_unseen, "{} has no effect")):
        for n in find(spec, runs):
            what = what.format(f"'{spec.axes[n].name}'")
            raise UserError(f"{runs.name} does not compute the chain {spec}: {what}.")
    return spec if _computes_its_function(spec, runs) else spec.with_activation(None)


def _run_somehow(spec: NetworkSpec, module: nn.Module) -> Runs:
    """Runs of a chain on random inputs, of the first of several shapes that it accepts."""
    neurons, positions = spec.widths[0], len(spec.layers[0].kernel)
    shapes = [(2, neurons, *[size] * positions) for size in _SIZES] if positions else [(5, neurons), (2, 5, neurons)]
    for shape in shapes:
        if math.prod(shape) <= _LARGEST_INPUT:
            x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
            with contextlib.suppress(UserError):
                runs = Runs(module, x)
                runs(spec, runs.own(spec))
                return runs
    raise UserError(f"Found no shape of inputs on which {type(module).__name__} runs in float64 on the CPU.")


def _computes_its_function(spec: NetworkSpec, runs: Runs) -> bool:
    """Whether the module computes the function that the spec records; True if they cannot be compared."""
    try:
        require_function(spec)
        x = runs.args[0] if spec.layers[0].kernel else runs.args[0].reshape(-1, spec.widths[0])
        outputs = [functional_call(WeightSpaceFeatures(spec, w[None, :, None]), x) for w, _ in runs.draws(spec)]
    except (UserError, RuntimeError, IndexError, AttributeError):  # unknown, or inputs in another form
        return True
    expected = [torch.cat([x.flatten() for x in output]) for _, output in runs.draws(spec)]
    return all(
        y.numel() == x.numel() and bool((y.flatten() - x).abs().max() <= _TOLERANCE * x.abs().max())
        for y, x in zip(outputs, expected, strict=True)
    )


def _hidden(spec: NetworkSpec) -> list[int]:
    return [n for n, axis in enumerate(spec.axes) if axis.role == "hidden" and axis.size > 1]


def _find_changing(spec: NetworkSpec, runs: Runs) -> list[int]:
    """Hidden axes whose permutation changes the output."""
    hidden = _hidden(spec)
    for number, (weights, output) in enumerate(runs.draws(spec)):
        order = _move_axes(spec, hidden, number).entry_order(spec)
        if runs.difference(spec, weights[order], output) <= _TOLERANCE:
            continue
        orders = {n: _move_axes(spec, [n], number).entry_order(spec) for n in hidden}
        alone = [n for n in hidden if not runs.difference(spec, weights[orders[n]], output) <= _TOLERANCE]
        return alone or hidden
    return []


def _find_unseen(spec: NetworkSpec, runs: Runs) -> list[int]:
    """Hidden axes without effect: dead neurons, or entries that are not used.

    Permuting one tensor of an axis alone must change the output; if it only has one, other values must.
    """
    unseen = dict.fromkeys(_hidden(spec))
    for weights, output in runs.draws(spec):
        slope = runs.slope(spec, weights)
        for n in list(unseen):
            # The slope of a change costs no run of the module, but it is zero where the module has no gradient.
            changes = _change_single_tensors(spec, n, weights)
            seen = any(abs(float(slope[part] @ change)) > _SMALLEST_CHANGE for part, change in changes)
            for part, change in () if seen else _change_single_tensors(spec, n, weights):
                changed = weights.clone()
                changed[part] += change
                seen = seen or runs.difference(spec, changed, output) > _SMALLEST_CHANGE
            if seen:
                del unseen[n]
    return list(unseen)


def _change_single_tensors(spec: NetworkSpec, axis: int, weights: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """For each group of an axis, where its entries are and how they change."""
    permutation = _move_axes(spec, [axis])
    groups = [g for g in spec.groups if axis in g.axes]
    for group in groups:
        part = slice(group.start, group.stop)
        own = weights[part].view(group.shape)
        new = permutation.move(own, group) if len(groups) > 1 else own.square()
        yield part, (new - own).flatten()


def _move_axes(spec: NetworkSpec, axes: Sequence[int], number: int = 0) -> NeuronPermutation:
    """A permutation of these axes that moves every neuron: a cycle in a random order.

    Nested neurons move along the cycle by a different number of steps for each neuron of the outer axis, because they
    must not need to move alike; `number` changes which of them rest.
    """
    generator = torch.Generator().manual_seed(0)
    sigma = NeuronPermutation.identity(spec).sigma
    for n in axes:
        order = torch.randperm(spec.axes[n].size, generator=generator)
        rows = sigma[n].view(-1, len(order))
        for place, row in enumerate(rows):
            row[order] = order.roll(1 if len(rows) == 1 else (place + number) % len(order))
    return NeuronPermutation(spec, sigma)


class Runs:
    """Runs a copy of the module with different weights."""

    def __init__(self, module: nn.Module, example_inputs: Any) -> None:
        self.name = type(module).__name__
        self.module = prepare(module).requires_grad_()
        self.state = {key: x.detach().clone() for key, x in self.module.state_dict().items() if isinstance(x, Tensor)}
        self.args, self.kwargs = split_inputs(example_inputs)
        self.kept: tuple[NetworkSpec, list[tuple[Tensor, list[Tensor]]]] | None = None

    def own(self, spec: NetworkSpec) -> Tensor:
        """The module's own weights."""
        return pack_state_dict(spec, self.state)

    def draws(self, spec: NetworkSpec) -> list[tuple[Tensor, list[Tensor]]]:
        """The module's own weights and two random draws, with the outputs."""
        if self.kept is None or self.kept[0] is not spec:
            own = self.own(spec)
            if not own.isfinite().all():  # a network that diverged has the same axes
                own = _draw_weights(spec, own, 0)
            output = self(spec, own)
            if not output:
                raise UserError(f"{self.name} returns no tensor of real numbers, so there is nothing to compare.")
            if not _is_finite(output):
                raise UserError(f"{self.name} returns values that are not finite. Check its weights and the inputs.")
            if any(not torch.equal(a, b) for a, b in zip(self(spec, own), output, strict=True)):
                raise UserError(f"{self.name} returns different outputs each time. Expected a deterministic forward.")
            self.kept = (spec, [(own, output), *(self._draw(spec, own, seed) for seed in (1, 2))])
        return self.kept[1]

    def _draw(self, spec: NetworkSpec, own: Tensor, seed: int) -> tuple[Tensor, list[Tensor]]:
        weights = _draw_weights(spec, own, seed)
        output = self(spec, weights)
        if not _is_finite(output):  # forward needs weights like its own, for a logarithm for example
            generator = torch.Generator().manual_seed(seed)
            weights = own * (1 + 0.5 * torch.rand(own.shape, generator=generator, dtype=own.dtype))
            output = self(spec, weights)
        return weights, output

    def __call__(self, spec: NetworkSpec, weights: Tensor) -> list[Tensor]:
        write_module(spec, weights, self.module)
        try:
            with torch.no_grad(), _DoublePrecision():
                return [x.clone() for x in _tensors(self.module(*self.args, **self.kwargs))]
        except Exception as error:  # forward is the user's code, which may raise anything
            raise UserError(
                f"{self.name} does not run in float64 on the CPU: {error}. Check the example inputs, or pass "
                "verify=False if it only runs in another precision."
            ) from error

    def slope(self, spec: NetworkSpec, weights: Tensor) -> Tensor:
        """The gradient of a random combination of the outputs, relative to their size; zero if there is none."""
        write_module(spec, weights, self.module)
        generator = torch.Generator().manual_seed(0)
        tensors = self.module.state_dict(keep_vars=True)
        tensors = {g.key: tensors[g.key] for g in spec.groups}
        wanted = [x for x in tensors.values() if x.requires_grad]
        found: Sequence[Tensor | None] = [None] * len(wanted)
        with contextlib.suppress(RuntimeError), torch.enable_grad(), _DoublePrecision():
            outputs = [x for x in _tensors(self.module(*self.args, **self.kwargs)) if x.requires_grad]
            draws = [torch.randn(x.shape, generator=generator, dtype=x.dtype) / _size(x) for x in outputs]
            found = torch.autograd.grad(outputs, wanted, draws, allow_unused=True)
        slopes = {id(x): y for x, y in zip(wanted, found, strict=True) if y is not None}
        return pack_state_dict(spec, {key: slopes.get(id(x), torch.zeros_like(x)) for key, x in tensors.items()})

    def difference(self, spec: NetworkSpec, weights: Tensor, expected: list[Tensor]) -> float:
        """The largest change of an output, relative to its size; rounding in outputs near zero does not count."""
        pairs = zip(self(spec, weights), expected, strict=True)
        return max(float((a - b).abs().max() / _size(b)) for a, b in pairs if a.numel())


def _size(output: Tensor) -> Tensor:
    return output.detach().abs().max().clamp(min=1e-5)


def _is_finite(output: list[Tensor]) -> bool:
    return all(bool(x.isfinite().all()) for x in output)


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


def _draw_weights(spec: NetworkSpec, own: Tensor, seed: int) -> Tensor:
    """Random weights that keep the scale of activations; variances, and tensors that are positive, remain so."""
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
        if bool((own[group.start : group.stop] > 0).all()):
            part.abs_()
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
