"""Signs and phases of sine neurons: symmetries of sine networks besides permutations, and their canonical form."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from neuralfunctionals.errors import UserError
from neuralfunctionals.weight_space.axes import DEFAULT_OMEGA, Activation
from neuralfunctionals.weight_space.features import WeightSpaceFeatures
from neuralfunctionals.weight_space.permutation import NeuronPermutation, move_hidden, scale_entries
from neuralfunctionals.weight_space.spec import NetworkSpec

# Axes: B input networks, H hidden neurons of all layers in order, N packed entries.


@dataclass(frozen=True, eq=False)
class SineSymmetry:
    r"""A sign $s$ and a number $k$ of half turns for each hidden neuron $\sin(\omega (w \cdot x + b))$.

    $$ (w, b, v) \mapsto (s w,\; s b + k \pi / \omega,\; s (-1)^k v), \qquad
       \sin(\omega s (w \cdot x + b) + k \pi) = s (-1)^k \sin(\omega (w \cdot x + b)), $$

    where $v$ are the outgoing weights: the function of the network stays the same. Signs and half turns do not
    commute, $(s, k)(s', k') = (s s', k + s k')$. An element may include a permutation, which acts first: these are
    the elements of the whole group, and `s @ p` and `p @ s` with a `NeuronPermutation` create them.

    An element acts on all networks of a batch alike (`flips` of shape `(H,)`) or has separate parts (`(B, H)`).
    The action shifts biases, so it is different for a network and for a *difference* of two networks, such as an edit
    or a gradient. `g(features)` takes the first channel as a network and all others as differences;
    `g.on_differences(features)` takes every channel as a difference. Hence `g(x + d) == g(x) + g.on_differences(d)`.

    Both published conventions of sine networks have these symmetries: they only differ at input and output.

    Args:
        spec: The networks: dense layers. A hidden layer without bias has signs but no half turns.
        flips: Which hidden neurons change sign.
        turns: The half turns $k$ of each hidden neuron.
        omega: Frequency of the sines; must be that of the spec, if it records one.
        permutation: Acts before signs and half turns. Defaults to none.

    Example:
        >>> spec = NetworkSpec.mlp([2, 32, 32, 1])
        >>> features = WeightSpaceFeatures.from_vectors(spec, torch.randn(3, spec.num_entries, dtype=torch.float64))
        >>> g = NeuronPermutation.random(spec) @ SineSymmetry.random(spec)
        >>> torch.allclose(g.inverse()(g(features)).tensor, features.tensor)
        True
    """

    spec: NetworkSpec
    flips: Bool[Tensor, "*B H"]
    turns: Int[Tensor, "*B H"]
    omega: float = DEFAULT_OMEGA
    permutation: NeuronPermutation | None = None

    def __post_init__(self) -> None:
        require_sine(self.spec, self.omega)
        hidden = sum(self.spec.widths[1:-1])
        if self.flips.shape != self.turns.shape or self.flips.shape[-1:] != (hidden,) or self.flips.ndim > 2:
            raise UserError(
                f"Expected flips and turns of shape ({hidden},) or (batch, {hidden}) for the network {self.spec}, but "
                f"got {tuple(self.flips.shape)} and {tuple(self.turns.shape)}. Give one of each per hidden neuron."
            )
        lacks_bias = not all(layer.has_bias for layer in self.spec.layers[:-1])
        # Inside a compiled model or under vmap, values cannot be inspected; those of canonicalize are correct.
        if lacks_bias and not _is_hidden() and bool(self.turns[..., ~_has_bias(self.spec)].any()):
            raise UserError(
                f"Expected no half turns where a layer has no bias to shift, but got some for the network {self.spec}. "
                "Set them to zero: a neuron without bias only has a sign."
            )

    @classmethod
    def random(
        cls,
        spec: NetworkSpec,
        omega: float | None = None,
        *,
        batch: int | None = None,
        max_turns: int = 3,
        generator: torch.Generator | None = None,
    ) -> SineSymmetry:
        """Random signs, and half turns drawn uniformly from `-max_turns .. max_turns`.

        Args:
            spec: The networks.
            omega: Frequency of sine networks whose spec does not record it. Defaults to 30.
            batch: Draw separate signs and turns for this many networks. Defaults to the same for all.
            max_turns: Largest number of half turns in either direction.
            generator: Random number generator.
        """
        omega = _known_omega(spec, omega)
        require_sine(spec, omega)
        shape = (*([] if batch is None else [batch]), sum(spec.widths[1:-1]))
        flips = torch.randint(2, shape, generator=generator).bool()
        turns = torch.randint(-max_turns, max_turns + 1, shape, generator=generator) * _has_bias(spec)
        return cls(spec, flips, turns, omega)

    @classmethod
    def identity(cls, spec: NetworkSpec, omega: float | None = None) -> SineSymmetry:
        hidden, omega = sum(spec.widths[1:-1]), _known_omega(spec, omega)
        return cls(spec, torch.zeros(hidden, dtype=torch.bool), torch.zeros(hidden, dtype=torch.int64), omega)

    @property
    def signs(self) -> Int[Tensor, "*B H"]:
        """-1 for neurons that change sign, else 1."""
        return 1 - 2 * self.flips.long()

    def inverse(self) -> SineSymmetry:
        back = None if self.permutation is None else self.permutation.inverse()
        flips, turns = move_hidden(self.flips, back), move_hidden(-self.signs * self.turns, back)
        return SineSymmetry(self.spec, flips, turns, self.omega, back)

    def __matmul__(self, other: SineSymmetry | NeuronPermutation) -> SineSymmetry:
        """The composition: `(g @ h)(x) == g(h(x))`; `h` may be a permutation."""
        other = self._wrap(other)
        if (other.spec.widths, other.omega) != (self.spec.widths, self.omega):
            raise UserError(
                f"Cannot compose symmetries of networks {self.spec} with omega {self.omega} and "
                f"{other.spec} with omega {other.omega}: widths and omega must be the same."
            )
        first, second = other.permutation, self.permutation
        return SineSymmetry(
            self.spec,
            self.flips ^ move_hidden(other.flips, second),
            self.turns + self.signs * move_hidden(other.turns, second),
            self.omega,
            first if second is None else second if first is None else second @ first,
        )

    def __rmatmul__(self, other: NeuronPermutation) -> SineSymmetry:
        return self._wrap(other) @ self

    def _wrap(self, other: SineSymmetry | NeuronPermutation) -> SineSymmetry:
        if isinstance(other, SineSymmetry):
            return other
        hidden = sum(other.spec.widths[1:-1])
        return SineSymmetry(other.spec, self.flips.new_zeros(hidden), self.turns.new_zeros(hidden), self.omega, other)

    def __call__(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures:
        moved = self.on_differences(features)
        networks = moved.tensor.select(-1, 0)
        shifts = (self.turns.to(networks) * (math.pi / self.omega)).split(self.spec.widths[1:-1], dim=-1)
        for group in self.spec.groups:
            if group.kind == "bias" and group.layer < self.spec.num_layers:
                networks.narrow(1, group.start, group.size).add_(shifts[group.layer - 1])
        return moved

    def on_differences(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures:
        """The linear part of the action, for edits and gradients: signs and permutation, no shifts of biases."""
        if features.spec.widths != self.spec.widths:
            features.require_spec(self.spec, "This symmetry")
        # A weight gets the sign s of the neuron it enters, and s (-1)^k of the neuron it leaves.
        signs = 1 - 2 * self.flips.to(features.tensor)
        parities = signs * (1 - 2 * (self.turns & 1).to(features.tensor))
        return scale_entries(features, signs, parities, self.permutation)


def canonicalize_sines(features: WeightSpaceFeatures, omega: float) -> tuple[WeightSpaceFeatures, SineSymmetry]:
    r"""Moves every hidden bias, times omega, into $[0, \pi/2]$ by signs and half turns; the functions stay the same.

    Copies of a network under `SineSymmetry` get the same canonical form, up to rounding and up to the permutation
    between them: it commutes with permutations. Canonical networks are not changed, at little cost. At the two ends
    of the interval, up to rounding, both signs are possible: the sum of the incoming weights is made nonnegative.

    An edit `d` of the canonical form is the edit `element.inverse().on_differences(d)` of the network.

    Args:
        features: Sine networks, in the first channel; other channels are transformed as differences.
        omega: Frequency of the sines.

    Returns:
        The canonical form, and the element that was applied, with separate parts for each network. Features that are
        already canonical are returned unchanged.

    Raises:
        ValueError: For networks in half precision, and for biases so large that their phases are lost to rounding.
    """
    spec = features.spec
    require_sine(spec, omega)
    networks = features.tensor[..., 0].detach()
    if networks.dtype not in (torch.float32, torch.float64):
        raise UserError(
            f"Expected networks in single or double precision, but got {networks.dtype}, which is too coarse for the "
            "phases of sines. Convert them first: features.to(torch.float32)."
        )
    given = {g.layer: networks.narrow(1, g.start, g.size) for g in spec.groups if g.kind == "bias"}
    biases = [
        given[n] if n in given else networks.new_zeros(len(networks), width)
        for n, width in enumerate(spec.widths[1:-1], 1)
    ]
    quarters = torch.cat([networks[:, :0], *biases], -1) * (2 * omega / math.pi)
    # Larger than two rounding errors of a few dozen radians; within it, a bias counts as at an end of the interval.
    rounding = 64 * torch.finfo(quarters.dtype).eps
    largest = 2.0**-10 / torch.finfo(quarters.dtype).eps  # up to here, a shift by half turns is exact to 0.001
    # Inspecting values would break the graph of a compiled model, and fails under vmap: both leave neurons with larger
    # biases unchanged.
    if _is_hidden():
        quarters = torch.where(quarters.abs() <= largest, quarters, 0.5)
    elif quarters.numel():
        lowest, highest = torch.aminmax(quarters)
        if not (-largest <= lowest and highest <= largest):
            limit, low, high = (x * math.pi / 2 / omega for x in (largest, lowest.item(), highest.item()))
            raise UserError(
                f"Expected biases from {-limit:.4g} to {limit:.4g}, but got {low:.4g} to {high:.4g}: beyond that, "
                f"{quarters.dtype} does not resolve the phases of sines with omega {omega}. Leave such networks out."
            )
        if lowest > rounding and highest < 1 - rounding:
            flips = torch.zeros_like(quarters, dtype=torch.bool)
            return features, SineSymmetry(spec, flips, torch.zeros_like(flips, dtype=torch.int64), omega)
    flips = quarters.remainder(2) >= 1  # odd quarters
    at_end = (quarters - quarters.round()).abs() <= rounding
    if _is_hidden() or bool(at_end.any()):
        flips = _settle_ends(features.with_tensor(networks[..., None]), quarters, flips, at_end)
    element = SineSymmetry(spec, flips, _half_turns(quarters, flips), omega)
    return element(features), element


def _is_hidden() -> bool:
    """Whether values cannot be inspected: during compilation, and inside transforms such as `vmap`."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()  # pyright: ignore


