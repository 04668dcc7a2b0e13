"""Checks that a layer or model, ours or yours, has the symmetry that it claims.

>>> import neuralfunctionals as nf
>>> spec = nf.NetworkSpec.mlp([2, 4, 3, 1])
>>> assert_equivariant(nf.layers.NPLinear(spec, 3, 5))
>>> assert_minimal(nf.layers.NPLinear(spec, 3, 5))

Your module needs the attributes `spec`, `in_channels` and `symmetry`, or you pass them as arguments;
an `nn.Sequential` takes them from its parts.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from neuralfunctionals.errors import UserError
from neuralfunctionals.weight_space import (
    Group,
    NetworkSpec,
    NetworkSymmetry,
    NeuronPermutation,
    Symmetry,
    SymmetryElement,
    WeightSpaceFeatures,
    functional_call,
)
from neuralfunctionals.weight_space.state import evaluation
from neuralfunctionals.weight_space.verify import Runs

__all__ = ["assert_equivariant", "assert_invariant", "assert_minimal", "assert_preserves", "random_features"]


def random_features(
    spec: NetworkSpec,
    channels: int = 1,
    batch: int = 2,
    *,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> WeightSpaceFeatures:
    """Standard normal features from a seed."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(batch, spec.num_entries, channels, generator=generator, dtype=torch.float64)
    return WeightSpaceFeatures(spec, values.to(dtype))


def assert_equivariant(
    module: nn.Module,
    *,
    spec: NetworkSpec | None = None,
    in_channels: int | None = None,
    symmetry: Symmetry | NetworkSymmetry | None = None,
    tolerance: float | None = None,
    trials: int = 4,
    seed: int = 0,
) -> None:
    """Asserts that permuting neurons before or after the module gives the same features.

    Args:
        module: Takes features, returns features. Checked in evaluation mode, in its own precision.
        spec: The networks it takes. Defaults to `module.spec`.
        in_channels: Their channels. Defaults to `module.in_channels`.
        symmetry: `"NP"`, `"HNP"`, or the symmetry of a spec, `spec.symmetry`, which may include signs, phases and
            scales; the module's outputs are then taken as differences of networks. Defaults to `module.symmetry`.
        tolerance: Largest difference, relative to the largest output. Defaults to 1e-10 in float64, else 1e-5.
        trials: Number of permutations to try.
        seed: Seed of features and permutations.
    """
    subject = _Subject.of(module, spec, in_channels, symmetry)
    with evaluation(module), torch.no_grad():
        for trial in range(trials):
            features, permutation = subject.draw(seed + trial)
            after, before = module(features), module(permutation(features))
            if not isinstance(after, WeightSpaceFeatures):
                raise AssertionError(
                    f"{type(module).__name__} returned {type(after).__name__} where equivariance needs features. "
                    "For a module that returns a tensor use assert_invariant."
                )
            moved = permutation.on_differences(after)
            difference = (moved.tensor - before.tensor).abs()
            if _exceeds(difference, moved.tensor, tolerance):
                group = max(moved.spec.groups, key=lambda g: difference[:, g.start : g.stop].max().item())
                raise AssertionError(
                    f"{type(module).__name__} is not {subject.symmetry}-equivariant: permuting neurons before and "
                    f"after it differs by {difference.max():.3g}, most in the {group} "
                    f"(outputs up to {moved.tensor.abs().max():.3g}, permutation {trial} of seed {seed})."
                )


def assert_invariant(
    module: nn.Module,
    *,
    spec: NetworkSpec | None = None,
    in_channels: int | None = None,
    symmetry: Symmetry | NetworkSymmetry | None = None,
    tolerance: float | None = None,
    trials: int = 4,
    seed: int = 0,
) -> None:
    """Asserts that permuting neurons does not change the returned tensor; arguments as for `assert_equivariant`."""
    subject = _Subject.of(module, spec, in_channels, symmetry)
    with evaluation(module), torch.no_grad():
        for trial in range(trials):
            features, permutation = subject.draw(seed + trial)
            plain, permuted = module(features), module(permutation(features))
            if not isinstance(plain, Tensor):
                raise AssertionError(
                    f"{type(module).__name__} returned {type(plain).__name__} where invariance needs a tensor. "
                    "For a module that returns features use assert_equivariant."
                )
            difference = (plain - permuted).abs()
            if _exceeds(difference, plain, tolerance):
                raise AssertionError(
                    f"{type(module).__name__} is not {subject.symmetry}-invariant: permuting neurons changes its "
                    f"output by {difference.max():.3g} (outputs up to {plain.abs().max():.3g}, permutation {trial} "
                    f"of seed {seed})."
                )


