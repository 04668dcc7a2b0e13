"""A batch of input networks as one tensor: `WeightSpaceFeatures`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils.data
from jaxtyping import Float
from torch import Tensor, nn

from neuralfunctionals.errors import UserError
from neuralfunctionals.weight_space.axes import Group
from neuralfunctionals.weight_space.notebook import describe_networks, draw_networks
from neuralfunctionals.weight_space.spec import NetworkSpec
from neuralfunctionals.weight_space.state import copy_module, pack_state_dict, unpack_state_dict, write_module

# Axes: B input networks, N packed entries, C channels; _O, _I neurons, which differ between layers.


@dataclass(frozen=True, eq=False)
class WeightSpaceFeatures:
    """A batch of weights and biases, packed: every entry is a token of `tensor`, of shape `(B, N, C)`.

    The entries of a layer are a slice, so that `weights` and `biases` are views. An operation that treats
    all entries alike is one call on `tensor`; one that depends on the layer uses the views.

    Example:
        >>> spec = NetworkSpec.mlp([2, 3, 1])
        >>> features = WeightSpaceFeatures.from_vectors(spec, torch.arange(13.0)[None])
        >>> [tuple(w.shape) for w in features.weights], [tuple(b.shape) for b in features.biases]
        ([(1, 3, 2, 1), (1, 1, 3, 1)], [(1, 3, 1), (1, 1, 1)])
    """

    spec: NetworkSpec
    tensor: Float[Tensor, "B N C"]

    def __post_init__(self) -> None:
        if self.tensor.ndim != 3 or self.tensor.shape[1] != self.spec.num_entries:
            raise UserError(
                f"Expected features of shape (batch, {self.spec.num_entries}, channels) for the network {self.spec}, "
                f"but got {tuple(self.tensor.shape)}. Use from_tensors, from_vectors or from_modules to pack networks."
            )

    # Constructors, which check shapes and values.

    @classmethod
    def from_tensors(
        cls, spec: NetworkSpec, weights: Sequence[Tensor], biases: Sequence[Tensor]
    ) -> WeightSpaceFeatures:
        """Packs the weights and biases of each layer.

        Args:
            spec: The network they belong to.
            weights: `(B, n_out, n_in, *kernel, C)` for each layer.
            biases: `(B, n_out, C)` for each layer; `(B, 0, C)` for a layer without bias.
        """
        if len(weights) != spec.num_layers or len(biases) != spec.num_layers:
            raise UserError(
                f"Expected {spec.num_layers} weight and {spec.num_layers} bias tensors for the network {spec}, "
                f"but got {len(weights)} and {len(biases)}. Give one of each for every layer."
            )
        batch, channels = weights[0].shape[0], weights[0].shape[-1]
        for i, layer in enumerate(spec.layers):
            num_biases = layer.out_neurons if layer.has_bias else 0
            expected = {"weights": (batch, *layer.weight_shape, channels), "biases": (batch, num_biases, channels)}
            for (kind, shape), given in zip(expected.items(), (weights[i], biases[i]), strict=True):
                if tuple(given.shape) != shape:
                    raise UserError(
                        f"Expected {kind} of layer {i + 1} of shape (batch, neurons, ..., channels) = {shape}, but got "
                        f"{tuple(given.shape)}. Channels come last; every layer has the same batch and channels."
                    )
        features = cls(spec, pack(spec, weights, biases))
        features.require_finite()
        return features

    @classmethod
    def from_vectors(cls, spec: NetworkSpec, vectors: Float[Tensor, "B N"]) -> WeightSpaceFeatures:
        """One channel from flat vectors, in the order of `nn.utils.parameters_to_vector`: layer by layer."""
        if vectors.ndim != 2 or vectors.shape[1] != spec.num_entries:
            raise UserError(
                f"Expected vectors of shape (batch, {spec.num_entries}) for the network {spec}, "
                f"but got {tuple(vectors.shape)}. Give one row per network."
            )
        features = cls(spec, vectors[..., None])
        features.require_finite()
        return features

    @classmethod
    def from_state_dicts(
        cls, state_dicts: Sequence[Mapping[str, Tensor]], spec: NetworkSpec | None = None
    ) -> WeightSpaceFeatures:
        """One channel from `state_dict`s of one architecture; the spec is inferred from the first unless given."""
        if isinstance(state_dicts, Mapping):
            raise UserError("Expected a list of state_dicts, but got a dict. Put a single one in a list: [state_dict].")
        if not state_dicts:
            raise UserError("Expected at least one state_dict, but got none.")
        spec = NetworkSpec.from_state_dict(state_dicts[0]) if spec is None else spec
        features = cls(spec, torch.stack([pack_state_dict(spec, s) for s in state_dicts])[..., None])
        features.require_finite()
        return features

    @classmethod
    def from_modules(cls, modules: Sequence[nn.Module], spec: NetworkSpec | None = None) -> WeightSpaceFeatures:
        """One channel from modules of one architecture; the spec is inferred from the first unless given."""
        if isinstance(modules, (nn.Module, Mapping)):
            raise UserError(
                f"Expected a list of modules, but got a {type(modules).__name__}. Put one module in a list, [module], "
                "and read state_dicts with from_state_dicts."
            )
        if not modules:
            raise UserError("Expected at least one module, but got none.")
        spec = NetworkSpec.from_module(modules[0]) if spec is None else spec
        return cls.from_state_dicts([m.state_dict() for m in modules], spec)

    @classmethod
    def stack(cls, parts: Sequence[WeightSpaceFeatures]) -> WeightSpaceFeatures:
        """Joins features of the same networks along the channels: weights, gradients, momenta."""
        if not parts:
            raise UserError("Expected at least one part to stack, but got none.")
        for part in parts[1:]:
            parts[0].require_spec(part.spec, "These parts")
        return cls(parts[0].spec, torch.cat([part.tensor for part in parts], dim=-1))

    @classmethod
    def concatenate(cls, batches: Sequence[WeightSpaceFeatures]) -> WeightSpaceFeatures:
        """Joins batches of networks of one spec into one batch."""
        if not batches:
            raise UserError("Expected at least one batch to concatenate, but got none.")
        for batch in batches[1:]:
            batches[0].require_spec(batch.spec, "These batches")
        return cls(batches[0].spec, torch.cat([batch.tensor for batch in batches]))

    # Reading.

    @property
    def num_channels(self) -> int:
        return self.tensor.shape[-1]

    def __len__(self) -> int:
        return self.tensor.shape[0]

    @property
    def shape(self) -> torch.Size:
        """Shape of the packed tensor: networks, entries, channels."""
        return self.tensor.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    @property
    def device(self) -> torch.device:
        return self.tensor.device

    def group(self, group: Group) -> Float[Tensor, "B *_shape C"]:
        """A view of one group of entries in its own shape."""
        return self.tensor[:, group.start : group.stop].unflatten(1, group.shape)

    def split(self) -> list[Float[Tensor, "B *_shape C"]]:
        """Views of all groups in packed order, from one operation, whose backward pass copies each gradient once."""
        parts = self.tensor.split([g.size for g in self.spec.groups], dim=1)
        return [part.unflatten(1, g.shape) for part, g in zip(parts, self.spec.groups, strict=True)]

    @property
    def weights(self) -> tuple[Float[Tensor, "B _O _I *_kernel C"], ...]:
        """Views of each layer's weights, for chains; other networks have groups, see `split`."""
        self.spec.require_chain("features.weights")
        return tuple(x for x, g in zip(self.split(), self.spec.groups, strict=True) if g.kind == "weight")

    @property
    def biases(self) -> tuple[Float[Tensor, "B _O C"], ...]:
        """Views of each layer's biases, for chains; of length 0 for layers without bias."""
        self.spec.require_chain("features.biases")
        found = {g.layer: x for x, g in zip(self.split(), self.spec.groups, strict=True) if g.kind == "bias"}
        return tuple(found.get(i, self.tensor[:, :0]) for i in range(1, self.spec.num_layers + 1))

    def to_vectors(self) -> Float[Tensor, "B N"]:
        """One flat vector per network: the inverse of `from_vectors`."""
        self._require_one_channel("to_vectors")
        return self.tensor[..., 0]

    def to_state_dicts(self) -> list[dict[str, Tensor]]:
        """One `state_dict` per network: the inverse of `from_state_dicts`. The tensors are copies."""
        self._require_one_channel("to_state_dicts")
        return [unpack_state_dict(self.spec, vector) for vector in self.tensor[..., 0]]

    def to_modules(self, template: nn.Module) -> list[nn.Module]:
        """One copy of the template per network, with its weights: the inverse of `from_modules`."""
        spec = self.spec
        keys = template.state_dict().keys()
        if spec.is_chain and not {group.key for group in spec.groups} <= set(keys):
            spec = NetworkSpec.from_module(template, verify=False)  # with the template's own names
            self.require_spec(spec, "The template")
        # Other tensors, such as buffers that are not in the spec, keep the template's values.
        modules = [copy_module(template) for _ in range(len(self))]
        for module, vector in zip(modules, self.to_vectors(), strict=True):
            write_module(spec, vector, module)
        return modules

    # Arithmetic, dtypes and devices.

    def with_tensor(self, tensor: Float[Tensor, "B N D"]) -> WeightSpaceFeatures:
        """Features of the same networks with other values, possibly with another number of channels."""
        return WeightSpaceFeatures(self.spec, tensor)

    @classmethod
    def unchecked(cls, spec: NetworkSpec, tensor: Float[Tensor, "B N C"]) -> WeightSpaceFeatures:
        """Like the constructor, but without checking the shape: for use inside `forward`."""
        features = object.__new__(cls)
        object.__setattr__(features, "spec", spec)
        object.__setattr__(features, "tensor", tensor)
        return features

    def map(self, function: Callable[[Tensor], Tensor]) -> WeightSpaceFeatures:
        """Applies a function of the packed tensor that treats every entry alike, such as `torch.relu`."""
        return self.with_tensor(function(self.tensor))

    def __add__(self, other: WeightSpaceFeatures | Tensor | float) -> WeightSpaceFeatures:
        return self.with_tensor(self.tensor + self._operand(other))

    def __sub__(self, other: WeightSpaceFeatures | Tensor | float) -> WeightSpaceFeatures:
        return self.with_tensor(self.tensor - self._operand(other))

    def __mul__(self, other: WeightSpaceFeatures | Tensor | float) -> WeightSpaceFeatures:
        return self.with_tensor(self.tensor * self._operand(other))

    __rmul__ = __mul__

    def __truediv__(self, other: WeightSpaceFeatures | Tensor | float) -> WeightSpaceFeatures:
        return self.with_tensor(self.tensor / self._operand(other))

    def __neg__(self) -> WeightSpaceFeatures:
        return self.with_tensor(-self.tensor)

    def __getitem__(self, index: Any) -> WeightSpaceFeatures:
        """Some of the networks; always a batch, even for a single integer."""
        return self.with_tensor(self.tensor[[index] if isinstance(index, int) else index])

    def to(self, *args: Any, **kwargs: Any) -> WeightSpaceFeatures:
        """Moves or casts, as `Tensor.to`."""
        return self.with_tensor(self.tensor.to(*args, **kwargs))

    def detach(self) -> WeightSpaceFeatures:
        return self.with_tensor(self.tensor.detach())

    def clone(self) -> WeightSpaceFeatures:
        return self.with_tensor(self.tensor.clone())

    def double(self) -> WeightSpaceFeatures:
        return self.to(torch.float64)

    def __repr__(self) -> str:
        batch, _, channels = self.tensor.shape
        counts = f"{channels} channel{'' if channels == 1 else 's'}"
        return f"WeightSpaceFeatures({batch} networks {self.spec}; {counts}, {self.tensor.dtype})"

    def _repr_html_(self) -> str:
        """The display in a notebook."""
        return describe_networks(self)

    def _repr_png_(self) -> bytes:
        """The display in a notebook without HTML."""
        return draw_networks(self)

    # Checks.

    def require_spec(self, spec: NetworkSpec, who: str) -> None:
        """Raises unless these are networks of the given spec."""
        if self.spec.matches(spec):
            return
        if self.spec != spec:
            raise UserError(
                f"{who} expected networks {spec} but received {self.spec}. "
                "A model only takes networks of its own spec: train one on networks like these, or build it with their "
                "spec, NFT(spec=dataset.spec, ...)."
            )
        raise UserError(
            f"{who} received networks {self.spec} that have {self.spec.find_conflict(spec)}. "
            "nf.inr.convert converts sine networks exactly to another frequency or convention."
        )

    def require_finite(self) -> None:
        """Raises if an entry is NaN or infinite, naming the network and the layer."""
        if bool(self.tensor.isfinite().all()):
            return
        network, entry, _ = (int(i) for i in (~self.tensor.isfinite()).nonzero()[0])
        group = next(g for g in self.spec.groups if g.start <= entry < g.stop)
        value = self.tensor[network, entry].tolist()
        raise UserError(
            f"Expected finite values, but the {group} of network {network} holds {value}. "
            "Leave out networks whose training diverged."
        )

    def require_finite_answers(self, answers: Float[Tensor, "B *_answer"]) -> None:
        """Raises if a model's output for these networks is NaN or infinite, naming the first such network."""
        is_finite = answers.isfinite().flatten(1).all(1) if answers.ndim > 1 else answers.isfinite()
        if bool(is_finite.all()):
            return
        network = int((~is_finite).nonzero()[0])
        raise UserError(
            f"The model's output for network {network} is not finite: its entries, up to "
            f"{self.tensor[network].abs().max().item():.3g} in size, are too large. Leave this network out."
        )

    def _require_one_channel(self, what: str) -> None:
        if self.num_channels != 1:
            raise UserError(
                f"{what} needs features of one channel, but these have {self.num_channels}. "
                "Map them to one channel first, for instance with nf.layers.Pointwise(spec, channels, 1)."
            )

    def _operand(self, other: WeightSpaceFeatures | Tensor | float) -> Any:
        if not isinstance(other, WeightSpaceFeatures):
            return other
        self.require_spec(other.spec, "Arithmetic")
        return other.tensor


