"""The permutations of neurons and their action on features: `NeuronPermutation`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from neuralfunctionals.weight_space.features import WeightSpaceFeatures
from neuralfunctionals.weight_space.spec import NetworkSpec, Symmetry


@dataclass(frozen=True, eq=False)
class NeuronPermutation:
    r"""One permutation $\sigma_i$ for each layer of neurons, `0` (input) to `L` (output).

    $$ [\sigma W]^{(i)}_{jk} = W^{(i)}_{\sigma_i^{-1}(j), \sigma_{i-1}^{-1}(k)}, \qquad
       [\sigma b]^{(i)}_j = b^{(i)}_{\sigma_i^{-1}(j)} $$

    A permutation of the hidden neurons alone (`"HNP"`) leaves the function of the network unchanged.
    `sigma[i][j]` is $\sigma_i(j)$: neuron `j` moves to place `sigma[i][j]`.

    Reference: Zhou et al., 2023, https://arxiv.org/abs/2305.13546, eq. 1.

    Example:
        >>> spec = NetworkSpec.mlp([2, 4, 1])
        >>> features = WeightSpaceFeatures.from_vectors(spec, torch.randn(3, spec.num_entries))
        >>> p = NeuronPermutation.random(spec, symmetry="HNP")
        >>> torch.equal(p.inverse()(p(features)).tensor, features.tensor)
        True
    """

    spec: NetworkSpec
    sigma: tuple[Tensor, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", tuple(self.sigma))
        if [len(s) for s in self.sigma] != list(self.spec.widths):
            raise ValueError(
                f"Expected one permutation for each layer of neurons, of sizes {self.spec.widths}, but got sizes "
                f"{tuple(len(s) for s in self.sigma)}. Input and output count too; give torch.arange for the identity."
            )
        for i, s in enumerate(self.sigma):
            if s.sort().values.tolist() != list(range(len(s))):
                raise ValueError(
                    f"Expected a permutation of 0 .. {len(s) - 1} for layer {i}, but got {s.tolist()}. Each place once."
                )

    @classmethod
    def random(
        cls, spec: NetworkSpec, symmetry: Symmetry = "HNP", generator: torch.Generator | None = None
    ) -> NeuronPermutation:
        """A uniform draw: over all neurons for `"NP"`, over the hidden ones for `"HNP"`."""
        fixed = spec.fixed_axes(symmetry)
        return cls(
            spec,
            tuple(
                torch.arange(n) if i in fixed else torch.randperm(n, generator=generator)
                for i, n in enumerate(spec.widths)
            ),
        )

    @classmethod
    def identity(cls, spec: NetworkSpec) -> NeuronPermutation:
        return cls(spec, tuple(torch.arange(n) for n in spec.widths))

    def inverse(self) -> NeuronPermutation:
        return NeuronPermutation(self.spec, tuple(s.argsort() for s in self.sigma))

    def __matmul__(self, other: NeuronPermutation) -> NeuronPermutation:
        """The composition: `(p @ q)(x) == p(q(x))`."""
        if not isinstance(other, NeuronPermutation):
            return NotImplemented  # a symmetry that knows how to take a permutation in
        if other.spec.widths != self.spec.widths:
            raise ValueError(f"Cannot compose permutations of networks {self.spec} and {other.spec}: widths differ.")
        return NeuronPermutation(self.spec, tuple(p[q] for p, q in zip(self.sigma, other.sigma, strict=True)))

    def __call__(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures:
        if features.spec.widths != self.spec.widths:
            features.require_spec(self.spec, "This permutation")
        return features.with_tensor(features.tensor[:, self.entry_order(features.spec).to(features.tensor.device)])

    def entry_order(self, spec: NetworkSpec) -> Tensor:
        """For each place of the packed axis, the entry that comes to stand there."""
        sources = [s.argsort() for s in self.sigma]
        parts: Sequence[Tensor] = [
            _take(torch.arange(g.start, g.stop).view(g.shape), [sources[a] for a in g.axes]).flatten()
            for g in spec.groups
        ]
        return torch.cat(list(parts))


def _take(entries: Tensor, sources: Sequence[Tensor]) -> Tensor:
    for axis, source in enumerate(sources):
        entries = entries.index_select(axis, source)
    return entries
