"""Weight-space self-attention: rows, columns and biases that share neurons attend to each other."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from neuralfunctionals import kernels
from neuralfunctionals.errors import UserError
from neuralfunctionals.layers.projection import Project, Unproject
from neuralfunctionals.weight_space import Group, NetworkSpec, Symmetry, WeightSpaceFeatures, join_groups

# Axes: B input networks, N packed entries, C channels, H heads, c channels of a head, G groups of entries,
# T vectors that meet at one layer of neurons, n neurons of that layer; _O, _I neurons of neighbouring layers.

GlobalTerm = Literal["reduced", "full", "none"]


class WeightSpaceSelfAttention(nn.Module):
    r"""Self-attention between the weights and biases of a network.

    With $(Q, K, V)$ the projected weights and $(q, k, v)$ the projected biases,

    $$ Y^{(i)}_{jk} = \mathrm{Attn}(Q^{(i)}_{j,:}, KV_{i-1})_k + \mathrm{Attn}(Q^{(i)}_{:,k}, KV_i)_j
                      + \mathrm{Attn}(Q^{(i)}_{jk}, KV_*) $$
    $$ z^{(i)}_j = \mathrm{Attn}(q^{(i)}, KV_i)_j + \mathrm{Attn}(q^{(i)}_j, KV_*) $$

    where $KV_i$ holds the columns of $W^{(i)}$, the bias $b^{(i)}$ and the rows of $W^{(i+1)}$: the vectors over
    the neurons of layer $i$. The last term, over all entries, is kept exact (`"full"`, quadratic), replaced by
    attention between the means of each layer's weights and biases (`"reduced"`), or left out (`"none"`).

    Differences from the paper: scores are divided by the square root of the vectors' length, the reduced term
    takes means instead of sums (`reduction="sum"` restores these), projections have biases. HNP is ours: the
    projections of the first layer depend on the input neuron, those of the last on the output neuron.
    Weights with kernels pass through `Project` before and `Unproject` after.

    Symmetry: NP- or HNP-equivariant; minimal together with `LayerEncoding`.
    Reference: Zhou et al., 2023, https://arxiv.org/abs/2305.13546, Section 3.1 and appendix "Full description".

    Args:
        spec: The input networks.
        channels: Channels in and out.
        num_heads: Heads; must divide the channels.
        dropout: Probability of dropping an entry of the attention matrix.
        symmetry: `"NP"` or `"HNP"`.
        global_term: The third term: `"reduced"`, `"full"` or `"none"`.
        reduction: What the reduced term attends between: `"mean"` or `"sum"` of each group.
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
    ) -> None:
        super().__init__()
        if channels % num_heads:
            raise UserError(
                f"Expected channels divisible by the heads, but got {channels} channels and {num_heads} heads. "
                f"Take a multiple of {num_heads} channels or another number of heads."
            )
        if global_term not in ("reduced", "full", "none") or reduction not in ("mean", "sum"):
            raise UserError(
                "Expected global_term 'reduced', 'full' or 'none' and reduction 'mean' or 'sum', "
                f"but got {global_term!r} and {reduction!r}."
            )
        self.spec = spec
        self.in_channels = self.out_channels = channels
        self.num_heads = num_heads
        self.dropout = dropout
        self.symmetry: Symmetry = symmetry
        self.global_term: GlobalTerm = global_term
        self.reduction = reduction
        self.skeleton = spec.without_kernels()
        self.project = Project(spec, channels, channels) if spec.has_kernels else nn.Identity()
        self.unproject = Unproject(spec, channels, channels) if spec.has_kernels else nn.Identity()
        self.vectors = axis_vectors(self.skeleton)
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

    def plain_parameters(self) -> list[Tensor] | None:
        """Weight and bias of the projection, if nothing else is computed than the compiled form knows.

        That form takes chains of dense layers, with one projection for all entries, and has no third term or the means.
        """
        is_known = not self.spec.has_kernels and self.symmetry == "NP" and self.global_term != "full"
        is_plain = self.reduction == "mean" and (self.dropout == 0 or not self.training)
        is_stock = kernels.is_stock(self, WeightSpaceSelfAttention) and kernels.is_stock(
            self.to_qkv, _NeuronDependentLinear
        )
        return kernels.stock_parameters(self.to_qkv.shared, nn.Linear) if is_known and is_plain and is_stock else None

    def attend_along_axes(self, qkv: WeightSpaceFeatures) -> WeightSpaceFeatures:
        """The first two terms: attention between all vectors over the neurons of one layer, for every layer."""
        parts = qkv.split()
        terms: list[list[Tensor]] = [[] for _ in parts]
        for axis in range(self.skeleton.num_layers + 1):
            groups = [(n, g) for n, g in enumerate(self.skeleton.groups) if axis in g.axes]
            vectors = torch.cat([self._to_vectors(parts[n], g, axis) for n, g in groups], dim=3)
            q, k, v = vectors.unbind(0)
            outputs = self._attend(q, k, v).split([g.size // g.shape[g.axes.index(axis)] for _, g in groups], dim=2)
            for (n, group), output in zip(groups, outputs, strict=True):
                terms[n].append(self._from_vectors(output, group, axis))
        return qkv.with_tensor(join_groups(self.skeleton, [sum(t[1:], start=t[0]) for t in terms]))

    def _to_vectors(self, x: Tensor, group: Group, axis: int) -> Float[Tensor, "3 B H T nc"]:
        h = self.num_heads
        if group.kind == "bias":
            return rearrange(x, "B n (s H c) -> s B H 1 (n c)", s=3, H=h)
        if group.layer == axis:
            return rearrange(x, "B n T (s H c) -> s B H T (n c)", s=3, H=h)
        return rearrange(x, "B T n (s H c) -> s B H T (n c)", s=3, H=h)

    def _from_vectors(self, x: Float[Tensor, "B H T nc"], group: Group, axis: int) -> Tensor:
        n = self.skeleton.widths[axis]
        if group.kind == "bias":
            return rearrange(x, "B H 1 (n c) -> B n (H c)", n=n)
        if group.layer == axis:
            return rearrange(x, "B H T (n c) -> B n T (H c)", n=n)
        return rearrange(x, "B H T (n c) -> B T n (H c)", n=n)

    def _attend_between_groups(self, features: WeightSpaceFeatures, qkv: WeightSpaceFeatures) -> WeightSpaceFeatures:
        """The reduced third term: attention between one summary of each group, given to all entries of the group."""
        # With one projection for all entries, the mean of the projections is the projection of the mean.
        early = self.reduction == "mean" and self.symmetry == "NP"
        entries = [part.flatten(1, -2) for part in (features if early else qkv).split()]
        pooled = torch.stack([x.mean(1) if self.reduction == "mean" else x.sum(1) for x in entries], dim=1)
        outputs = self._attend_tokens(self.to_qkv.shared(pooled) if early else pooled).unbind(1)
        spread = [y[:, None].expand(-1, g.size, -1) for g, y in zip(self.skeleton.groups, outputs, strict=True)]
        return features.with_tensor(torch.cat(spread, dim=1))

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


def axis_vectors(spec: NetworkSpec) -> list[Int[Tensor, "_T _n"]]:
    """For each layer of neurons the entries of the vectors that meet there, as 32-bit numbers."""
    return [
        torch.cat([_vectors_over(axis, g) for g in spec.groups if axis in g.axes]).int()
        for axis in range(spec.num_layers + 1)
    ]


def _vectors_over(axis: int, group: Group) -> Int[Tensor, "T n"]:
    """Entries of a group: columns of the weights before the axis, rows of those after it, or the bias."""
    # On the CPU also where a model is made without memory, on the meta device.
    entries = torch.arange(group.start, group.stop, device="cpu").view(group.shape)
    if group.kind == "bias":
        return entries[None]
    return entries.T if group.layer == axis else entries


class _NeuronDependentLinear(nn.Module):
    """A linear map of each entry's channels that may depend on the fixed neurons at its ends.

    NP: one map for all entries. HNP: entries at an input or output neuron have that neuron's own map; an entry
    at both (a network of one layer) has the sum of the two.
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
