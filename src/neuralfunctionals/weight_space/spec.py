"""The shapes of an input network: `NetworkSpec`, its layers and its groups of entries. No tensors here."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor, nn

Symmetry = Literal["NP", "HNP"]
"""`"NP"`: all neurons permute; `"HNP"`: the hidden ones do, inputs and outputs stay."""


@dataclass(frozen=True)
class LayerSpec:
    """One layer of an input network: a dense layer, or a convolution if it has a kernel.

    The name is where the layer lives in its module (`name.weight`, `name.bias`); two layers of equal shape
    are equal whatever their names.
    """

    out_neurons: int
    in_neurons: int
    kernel: tuple[int, ...] = ()
    has_bias: bool = True
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kernel", tuple(self.kernel))
        for size in (self.out_neurons, self.in_neurons, *self.kernel):
            if not isinstance(size, int) or size < 1:
                raise ValueError(
                    f"A layer needs sizes of at least 1, but got {self.out_neurons} outgoing neurons, "
                    f"{self.in_neurons} incoming neurons and kernel {self.kernel}. Give positive integers."
                )

    @property
    def weight_shape(self) -> tuple[int, ...]:
        return (self.out_neurons, self.in_neurons, *self.kernel)

    @property
    def kernel_size(self) -> int:
        """Number of kernel positions; 1 for a dense layer."""
        return math.prod(self.kernel)

    def key(self, kind: Literal["weight", "bias"]) -> str:
        """Key of this layer's weight or bias in a `state_dict`."""
        return f"{self.name}.{kind}" if self.name else kind

    def __str__(self) -> str:
        kernel = f" ({'x'.join(map(str, self.kernel))})" if self.kernel else ""
        return f"{self.in_neurons}->{self.out_neurons}{kernel}" + ("" if self.has_bias else " without bias")


@dataclass(frozen=True)
class Group:
    """The entries of one weight array or one bias vector, and where they stand in the packed tensor.

    `axes` says which neurons each axis of `shape` counts: neurons of layer 0 are the input, those of layer
    `L` the output. Weights of layer `i` have axes `(i, i - 1)`, biases `(i,)`; kernel axes follow in `shape`.
    """

    layer: int
    kind: Literal["weight", "bias"]
    axes: tuple[int, ...]
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def stop(self) -> int:
        return self.start + self.size

    @property
    def kernel_size(self) -> int:
        return math.prod(self.shape[len(self.axes) :])