def assert_minimal(
    module: nn.Module,
    *,
    spec: NetworkSpec | None = None,
    in_channels: int | None = None,
    symmetry: Symmetry | None = None,
    trials: int = 4,
    seed: int = 0,
) -> None:
    """Asserts that the module is equivariant to nothing but its own symmetry.

    Permutations of entries that are not permutations of neurons fall into three classes (Zhou et al., 2023,
    https://arxiv.org/abs/2305.13546, appendix): entries change their layer; rows and columns of a layer do not
    permute independently; the rows of a layer permute differently from the columns of the next, or from its biases.
    For permutations of each class that the spec allows, the module must not be equivariant on some input. HNP adds
    a fourth class: input or output neurons are permuted.

    The first class is tested on inputs whose entries are all equal, where only knowledge of the layer can
    distinguish two layers: on others, different widths would hide a module that treats all layers alike.

    Arguments as for `assert_equivariant`; the check runs on a copy in float64.
    """
    subject = _Subject.of(module, spec, in_channels, symmetry)
    if isinstance(subject.symmetry, NetworkSymmetry):
        raise UserError('Expected the symmetry "NP" or "HNP": minimality is only defined for permutations of neurons.')
    module = copy.deepcopy(module).double()
    generator = torch.Generator().manual_seed(seed)
    with evaluation(module), torch.no_grad():
        for name, order, alike in _false_symmetries(subject.spec, subject.symmetry, trials, generator):
            inputs = [random_features(subject.spec, subject.in_channels, seed=seed + n) for n in range(3)]
            if alike:
                inputs = [x.with_tensor(x.tensor[:, :1].expand_as(x.tensor).contiguous()) for x in inputs]
            if not any(_notices(module, x, order) for x in inputs):
                raise AssertionError(
                    f"{type(module).__name__} is not minimal: it does not notice a false symmetry, {name}. "
                    + ("Compose it with nf.layers.LayerEncoding." if alike else "")
                )


def assert_preserves(
    symmetry: NetworkSymmetry,
    network: nn.Module | NetworkSpec,
    inputs: Any = None,
    *,
    tolerance: float = 1e-9,
    trials: int = 4,
    seed: int = 0,
) -> None:
    """Asserts that elements of a symmetry preserve the function of a network.

    Args:
        symmetry: The symmetry to check, such as `spec.symmetry`.
        network: A module, run in float64 and evaluation mode with its own weights and with random ones; or a spec that
            records its function, run with random weights.
        inputs: Inputs of the network. Defaults to random points for an MLP's spec.
        tolerance: Largest difference, relative to the largest output.
        trials: Number of elements to try.
        seed: Seed of weights and elements.

    Example:
        >>> import neuralfunctionals as nf
        >>> spec = nf.NetworkSpec.mlp([2, 5, 1], activation="tanh")
        >>> assert_preserves(spec.symmetry, spec)
    """
    generator = torch.Generator().manual_seed(seed)
    for trial in range(trials):
        element = symmetry.sample(generator=generator)
        difference = _change_of_function(element, network, inputs, seed + trial)
        if not difference <= tolerance:
            raise AssertionError(
                f"The {symmetry} do not preserve the function of {_name_of(network)}: an element changes its output by "
                f"{difference:.3g}, relative to the largest value (element {trial} of seed {seed})."
            )