def _half_turns(quarters: Float[Tensor, "B H"], flips: Bool[Tensor, "B H"]) -> Int[Tensor, "B H"]:
    """The half turns that move biases, after their flips, into [0, pi/2]; rounding at the ends adds none."""
    return (0.25 - 0.5 * torch.where(flips, -quarters, quarters)).round().long()


def _settle_ends(
    networks: WeightSpaceFeatures,
    quarters: Float[Tensor, "B H"],
    flips: Bool[Tensor, "B H"],
    at_end: Bool[Tensor, "B H"],
) -> Bool[Tensor, "B H"]:
    """The flips; for a bias at an end of the interval, they make the sum of the incoming weights nonnegative."""
    widths = networks.spec.widths[1:-1]
    settled, parity = [flips[:, :0]], None
    by_layer = (x.split(widths, dim=-1) for x in (quarters, flips, at_end))
    for weight, quarter, flip, end in zip(networks.weights[:-1], *by_layer, strict=True):
        weight = weight[..., 0]
        incoming = (weight if parity is None else weight * parity[:, None]).sum(-1)
        settled.append(torch.where(end, incoming < 0, flip))
        parity = 1 - 2 * (settled[-1] ^ (_half_turns(quarter, settled[-1]) & 1)).to(weight)
    return torch.cat(settled, -1)


def _known_omega(spec: NetworkSpec, omega: float | None) -> float:
    return omega if omega is not None else DEFAULT_OMEGA if spec.omega is None else spec.omega


def require_sine(spec: NetworkSpec, omega: float) -> None:
    """Raises unless the networks can be sine networks of this frequency."""
    if spec.has_kernels or not spec.is_chain:
        raise UserError(
            f"Expected sine networks, which are made of dense layers, but got {spec}. Signs and phases are symmetries "
            "of sine neurons only; for other networks use NeuronPermutation."
        )
    if not 0 < omega < math.inf:
        raise UserError(f"Expected omega, the frequency of the sines, to be positive and finite, but got {omega}.")
    sine = Activation("sine", omega)
    others = [axis.activation for axis in spec.axes if axis.role == "hidden" and axis.activation not in (None, sine)]
    if others:
        raise UserError(
            f"Expected networks with a {sine}, but got the activation {others[0]}. Leave omega out: the spec records "
            "the activation."
        )


def _has_bias(spec: NetworkSpec) -> Bool[Tensor, "H"]:
    return torch.tensor(
        [layer.has_bias for layer in spec.layers[:-1] for _ in range(layer.out_neurons)], dtype=torch.bool
    )
