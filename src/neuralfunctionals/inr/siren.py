"""Sine networks: the module, their initial weights and the two published conventions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from neuralfunctionals.errors import UserError, require_choice
from neuralfunctionals.weight_space import CONVENTIONS, Activation, Group, NetworkSpec, WeightSpaceFeatures
from neuralfunctionals.weight_space.axes import DEFAULT_OMEGA

# Axes: B input networks, N packed entries, P points, D input dimensions, O outputs.


class Siren(nn.Module):
    r"""An implicit neural representation with sine activations.

    $$ f(x) = W^{(L)} h^{(L-1)} + b^{(L)}, \qquad h^{(i)} = \sin(\omega (W^{(i)} h^{(i-1)} + b^{(i)})),\; h^{(0)} = x $$

    Its `state_dict` has the keys of `NetworkSpec.mlp(widths)`. Weights start as in the reference, biases as in
    `nn.Linear`.
    Reference: Sitzmann et al., 2020, https://arxiv.org/abs/2006.09661.

    Args:
        widths: Neurons from input to output: `[2, 32, 32, 1]` for grey images, `[2, 32, 32, 3]` for colour.
        omega: Frequency of the sines.
        seed: Random seed. Defaults to torch's default generator.

    Example:
        >>> siren = Siren([2, 32, 32, 3])
        >>> siren(torch.zeros(5, 2)).shape
        torch.Size([5, 3])
    """

    def __init__(
        self, widths: Sequence[int] = (2, 32, 32, 1), omega: float = DEFAULT_OMEGA, *, seed: int | None = None
    ) -> None:
        super().__init__()
        spec = NetworkSpec.siren(list(widths), omega)
        self.omega = omega
        self.layers = nn.ModuleList(nn.Linear(layer.in_neurons, layer.out_neurons) for layer in spec.layers)
        seed = int(torch.randint(2**62, ())) if seed is None else seed
        start = initial_weights(spec, torch.zeros(1, 2, dtype=torch.int64), seed=seed)
        self.load_state_dict(WeightSpaceFeatures.from_vectors(spec, start).to_state_dicts()[0])

    @no_type_check  # torch.fx calls it with a proxy instead of a tensor
    def forward(self, x: Float[Tensor, "*P D"]) -> Float[Tensor, "*P O"]:
        """The values at these points."""
        for layer in self.layers[:-1]:
            x = torch.sin(self.omega * layer(x))
        return self.layers[-1](x)


def can_be_siren(spec: NetworkSpec) -> bool:
    """Whether the networks can be sine networks: dense layers with biases, and sine or unknown activations."""
    is_dense = spec.is_chain and not spec.has_kernels and all(layer.has_bias for layer in spec.layers)
    return is_dense and find_other_activation(spec) is None


def find_other_activation(spec: NetworkSpec) -> str | None:
    """A known activation of a chain that sine networks do not have: they are linear after the last layer."""
    hidden = [layer.activation for layer in spec.layers[:-1] if layer.activation is not None]
    others = [str(activation) for activation in hidden if activation.omega is None]
    last = spec.layers[-1].activation if spec.is_chain else None
    if last not in (None, Activation("identity")):
        others.append(f"{last} after the last layer")
    return next(iter(others), None)


def layer_omegas(spec: NetworkSpec) -> list[float]:
    """The frequencies of the hidden layers of a chain, if all are known; else an empty list."""
    hidden = [layer.activation for layer in spec.layers[:-1]]
    found = [activation.omega for activation in hidden if activation is not None and activation.omega is not None]
    return found if len(found) == len(hidden) else []


def require_siren(spec: NetworkSpec) -> None:
    """Raises unless the networks can be sine networks, of one frequency."""
    if spec.is_chain and (other := find_other_activation(spec)) is not None:
        raise UserError(f"Expected sine networks, but the networks {spec} have the activation {other}.")
    if not can_be_siren(spec):
        raise UserError(
            f"Expected sine networks, which have dense layers with biases only, but got {spec}. "
            "Use NetworkSpec.siren, for instance NetworkSpec.siren([2, 32, 32, 1])."
        )
    if len(set(omegas := layer_omegas(spec))) > 1:
        raise UserError(
            f"Expected one frequency for all layers, but got omega {', '.join(f'{x:g}' for x in omegas)}. Convert the "
            "networks first: nf.inr.convert(features, nf.inr.SirenForm())."
        )


def as_siren(spec: NetworkSpec) -> NetworkSpec:
    """The spec with sine activations of frequency 30, if it is a chain of unknown activation; else unchanged."""
    return (
        spec.with_activation(Activation("sine", DEFAULT_OMEGA)) if spec.is_chain and spec.activation is None else spec
    )


def known_form(spec: NetworkSpec) -> tuple[float, str]:
    """Frequency and convention of sine networks; 30 and `"paper"` if the spec does not record them.

    Raises:
        ValueError: If these cannot be sine networks.
    """
    require_siren(spec)
    return DEFAULT_OMEGA if spec.omega is None else spec.omega, spec.convention or "paper"


def require_convention(convention: str) -> None:
    """Raises unless the convention is a known one."""
    require_choice("the convention to be", convention, CONVENTIONS)


def initial_weights(
    spec: NetworkSpec,
    items: Int[Tensor, "B 2"],
    *,
    seed: int = 0,
    attempt: int = 0,
) -> Float[Tensor, "B N"]:
    r"""Independent initial weights for each item; they do not depend on the batch, the machine or torch's version.

    Weights are uniform in $\pm 1/n$ for the first layer and $\pm\sqrt{6/n}/\omega$ for the others, biases in
    $\pm 1/\sqrt n$ (zero for `"dws"`), where $n$ counts incoming neurons. The numbers come from a counter-based
    generator (Philox) with the seed and the source index as its key, the copy and the attempt as its counter.

    Args:
        spec: The network, with its frequency and convention; see `NetworkSpec.siren`.
        items: Source index and copy number of each item.
        seed: Random seed of the whole dataset.
        attempt: Counts restarts after divergence.
    """
    require_siren(spec)
    limits = np.repeat(initial_limits(spec), [g.size for g in spec.groups])
    words = np.empty((len(items), spec.num_entries), dtype=np.uint64)
    for row, (source_index, copy) in zip(words, items.tolist(), strict=True):
        # The first word of the counter runs through the entries of the network.
        row[:] = np.random.Philox(key=[seed, source_index], counter=[0, copy, attempt, 0]).random_raw(spec.num_entries)
    uniform = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return torch.from_numpy(((2 * uniform - 1) * limits).astype(np.float32))


def initial_limits(spec: NetworkSpec) -> list[float]:
    """The largest initial value of each group of entries; see `initial_weights`."""
    omega, convention = DEFAULT_OMEGA if spec.omega is None else spec.omega, spec.convention

    def limit(group: Group) -> float:
        incoming = spec.widths[group.layer - 1]
        if group.kind == "bias":
            return 0.0 if convention == "dws" else 1 / math.sqrt(incoming)
        return 1 / incoming if group.layer == 1 else math.sqrt(6 / incoming) / omega

    return [limit(group) for group in spec.groups]


def convert_convention(features: WeightSpaceFeatures, target: str) -> WeightSpaceFeatures:
    r"""Converts networks to the other published convention; exact, as it only reorders and doubles or halves.

    `"paper"`: the first coordinate is the row, the output is the value in [-1, 1]. `"dws"` (Navon et al., 2023): the
    first coordinate is the column, the output plus 0.5 is the pixel in [0, 1]. A pixel is $(v + 1)/2$, so that

    $$ g(c, r) + \tfrac12 = \frac{f(r, c) + 1}{2} \iff g(c, r) = \tfrac12 f(r, c): $$

    the columns of the first weights are swapped, and the last weights and biases are halved. In both conventions,
    coordinates are in [-1, 1], endpoints included.

    Args:
        features: Sine networks, one channel or several. If the spec does not record a convention, it is `"paper"`.
        target: The convention to convert to.
    """
    omega, source = known_form(features.spec)
    require_convention(target)
    if source == target:
        return features
    scale = 0.5 if target == "dws" else 2.0
    weights, biases = list(features.weights), list(features.biases)
    weights[0] = weights[0].flip(2)
    weights[-1], biases[-1] = weights[-1] * scale, biases[-1] * scale
    spec = features.spec.with_activation(Activation("sine", omega), convention=target)
    return WeightSpaceFeatures.from_tensors(spec, weights, biases)