@dataclass(frozen=True)
class NetworkSpec:
    """The shapes of an input network with `L` layers, holding no tensors.

    Example:
        >>> spec = NetworkSpec.mlp([2, 32, 32, 1])
        >>> spec.num_layers, spec.num_entries, spec.widths
        (3, 1185, (2, 32, 32, 1))
        >>> NetworkSpec.from_json(spec.to_json()) == spec
        True
    """

    layers: tuple[LayerSpec, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        if not self.layers:
            raise ValueError("A network needs at least one layer, but got none. Give the layers from input to output.")
        for i, (before, after) in enumerate(zip(self.layers, self.layers[1:], strict=False)):
            if before.out_neurons != after.in_neurons:
                raise ValueError(
                    f"Layer {i + 1} has {before.out_neurons} outgoing neurons, but layer {i + 2} expects "
                    f"{after.in_neurons} incoming ones. Neighbouring layers must fit; a convolution that is "
                    "flattened over its positions does not: pool over all positions before the dense layers."
                )
        # Computed now: torch.compile cannot enter the lock of a cached property.
        _ = self.widths, self.groups

    # Making specs.

    @classmethod
    def mlp(cls, widths: Sequence[int], *, bias: bool = True) -> NetworkSpec:
        """A multi-layer perceptron with these numbers of neurons, input and output included."""
        if len(widths) < 2:
            raise ValueError(f"An MLP needs an input and an output width, but got {list(widths)}. Try [2, 32, 32, 1].")
        pairs = itertools.pairwise(widths)
        return cls(tuple(LayerSpec(o, i, (), bias, f"layers.{n}") for n, (i, o) in enumerate(pairs)))

    @classmethod
    def cnn(
        cls,
        channels: Sequence[int],
        kernel: Sequence[int] | Sequence[Sequence[int]],
        dense: Sequence[int] = (),
        *,
        bias: bool = True,
    ) -> NetworkSpec:
        """Convolutions, global pooling, then dense layers.

        Args:
            channels: Image channels, then the channels after each convolution.
            kernel: Kernel size along each dimension, such as `(3, 3)`; or one such tuple for each convolution.
            dense: Widths of the dense layers after the pooling.
            bias: Whether the layers have biases.

        Example:
            >>> print(NetworkSpec.cnn([1, 16, 16, 16], (3, 3), dense=[10]))
            1->16 (3x3), 16->16 (3x3), 16->16 (3x3), 16->10
        """
        num_convolutions = len(channels) - 1
        one_for_all = all(isinstance(size, int) for size in kernel)
        kernels: list[Any] = [tuple(kernel)] * num_convolutions if one_for_all else [tuple(k) for k in kernel]  # pyright: ignore[reportArgumentType]
        if num_convolutions < 1 or len(kernels) != num_convolutions:
            raise ValueError(
                f"{max(num_convolutions, 0)} convolutions follow from channels {list(channels)}, but there are "
                f"{len(kernels)} kernels. Give one kernel for all, such as (3, 3), or one for each convolution."
            )
        widths = [*channels, *dense]
        kernels += [()] * len(dense)
        pairs = zip(widths, widths[1:], kernels, strict=False)
        return cls(tuple(LayerSpec(o, i, k, bias, f"layers.{n}") for n, (i, o, k) in enumerate(pairs)))

    @classmethod
    def from_module(cls, module: nn.Module) -> NetworkSpec:
        """Reads the layers off an ordinary module by following its `forward`; see `convert.spec_from_module`."""
        from neuralfunctionals.weight_space.convert import spec_from_module

        return spec_from_module(module)

    @classmethod
    def from_state_dict(cls, state_dict: Mapping[str, Tensor], layers: Sequence[str] | None = None) -> NetworkSpec:
        """Reads the layers off a `state_dict`; see `convert.spec_from_state_dict`."""
        from neuralfunctionals.weight_space.convert import spec_from_state_dict

        return spec_from_state_dict(state_dict, layers)

    def without_kernels(self) -> NetworkSpec:
        """The same neurons joined by single weights: what remains after `layers.Project`."""
        return NetworkSpec(tuple(LayerSpec(x.out_neurons, x.in_neurons, (), x.has_bias, x.name) for x in self.layers))

    # Sizes.

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def has_kernels(self) -> bool:
        return any(layer.kernel for layer in self.layers)

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Neurons of layers `0 .. L`: input, hidden, output."""
        return (self.layers[0].in_neurons, *(layer.out_neurons for layer in self.layers))

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The weights and biases of each layer in packed order; a missing bias has no group."""
        groups: list[Group] = []
        start = 0
        for i, layer in enumerate(self.layers, start=1):
            groups.append(Group(i, "weight", (i, i - 1), layer.weight_shape, start))
            start = groups[-1].stop
            if layer.has_bias:
                groups.append(Group(i, "bias", (i,), (layer.out_neurons,), start))
                start = groups[-1].stop
        return tuple(groups)

    @property
    def num_entries(self) -> int:
        """How many weights and biases the network has: the length of the packed axis."""
        return self.groups[-1].stop

    def fixed_axes(self, symmetry: Symmetry) -> frozenset[int]:
        """Layers of neurons that the symmetry leaves in place: none for NP, input and output for HNP."""
        if symmetry not in ("NP", "HNP"):
            raise ValueError(f"Symmetry is 'NP' (all neurons permute) or 'HNP' (hidden neurons), not {symmetry!r}.")
        return frozenset() if symmetry == "NP" else frozenset((0, self.num_layers))

    # JSON.

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and strings, for JSON."""
        return {
            "layers": [
                {
                    "out_neurons": layer.out_neurons,
                    "in_neurons": layer.in_neurons,
                    "kernel": list(layer.kernel),
                    "has_bias": layer.has_bias,
                    "name": layer.name,
                }
                for layer in self.layers
            ]
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> NetworkSpec:
        """The inverse of `to_dict`."""
        try:
            return cls(tuple(LayerSpec(**{**layer, "kernel": tuple(layer["kernel"])}) for layer in data["layers"]))
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"Expected a network spec such as {NetworkSpec.mlp([2, 1]).to_dict()}, but got {data!r}."
            ) from error

    def to_json(self) -> str:
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> NetworkSpec:
        """The inverse of `to_json`."""
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"A network spec is stored as JSON, but this is not JSON: {text[:80]!r}.") from error
        return cls.from_dict(data)

    def __str__(self) -> str:
        return ", ".join(map(str, self.layers))