def cat(batches: Sequence[WeightSpaceFeatures]) -> WeightSpaceFeatures:
    """Joins batches of networks of one spec into one batch, like `torch.cat`; see `WeightSpaceFeatures.concatenate`."""
    return WeightSpaceFeatures.concatenate(batches)


def stack(parts: Sequence[WeightSpaceFeatures]) -> WeightSpaceFeatures:
    """Joins features of the same networks as channels: weights, gradients, momenta; see `WeightSpaceFeatures.stack`."""
    return WeightSpaceFeatures.stack(parts)


# A `DataLoader` collates a list of features into one batch.
torch.utils.data._utils.collate.default_collate_fn_map[WeightSpaceFeatures] = (  # pyright: ignore
    lambda batch, *, collate_fn_map=None: cat(batch)
)


def pack(spec: NetworkSpec, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Float[Tensor, "B N C"]:
    """Joins per-layer tensors into the packed tensor; the inverse of the views."""
    parts = {"weight": weights, "bias": biases}
    return join_groups(spec, [parts[g.kind][g.layer - 1] for g in spec.groups])


def join_groups(spec: NetworkSpec, values: Sequence[Float[Tensor, "B *_shape C"]]) -> Float[Tensor, "B N C"]:
    """Joins one tensor per group of the spec into the packed tensor; the inverse of `WeightSpaceFeatures.group`."""
    return torch.cat([v.flatten(1, -2) if v.ndim > 2 else v for v in values], dim=1)
