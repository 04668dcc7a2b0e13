"""Weight-space self-attention: rows, columns and biases that share neurons attend to each other."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from neuralfunctionals import kernels
from neuralfunctionals.errors import UserError
from neuralfunctionals.layers.layer import Layer
from neuralfunctionals.layers.norm import spread_over_entries
from neuralfunctionals.layers.projection import Project, Unproject
from neuralfunctionals.weight_space import NetworkSpec, Symmetry, WeightSpaceFeatures, join_groups

# Axes: B input networks, N packed entries, C channels, H heads, c channels of a head, G groups of entries,
# T vectors that meet at one layer of neurons, n neurons of that layer; _O, _I neurons of neighbouring layers.

GlobalTerm = Literal["reduced", "full", "none"]


class WeightSpaceSelfAttention(Layer):
    r"""Self-attention between the weights and biases of a network.

    With $(Q, K, V)$ the projected weights and $(q, k, v)$ the projected biases,

    $$ Y^{(i)}_{jk} = \mathrm{Attn}(Q^{(i)}_{j,:}, KV_{i-1})_k + \mathrm{Attn}(Q^{(i)}_{:,k}, KV_i)_j
                      + \mathrm{Attn}(Q^{(i)}_{jk}, KV_*) $$
    $$ z^{(i)}_j = \mathrm{Attn}(q^{(i)}, KV_i)_j + \mathrm{Attn}(q^{(i)}_j, KV_*) $$

    where $KV_i$ holds the columns of $W^{(i)}$, the bias $b^{(i)}$ and the rows of $W^{(i+1)}$: the vectors over
    the neurons of layer $i$. The last term, over all entries, is kept exact (`"full"`, quadratic), replaced by
    attention between the means of each layer's weights and biases (`"reduced"`), or left out (`"none"`).

    Differences from the paper: scores are divided by the square root of the vectors' length, the reduced term
    takes means instead of sums (`reduction="sum"` restores these), and projections have biases. HNP is our addition:
    the projections of the first layer depend on the input neuron, and those of the last on the output neuron.
    Weights with kernels pass through `Project` before and `Unproject` after.

    In general, for any network: all slices over one axis of neurons attend to each other. Slices over an axis that is
    nested in another (such as the neurons within an attention head) run over both axes together.

    Symmetry: NP- or HNP-equivariant; minimal together with `LayerEncoding`, for networks without nested axes.
    Reference: Zhou et al., 2023, https://arxiv.org/abs/2305.13546, Section 3.1 and appendix "Full description".

    Args:
        spec: The input networks.
        channels: Channels in and out.
        num_heads: Heads; must divide the channels.
        dropout: Probability of dropping an entry of the attention matrix.
        symmetry: `"NP"` or `"HNP"`.
        global_term: The third term: `"reduced"`, `"full"` or `"none"`.
        reduction: Summary of each group in the reduced term: `"mean"` or `"sum"`.
        max_vectors: Limits the slices of one group that meet at an axis, such as a wide residual stream: a group with
            more of them is represented by their mean. Defaults to no limit.
    """

    def __init__(
        self,
        spec: NetworkSpec,
        channels: int,
        num_heads: int = 8,
        *,
        dropout: float = 0.0,
        symmetry: Symmetry = "NP",
        global_term: GlobalTerm = "reduced",
        reduction: Literal["mean", "sum"] = "mean",
        max_vectors: int | None = None,
    ) -> None:
        super().__init__(spec, channels, channels)
        if channels % num_heads:
            raise UserError(
                f"Expected channels divisible by the heads, but got {channels} channels and {num_heads} heads. "
                f"Use a multiple of {num_heads} channels or another number of heads."
            )
        if global_term not in ("reduced", "full", "none") or reduction not in ("mean", "sum"):
            raise UserError(
                "Expected global_term 'reduced', 'full' or 'none' and reduction 'mean' or 'sum', "
                f"but got {global_term!r} and {reduction!r}."
            )
        self.num_heads = num_heads
        self.dropout = dropout
        self.symmetry: Symmetry = symmetry
        self.global_term: GlobalTerm = global_term
        self.reduction = reduction
        self.skeleton = spec.without_kernels()
        self.project = Project(spec, channels, channels) if spec.has_kernels else nn.Identity()
        self.unproject = Unproject(spec, channels, channels) if spec.has_kernels else nn.Identity()
        self.max_vectors = max_vectors
        self.slices = _find_slices(self.skeleton)
        self.vectors = _entries_of(self.slices, self.skeleton) if self.is_plain_chain else []
        self.to_qkv = _NeuronDependentLinear(self.skeleton, channels, 3 * channels, symmetry)

    def forward(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures:
        features.require_spec(self.spec, "WeightSpaceSelfAttention")
        features = self.project(features)
        qkv = features.with_tensor(self.to_qkv(features))
        output = self.attend_along_axes(qkv)
        if self.global_term == "full":
            output = output + qkv.map(self._attend_tokens)
        elif self.global_term == "reduced":
            output = output + self._attend_between_groups(features, qkv)
        return self.unproject(output)

    @property
    def is_plain_chain(self) -> bool:
        """Whether the networks are chains and the number of slices is not limited."""
        return self.spec.is_chain and self.max_vectors is None

    def plain_parameters(self) -> list[Tensor] | None:
        """Weight and bias of the projection, if the compiled form supports this layer; else None.

        It supports chains of dense layers with one projection for all entries, and no third term or the mean.
        """
        is_known = self.is_plain_chain and not self.spec.has_kernels
        is_known = is_known and self.symmetry == "NP" and self.global_term != "full"
        is_plain = self.reduction == "mean" and (self.dropout == 0 or not self.training)
        is_stock = kernels.is_stock(self, WeightSpaceSelfAttention) and kernels.is_stock(
            self.to_qkv, _NeuronDependentLinear
        )
        return kernels.stock_parameters(self.to_qkv.shared, nn.Linear) if is_known and is_plain and is_stock else None

    def attend_along_axes(self, qkv: WeightSpaceFeatures) -> WeightSpaceFeatures:
        """The first two terms: attention between all slices over one axis of neurons, for every axis."""
        parts = qkv.split()
        terms: list[list[Tensor]] = [[] for _ in parts]
        for slices in self.slices:
            vectors = torch.cat([self._bound(self._to_vectors(parts[n], places)) for n, places in slices], dim=3)
            q, k, v = vectors.unbind(0)
            outputs = self._attend(q, k, v).split([self._count(n, places, bounded=True) for n, places in slices], dim=2)
            for (n, places), output in zip(slices, outputs, strict=True):
                output = output.expand(-1, -1, self._count(n, places), -1)
                terms[n].append(self._from_vectors(output, self.skeleton.groups[n].shape, places))
        summed = [
            sum(t[1:], start=t[0]) if t else x.new_zeros(*x.shape[:-1], self.out_channels)
            for t, x in zip(terms, parts, strict=True)
        ]
        return qkv.with_tensor(join_groups(self.skeleton, summed))

    def _count(self, n: int, places: tuple[int, ...], *, bounded: bool = False) -> int:
        shape = self.skeleton.groups[n].shape
        count = math.prod([size for place, size in enumerate(shape) if place not in places])
        return 1 if bounded and self.max_vectors is not None and count > self.max_vectors else count

    def _bound(self, vectors: Float[Tensor, "3 B H T nc"]) -> Float[Tensor, "3 B H _T nc"]:
        if self.max_vectors is None or vectors.shape[3] <= self.max_vectors:
            return vectors
        return vectors.mean(3, keepdim=True)

    def _to_vectors(self, x: Tensor, places: tuple[int, ...]) -> Float[Tensor, "3 B H T nc"]:
        """The slices of a group over its neurons at these dimensions."""
        others = [n for n in range(x.ndim - 2) if n not in places]
        x = x.permute(0, -1, *(1 + n for n in others), *(1 + n for n in places))
        x = x.flatten(2 + len(others)).flatten(2, 1 + len(others)) if others else x.flatten(2)[:, :, None]
        return rearrange(x, "B (s H c) T n -> s B H T (n c)", s=3, H=self.num_heads)

    def _from_vectors(self, x: Float[Tensor, "B H T nc"], shape: tuple[int, ...], places: tuple[int, ...]) -> Tensor:
        others = [n for n in range(len(shape)) if n not in places]
        order = [*others, *places]
        x = rearrange(x, "B H T (n c) -> B T n (H c)", n=math.prod([shape[n] for n in places]))
        x = x.reshape(len(x), *(shape[n] for n in order), -1)
        return x.permute(0, *(1 + order.index(n) for n in range(len(shape))), -1)

    def _attend_between_groups(self, features: WeightSpaceFeatures, qkv: WeightSpaceFeatures) -> WeightSpaceFeatures:
        """The reduced third term: attention between one summary per group, added to all entries of the group."""
        # With one projection for all entries, the mean of the projections is the projection of the mean.
        early = self.reduction == "mean" and self.symmetry == "NP"
        entries = [part.flatten(1, -2) for part in (features if early else qkv).split()]
        pooled = torch.stack([x.mean(1) if self.reduction == "mean" else x.sum(1) for x in entries], dim=1)
        outputs = self._attend_tokens(self.to_qkv.shared(pooled) if early else pooled).unbind(1)
        return features.with_tensor(spread_over_entries(self.skeleton, outputs))

    def _attend_tokens(self, qkv: Float[Tensor, "B T C3"]) -> Float[Tensor, "B T C"]:
        q, k, v = rearrange(qkv, "B T (s H c) -> s B H T c", s=3, H=self.num_heads)
        return rearrange(self._attend(q, k, v), "B H T c -> B T (H c)")

    def _attend(
        self, q: Float[Tensor, "B H T d"], k: Float[Tensor, "B H T d"], v: Float[Tensor, "B H T d"]
    ) -> Float[Tensor, "B H T d"]:
        scores = q @ k.mT * q.shape[-1] ** -0.5
        return F.dropout(scores.softmax(-1), self.dropout, self.training) @ v

    def extra_repr(self) -> str:
        return f"{self.spec}, channels={self.in_channels}, num_heads={self.num_heads}, symmetry={self.symmetry}"


def _find_slices(spec: NetworkSpec) -> list[list[tuple[int, tuple[int, ...]]]]:
    """For each axis, the groups whose slices over its neurons meet there, and the dimensions of the neurons in each.

    Slices over a nested axis run over it and its parent together: a neuron within a head has no counterpart in other
    heads. So a group with nested axes has no slices over their parent alone, nor over one of two axes of one parent.
    """
    parents = [spec.parent_places(group.axes) for group in spec.groups]
    found = []
    for number in range(len(spec.axes)):
        slices: list[tuple[int, tuple[int, ...]]] = []
        for n, group in enumerate(spec.groups):
            for place in (p for p, axis in enumerate(group.axes) if axis == number):
                parent = parents[n][place]
                nested = parents[n].count(place if parent is None else parent)
                if parent is None and not nested:
                    slices.append((n, (place,)))
                elif parent is not None and nested == 1:
                    slices.append((n, (parent, place)))
        if slices:
            found.append(slices)
    return found


def _entries_of(slices: list[list[tuple[int, tuple[int, ...]]]], spec: NetworkSpec) -> list[Int[Tensor, "_T _n"]]:
    """For each layer of neurons of a chain, the entries of the vectors that meet there, as 32-bit numbers."""
    # On the CPU even if the model is created on the meta device.
    entries = torch.arange(spec.num_entries, dtype=torch.int32, device="cpu")
    parts = [entries[g.start : g.stop].view(g.shape) for g in spec.groups]
    return [
        torch.cat([parts[n].movedim(place, -1).reshape(-1, parts[n].shape[place]) for n, (place,) in axis])
        for axis in slices
    ]


class _NeuronDependentLinear(nn.Module):
    """A linear map of each entry's channels that may depend on the fixed neurons at its ends.

    NP: one map for all entries. HNP: entries at an input or output neuron use that neuron's own map; an entry
    at both (in a network of one layer) uses the sum of the two.
    """

    def __init__(self, spec: NetworkSpec, in_channels: int, out_channels: int, symmetry: Symmetry) -> None:
        super().__init__()
        self.spec = spec
        self.fixed = sorted(spec.fixed_axes(symmetry))
        self.has_shared = any(not set(g.axes) & set(self.fixed) for g in spec.groups)
        if self.has_shared:
            self.shared = nn.Linear(in_channels, out_channels)
        bound = in_channels**-0.5
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for axis in self.fixed:
            n = spec.widths[axis]
            self.weights.append(nn.Parameter(torch.empty(n, out_channels, in_channels).uniform_(-bound, bound)))
            self.biases.append(nn.Parameter(torch.empty(n, out_channels).uniform_(-bound, bound)))

    def forward(self, features: WeightSpaceFeatures) -> Float[Tensor, "B N D"]:
        if not self.fixed:
            return self.shared(features.tensor)
        parts = []
        for group, x in zip(self.spec.groups, features.split(), strict=True):
            maps = [(group.axes.index(a), n) for n, a in enumerate(self.fixed) if a in group.axes]
            own = [self._map_along(x, place, n) for place, n in maps]
            parts.append(sum(own[1:], start=own[0]) if own else self.shared(x))
        return join_groups(self.spec, parts)

    def _map_along(self, x: Tensor, place: int, n: int) -> Tensor:
        x = x.movedim(1 + place, 0)
        y = x.flatten(1, -2) @ self.weights[n].mT + self.biases[n][:, None]
        return y.unflatten(1, x.shape[1:-1]).movedim(0, 1 + place)
