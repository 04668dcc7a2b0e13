"""All symmetries of a network, permutations and those of its activations, as one object: `NetworkSymmetry`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from neuralfunctionals.weight_space.axes import DEFAULT_OMEGA, Activation
from neuralfunctionals.weight_space.permutation import NeuronPermutation
from neuralfunctionals.weight_space.scale_symmetry import ScaleSymmetry, canonicalize_scales
from neuralfunctionals.weight_space.sine_symmetry import SineSymmetry, canonicalize_sines, require_sine
from neuralfunctionals.weight_space.spec import NetworkSpec

if TYPE_CHECKING:
    from neuralfunctionals.weight_space.features import WeightSpaceFeatures

# Axes: B input networks, H hidden neurons of all layers in order.


@runtime_checkable
class SymmetryElement(Protocol):
    """One symmetry of a network: `NeuronPermutation`, `SineSymmetry` and `ScaleSymmetry` are such elements.

    `g(x)` acts on networks, `g.on_differences(d)` on differences of networks such as edits and gradients, so that
    `g(x + d) == g(x) + g.on_differences(d)`. `(g @ h)(x) == g(h(x))`, and `g.inverse()(g(x)) == x`.
    """

    @property
    def spec(self) -> NetworkSpec: ...
    def __call__(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures: ...
    def on_differences(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures: ...
    def inverse(self) -> SymmetryElement: ...
    def __matmul__(self, other: Any) -> Any: ...


@dataclass(frozen=True)
class NetworkSymmetry:
    r"""All known symmetries of the networks of a spec: transformations of the weights that preserve the function.

    Hidden neurons always permute. In a chain, the activation of a hidden layer may allow more:

    - odd activations (tanh, sine, ...): a *sign* $s = \pm 1$ for each neuron, $s f(s z) = f(z)$;
    - sine: also a *phase*, $k$ half turns, see `SineSymmetry`;
    - positively homogeneous ones (relu, leaky relu): a *scale* $\lambda > 0$, $f(\lambda z) / \lambda = f(z)$.

    Unknown activations only allow permutations.

    Example:
        >>> from neuralfunctionals.weight_space.features import WeightSpaceFeatures
        >>> spec = NetworkSpec.mlp([2, 8, 1], activation="relu")
        >>> spec.symmetry.members
        ('permutations', 'scales')
        >>> networks = WeightSpaceFeatures.from_vectors(spec, torch.randn(3, spec.num_entries, dtype=torch.float64))
        >>> element = spec.symmetry.sample()
        >>> torch.allclose(element.inverse()(element(networks)).tensor, networks.tensor)
        True
    """

    spec: NetworkSpec

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the symmetries: `"permutations"`, `"signs"`, `"phases"`, `"scales"`."""
        if self._is_sine:
            return ("permutations", "signs", "phases")
        has_signs, has_scales = (bool(x.any()) for x in _allowed(self.spec))
        return ("permutations", *(["signs"] if has_signs else []), *(["scales"] if has_scales else []))

    @property
    def _is_sine(self) -> bool:
        return self.spec.is_chain and self.spec.omega is not None

    def sample(self, *, batch: int | None = None, generator: torch.Generator | None = None) -> SymmetryElement:
        """A random element: a permutation of the hidden neurons, composed with signs, phases and scales.

        Args:
            batch: Draw separate signs, phases and scales for this many networks; the permutation is the same for all.
            generator: Random number generator.
        """
        permutation = NeuronPermutation.random(self.spec, "HNP", generator=generator)
        if self._is_sine:
            assert self.spec.omega is not None
            return SineSymmetry.random(self.spec, self.spec.omega, batch=batch, generator=generator) @ permutation
        signs, scales = _allowed(self.spec)
        if not bool((signs | scales).any()):
            return permutation
        factors = _draw_factors(signs, scales, batch, generator)
        return ScaleSymmetry(self.spec, factors, permutation)

    def identity(self) -> SymmetryElement:
        return NeuronPermutation.identity(self.spec)

    def canonicalize(self, features: WeightSpaceFeatures) -> tuple[WeightSpaceFeatures, SymmetryElement]:
        """A canonical form: networks that only differ by signs, phases and scales have the same one, up to permutation.

        - sine: biases times omega lie in $[0, \\pi/2]$, see `canonicalize`;
        - other odd activations: biases are not negative; without bias, the sum of the incoming weights is not;
        - homogeneous activations: incoming weights and bias of a neuron have norm 1.

        Returns:
            The canonical form, and the element that was applied. Neurons are not sorted.
        """
        features.require_spec(self.spec, "This symmetry")
        if self._is_sine:
            assert self.spec.omega is not None
            return canonicalize_sines(features, self.spec.omega)
        signs, scales = _allowed(self.spec)
        if not bool((signs | scales).any()):
            return features, self.identity()
        return canonicalize_scales(features, signs, scales)

    def __str__(self) -> str:
        return f"{' and '.join(self.members)} of the network {self.spec}"


