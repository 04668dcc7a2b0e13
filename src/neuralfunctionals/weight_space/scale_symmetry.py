"""Signs and positive scales of neurons: symmetries of networks with odd or homogeneous activations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from neuralfunctionals.errors import UserError
from neuralfunctionals.weight_space.features import WeightSpaceFeatures
from neuralfunctionals.weight_space.permutation import NeuronPermutation, move_hidden, scale_entries
from neuralfunctionals.weight_space.spec import NetworkSpec

# Axes: B input networks, H hidden neurons of all layers in order.


@dataclass(frozen=True, eq=False)
class ScaleSymmetry:
    r"""A factor $\lambda$ for each hidden neuron $f(w \cdot x + b)$ of a chain.

    $$ (w, b, v) \mapsto (\lambda w,\; \lambda b,\; v / \lambda), \qquad
       f(\lambda z) / \lambda = f(z), $$

    where $v$ are the outgoing weights. The function stays the same if $f$ is odd and $\lambda = \pm 1$ (tanh, sine), or
    positively homogeneous and $\lambda > 0$ (relu); neurons with other activations have the factor 1. An element may
    include a permutation, which acts first. An element acts on all networks of a batch alike (`factors` of shape
    `(H,)`) or has separate factors for each (`(B, H)`).

    Args:
        spec: The networks, a chain.
        factors: $\lambda$ of each hidden neuron, not zero.
        permutation: Acts before the factors. Defaults to none.
    """

    spec: NetworkSpec
    factors: Float[Tensor, "*B H"]
    permutation: NeuronPermutation | None = None

    def __post_init__(self) -> None:
        self.spec.require_chain("ScaleSymmetry")
        hidden = sum(self.spec.widths[1:-1])
        if self.factors.shape[-1:] != (hidden,) or self.factors.ndim > 2:
            raise UserError(
                f"Expected factors of shape ({hidden},) or (batch, {hidden}) for the network {self.spec}, but got "
                f"{tuple(self.factors.shape)}. Give one per hidden neuron."
            )

    def inverse(self) -> ScaleSymmetry:
        back = None if self.permutation is None else self.permutation.inverse()
        return ScaleSymmetry(self.spec, move_hidden(1 / self.factors, back), back)

    def __matmul__(self, other: ScaleSymmetry | NeuronPermutation) -> ScaleSymmetry:
        """The composition: `(g @ h)(x) == g(h(x))`; `h` may be a permutation."""
        other = self._wrap(other)
        first, second = other.permutation, self.permutation
        return ScaleSymmetry(
            self.spec,
            self.factors * move_hidden(other.factors, second),
            first if second is None else second if first is None else second @ first,
        )

    def __rmatmul__(self, other: NeuronPermutation) -> ScaleSymmetry:
        return self._wrap(other) @ self

    def _wrap(self, other: ScaleSymmetry | NeuronPermutation) -> ScaleSymmetry:
        if isinstance(other, ScaleSymmetry):
            return other
        return ScaleSymmetry(other.spec, self.factors.new_ones(self.factors.shape[-1]), other)

    def __call__(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures:
        if features.spec.axes != self.spec.axes:
            features.require_spec(self.spec, "This symmetry")
        factors = self.factors.to(features.tensor)
        return scale_entries(features, factors, factors, self.permutation)

    def on_differences(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures:
        """The action is linear: the same on networks and on differences of networks."""
        return self(features)


def canonicalize_scales(
    features: WeightSpaceFeatures, signs: Bool[Tensor, "H"], scales: Bool[Tensor, "H"]
) -> tuple[WeightSpaceFeatures, ScaleSymmetry]:
    """Removes signs and scales; see `NetworkSymmetry.canonicalize`.

    Args:
        features: The networks, in the first channel; other channels are transformed as differences.
        signs: Which hidden neurons have a sign.
        scales: Which have a scale.
    """
    spec = features.spec
    networks = features.with_tensor(features.tensor[..., :1].detach())
    found, before = [networks.tensor[:, :0, 0]], None
    has_sign, has_scale = (x.to(networks.tensor.device).split(spec.widths[1:-1]) for x in (signs, scales))
    for n, (layer, weight, bias) in enumerate(zip(spec.layers[:-1], networks.weights, networks.biases, strict=False)):
        incoming = weight[..., 0] if before is None else weight[..., 0] / _spread(before, weight.ndim - 1)
        incoming, bias = incoming.flatten(2), bias[..., 0]
        total = incoming.sum(-1)
        decides = torch.where(bias != 0, bias, total) if layer.has_bias else total
        sign = torch.where((decides < 0) & has_sign[n], -1.0, 1.0).to(total)
        squares = incoming.square().sum(-1) + (bias.square() if layer.has_bias else 0)
        smallest = torch.finfo(squares.dtype).tiny  # a neuron without weights has no scale
        norm = squares.clamp(min=smallest).rsqrt()
        scale = torch.where((squares > smallest) & has_scale[n], norm, torch.ones_like(norm))
        before = sign * scale
        found.append(before)
    element = ScaleSymmetry(spec, torch.cat(found, dim=-1))
    return element(features), element


def _spread(factors: Float[Tensor, "B n"], ndim: int) -> Tensor:
    """The factors of the neurons that a weight leaves, along its second axis."""
    return factors[:, None].unflatten(2, (-1, *[1] * (ndim - 3)))