def _change_of_function(element: SymmetryElement, network: nn.Module | NetworkSpec, inputs: Any, seed: int) -> float:
    if isinstance(network, nn.Module):
        if inputs is None:
            raise UserError("Expected the inputs that the module is called with: assert_preserves(symmetry, m, (x,)).")
        runs = Runs(network, inputs)
        pairs = runs.draws(element.spec)
        features = [WeightSpaceFeatures.from_vectors(element.spec, weights[None]) for weights, _ in pairs]
        return max(
            runs.difference(element.spec, element(x).to_vectors()[0], output)
            for x, (_, output) in zip(features, pairs, strict=True)
        )
    features = random_features(network, seed=seed)
    if inputs is None:
        inputs = torch.randn(16, network.widths[0], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    before, after = functional_call(features, inputs), functional_call(element(features), inputs)
    return float((after - before).abs().max() / _size(before))


def _name_of(network: nn.Module | NetworkSpec) -> str:
    return type(network).__name__ if isinstance(network, nn.Module) else f"the network {network}"


@dataclass(frozen=True)
class _Subject:
    """What the checks need to know about a module."""

    spec: NetworkSpec
    in_channels: int
    symmetry: Symmetry | NetworkSymmetry
    dtype: torch.dtype

    @classmethod
    def of(
        cls,
        module: nn.Module,
        spec: NetworkSpec | None,
        in_channels: int | None,
        symmetry: Symmetry | NetworkSymmetry | None,
    ) -> _Subject:
        parts: list[Any] = list(module) if isinstance(module, nn.Sequential) else [module]
        described = [p for p in parts if hasattr(p, "spec")] or parts
        given = {"spec": spec, "in_channels": in_channels, "symmetry": symmetry}
        if missing := [name for name, value in given.items() if value is None and not hasattr(described[0], name)]:
            raise UserError(
                f"Expected {type(module).__name__} to have attributes spec, in_channels and symmetry, but it has no "
                f"{', '.join(missing)}. Set them, or pass them: "
                "assert_equivariant(module, spec=..., in_channels=..., symmetry='NP')."
            )
        first = described[0]
        if symmetry is None:
            # A chain has the smaller group of its parts.
            symmetry = "HNP" if any(p.symmetry == "HNP" for p in described) else "NP"
        tensors = [t for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()]
        return cls(
            spec=getattr(first, "in_spec", first.spec) if spec is None else spec,
            in_channels=first.in_channels if in_channels is None else in_channels,
            symmetry=symmetry,
            dtype=tensors[0].dtype if tensors else torch.float64,
        )

    def draw(self, seed: int) -> tuple[WeightSpaceFeatures, SymmetryElement]:
        features = random_features(self.spec, self.in_channels, dtype=self.dtype, seed=seed)
        generator = torch.Generator().manual_seed(seed + 1)
        if isinstance(self.symmetry, NetworkSymmetry):
            return features, self.symmetry.sample(generator=generator)
        return features, NeuronPermutation.random(self.spec, self.symmetry, generator=generator)


def _exceeds(difference: Tensor, values: Tensor, tolerance: float | None) -> bool:
    if tolerance is None:
        tolerance = 1e-10 if values.dtype == torch.float64 else 1e-5
    # Written so that NaN counts as exceeding.
    return not bool(difference.max() <= tolerance * _size(values))


def _size(values: Tensor) -> Tensor:
    """The largest value, which differences are relative to; never zero."""
    return values.abs().max().clamp(min=1e-12)


def _notices(module: nn.Module, features: WeightSpaceFeatures, order: Tensor) -> bool:
    after = module(features).tensor[:, order]
    before = module(features.with_tensor(features.tensor[:, order])).tensor
    return bool((after - before).abs().max() > 1e-8 * _size(after))


def _false_symmetries(
    spec: NetworkSpec, symmetry: Symmetry, trials: int, generator: torch.Generator
) -> Iterator[tuple[str, Tensor, bool]]:
    """Orders of the packed entries that are not neuron permutations, names, and whether to use equal entries."""

    def draw(n: int) -> int:
        return int(torch.randint(n, (), generator=generator))

    for kind in dict.fromkeys(g.kind for g in spec.groups):
        groups = [g for g in spec.groups if g.kind == kind]
        for a, b in itertools.combinations(groups, 2):
            other = f"layer {b.layer}" if spec.is_chain else f"the {b}"
            name = f"a {a} changing places with one of {other}"
            yield name, _swap(spec, a.start + draw(a.size), b.start + draw(b.size)), True
    for group in (g for g in spec.groups if len(g.axes) > 1 and min(g.shape[:2]) > 1):
        for _ in range(trials):
            entries = torch.arange(group.start, group.stop).view(*group.shape[:2], -1)
            row, column = draw(group.shape[0]), draw(group.shape[1])
            other = (column + 1 + draw(group.shape[1] - 1)) % group.shape[1]
            name = f"two entries in one row of the {group} changing places without their columns"
            yield name, _swap(spec, entries[row, column], entries[row, other]), False
            other = (row + 1 + draw(group.shape[0] - 1)) % group.shape[0]
            name = f"two entries in one column of the {group} changing places without their rows"
            yield name, _swap(spec, entries[row, column], entries[other, column]), False
    for axis, width in enumerate(spec.widths):
        touching = [g for g in spec.groups if axis in g.axes]
        permutes = axis not in spec.fixed_axes(symmetry)
        moved_alone = ([[g] for g in touching] if len(touching) > 1 else []) if permutes else [touching]
        for moved in moved_alone if width > 1 else []:
            arrays = " and ".join(map(str, moved))
            ending = "alone" if permutes else "though they are fixed"
            for _ in range(trials):
                where = f"of layer {axis}" if spec.is_chain else f"'{spec.axes[axis].name}'"
                name = f"neurons {where} permuted in the {arrays}, {ending}"
                yield name, _permute_axis(spec, axis, moved, generator), False


def _swap(spec: NetworkSpec, a: Any, b: Any) -> Tensor:
    order = torch.arange(spec.num_entries)
    order[a], order[b] = order[b].clone(), order[a].clone()
    return order


def _permute_axis(spec: NetworkSpec, axis: int, groups: list[Group], generator: torch.Generator) -> Tensor:
    width = spec.widths[axis]
    source = torch.randperm(width, generator=generator)
    if torch.equal(source, torch.arange(width)):
        source = source.roll(1)
    order = torch.arange(spec.num_entries)
    for group in groups:
        entries = order[group.start : group.stop].view(group.shape).index_select(group.axes.index(axis), source)
        order[group.start : group.stop] = entries.flatten()
    return order