def _allowed(spec: NetworkSpec) -> tuple[Tensor, Tensor]:
    """Which hidden neurons of a chain have a sign, and which a scale."""
    signs, scales = [torch.zeros(0, dtype=torch.bool)], [torch.zeros(0, dtype=torch.bool)]
    for layer, after in zip(spec.layers[:-1], spec.layers[1:], strict=True):
        activation = layer.activation
        is_odd = activation is not None and activation.is_odd
        # Max pooling does not commute with a change of sign.
        pools = bool(layer.kernel) and not after.kernel
        is_odd = is_odd and (not pools or spec.pooling == "mean")
        is_homogeneous = activation is not None and activation.is_homogeneous
        signs.append(torch.full((layer.out_neurons,), is_odd))
        scales.append(torch.full((layer.out_neurons,), is_homogeneous))
    return torch.cat(signs), torch.cat(scales)


def _draw_factors(
    signs: Tensor, scales: Tensor, batch: int | None, generator: torch.Generator | None
) -> Float[Tensor, "*B H"]:
    shape = (*([] if batch is None else [batch]), len(signs))
    flips = 1 - 2 * torch.randint(2, shape, generator=generator).double()
    sizes = (2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1).exp()
    ones = torch.ones(shape, dtype=torch.float64)
    return torch.where(signs, flips, ones) * torch.where(scales, sizes, ones)


def _knows_activations(spec: NetworkSpec) -> bool:
    return not spec.is_chain or any(axis.activation is not None for axis in spec.axes if axis.role == "hidden")


def default_symmetry(spec: NetworkSpec) -> NetworkSymmetry:
    """`spec.symmetry`; for a chain of unknown activations, the symmetry of sine networks of frequency 30."""
    if _knows_activations(spec):
        return spec.symmetry
    require_sine(spec, DEFAULT_OMEGA)
    return spec.with_activation(Activation("sine", DEFAULT_OMEGA)).symmetry


def canonicalize(
    features: WeightSpaceFeatures, symmetry: NetworkSymmetry | None = None, *, omega: float | None = None
) -> tuple[WeightSpaceFeatures, SymmetryElement]:
    r"""A canonical form of networks, without the signs, phases and scales that preserve their function.

    Which of these exist depends on the activations that `features.spec` records: see `NetworkSymmetry.canonicalize`.
    Networks of unknown activation are assumed to be sine networks.

    An edit `d` of the canonical form is the edit `element.inverse().on_differences(d)` of the network.

    Args:
        features: The networks, in the first channel; other channels are transformed as differences.
        symmetry: The symmetry to remove. Defaults to `features.spec.symmetry`.
        omega: Frequency of sine networks whose spec does not record it. Defaults to 30.

    Returns:
        The canonical form, and the element that was applied, with separate parts for each network.

    Example:
        >>> from neuralfunctionals.weight_space.features import WeightSpaceFeatures
        >>> spec = NetworkSpec.siren([2, 32, 32, 1])
        >>> networks = WeightSpaceFeatures.from_vectors(spec, torch.randn(3, spec.num_entries, dtype=torch.float64))
        >>> canonical, element = canonicalize(networks)
        >>> copy, _ = canonicalize(spec.symmetry.sample()(networks), spec.symmetry)
        >>> torch.allclose(copy.tensor.sum(1), canonical.tensor.sum(1))
        True
    """
    if symmetry is None and not _knows_activations(features.spec):
        return canonicalize_sines(features, DEFAULT_OMEGA if omega is None else omega)
    if omega is not None:
        require_sine(features.spec, omega)
    return (symmetry or features.spec.symmetry).canonicalize(features)
