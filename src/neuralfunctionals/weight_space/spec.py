"""Description of an input network: `NetworkSpec`, its axes of neurons and its groups of entries. No tensors here."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from neuralfunctionals.errors import UserError, require_choice
from neuralfunctionals.weight_space.axes import DEFAULT_OMEGA, Activation, Axis, Group, LayerSpec, Symmetry

if TYPE_CHECKING:
    from torch import Tensor, nn

    from neuralfunctionals.weight_space.symmetry import NetworkSymmetry

CONVENTIONS = ("paper", "dws")
"""SIREN conventions: the order of the coordinates and the range of the outputs; see `nf.inr.convert_convention`."""


@dataclass(frozen=True)
class NetworkSpec:
    """The axes of neurons of an input network and its groups of entries, holding no tensors.

    There are two kinds. A *chain* is a sequence of dense layers and convolutions, described by `layers`; `mlp`, `siren`
    and `cnn` create chains. Any other network only has axes and groups; `from_module` and `from_axes` create these.

    Two specs are equal if their axes and groups are, regardless of names and of what is known about the function
    (activations, SIREN convention, stride, ...). `matches` also compares the function; unknown parts match anything.

    Example:
        >>> spec = NetworkSpec.mlp([2, 32, 32, 1])
        >>> spec.num_layers, spec.num_entries, spec.widths
        (3, 1185, (2, 32, 32, 1))
        >>> NetworkSpec.from_json(spec.to_json()) == spec
        True
    """

    layers: tuple[LayerSpec, ...] = field(default=(), compare=False)
    axes: tuple[Axis, ...] = ()
    groups: tuple[Group, ...] = ()
    """In packed order; a missing bias has no group."""
    convention: str | None = field(default=None, compare=False)
    """The SIREN convention, `"paper"` or `"dws"`; None if unknown, or if it is not a sine network."""
    pooling: str | None = field(default=None, compare=False)
    """How a chain with convolutions pools over all positions before its dense layers: `"mean"` or `"max"`."""
    aliases: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    """Additional keys of tied tensors in a `state_dict`, each with the key of its group."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """Dimensions that `from_module` could not recognise as neurons, and why."""

    def __post_init__(self) -> None:
        if self.layers or not self.axes:
            object.__setattr__(self, "layers", tuple(self.layers))
            _require_chain_fits(self.layers)
            object.__setattr__(self, "axes", _chain_axes(self.layers))
            object.__setattr__(self, "groups", _chain_groups(self.layers))
        else:
            _require_groups_fit(self.axes, self.groups)
        if self.convention is not None:
            require_choice("the convention to be", self.convention, CONVENTIONS)
        # Plain attributes: torch.compile does not support the lock of a cached property.
        object.__setattr__(self, "_widths", tuple(axis.size for axis in self.axes))

    # Constructors.

    @classmethod
    def mlp(
        cls, widths: Sequence[int], activation: Activation | str | None = None, *, bias: bool = True
    ) -> NetworkSpec:
        """A multi-layer perceptron with these numbers of neurons, input and output included.

        Args:
            widths: Neurons from input to output.
            activation: Activation of the hidden neurons, such as `"relu"` or `"tanh"`. Defaults to None, unknown.
            bias: Whether the layers have biases.
        """
        if len(widths) < 2:
            raise UserError(f"An MLP needs an input and an output width, but got {list(widths)}. Try [2, 32, 32, 1].")
        return cls(_chain_layers(widths, [()] * (len(widths) - 1), bias, activation))

    @classmethod
    def siren(cls, widths: Sequence[int], omega: float = DEFAULT_OMEGA, convention: str = "paper") -> NetworkSpec:
        """A sine network, $\\sin(\\omega (W x + b))$ with a linear last layer.

        Args:
            widths: Neurons from input to output.
            omega: Frequency of the sines.
            convention: The SIREN convention; see `nf.inr.convert_convention`.
        """
        return replace(cls.mlp(widths, Activation("sine", omega)), convention=convention)

    @classmethod
    def cnn(
        cls,
        channels: Sequence[int],
        kernel: Sequence[int] | Sequence[Sequence[int]],
        dense: Sequence[int] = (),
        *,
        bias: bool = True,
        activation: Activation | str | None = None,
        stride: int | None = None,
        padding: int | None = None,
        pooling: str | None = None,
    ) -> NetworkSpec:
        """Convolutions, global pooling, then dense layers.

        Args:
            channels: Image channels, then the channels after each convolution.
            kernel: Kernel size along each dimension, such as `(3, 3)`; or one such tuple per convolution.
            dense: Widths of the dense layers after the pooling.
            bias: Whether the layers have biases.
            activation: Activation of the hidden neurons. Defaults to None, unknown.
            stride: Stride of all convolutions. Defaults to None, unknown.
            padding: Padding of all convolutions. Defaults to None, unknown.
            pooling: Pooling over all positions before the dense layers: `"mean"` or `"max"`. Defaults to None, unknown.

        Example:
            >>> print(NetworkSpec.cnn([1, 16, 16, 16], (3, 3), dense=[10]))
            1->16 (3x3), 16->16 (3x3), 16->16 (3x3), 16->10
        """
        num_convolutions = len(channels) - 1
        one_for_all = all(isinstance(size, int) for size in kernel)
        kernels: list[Any] = [tuple(kernel)] * num_convolutions if one_for_all else [tuple(k) for k in kernel]  # pyright: ignore[reportArgumentType]
        if num_convolutions < 1 or len(kernels) != num_convolutions:
            raise UserError(
                f"{max(num_convolutions, 0)} convolutions follow from channels {list(channels)}, but there are "
                f"{len(kernels)} kernels. Give one kernel for all, such as (3, 3), or one per convolution."
            )
        if pooling not in (None, "mean", "max"):
            raise UserError(f"Expected pooling 'mean' or 'max', or None if unknown, but got {pooling!r}.")
        kernels += [()] * len(dense)
        layers = _chain_layers([*channels, *dense], kernels, bias, activation, stride, padding)
        return cls(layers, pooling=pooling)

    @classmethod
    def from_module(
        cls,
        module: nn.Module,
        example_inputs: Tensor | Sequence[Any] | Mapping[str, Any] | None = None,
        *,
        verify: bool = True,
    ) -> NetworkSpec:
        """Finds the axes of neurons of any module by following its `forward`.

        A plain chain of dense layers and convolutions needs no inputs. Any other module is traced with
        `torch.export` on the example inputs, and the axes found are confirmed by running it.

        Args:
            module: The network.
            example_inputs: Inputs of `module`: a tensor, a tuple, or a dict of keyword arguments.
            verify: Whether to run the module with permuted weights to confirm every axis. Needs example inputs.

        Raises:
            ValueError: If the module cannot be read. The message names the module, the operation and what to do.
        """
        from neuralfunctionals.weight_space.convert import spec_from_module

        return spec_from_module(module, example_inputs, verify=verify)

    @classmethod
    def from_axes(
        cls,
        tensors: Mapping[str, Sequence[str | None]],
        sizes: Mapping[str, int] | Mapping[str, Tensor] | nn.Module,
        *,
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
    ) -> NetworkSpec:
        """A spec from the names of the axes that each tensor's dimensions run over.

        Args:
            tensors: The axis of each dimension, by key of the `state_dict`; None for positions that do not permute.
            sizes: The size of every axis, or a `state_dict` or module to read them from. It must be one of the latter
                two if a tensor has dimensions without an axis.
            inputs: Axes that belong to the network's inputs.
            outputs: Axes that belong to its outputs.

        Example:
            >>> lora = {"l.A": ("r", "in"), "l.B": ("out", "r")}
            >>> spec = NetworkSpec.from_axes(lora, {"in": 6, "r": 2, "out": 4}, inputs=["in"], outputs=["out"])
            >>> [(axis.name, axis.size, axis.role) for axis in spec.axes]
            [('r', 2, 'hidden'), ('in', 6, 'input'), ('out', 4, 'output')]
        """
        from neuralfunctionals.weight_space.convert import spec_from_axes

        return spec_from_axes(tensors, sizes, inputs, outputs)

    @classmethod
    def from_state_dict(cls, state_dict: Mapping[str, Tensor], layers: Sequence[str] | None = None) -> NetworkSpec:
        """Infers the layers from a `state_dict`; see `convert.spec_from_state_dict`."""
        from neuralfunctionals.weight_space.convert import spec_from_state_dict

        return spec_from_state_dict(state_dict, layers)

    def without_kernels(self) -> NetworkSpec:
        """The same neurons with single weights instead of kernels: the spec of the output of `layers.Project`."""
        if self.is_chain:
            return NetworkSpec(
                tuple(LayerSpec(x.out_neurons, x.in_neurons, (), x.has_bias, x.name) for x in self.layers)
            )
        groups, start = [], 0
        for g in self.groups:
            shape = g.shape[: len(g.axes)] or (1,)  # a group without neurons keeps one entry
            groups.append(Group(g.layer, g.kind, g.axes, shape, start, g.key))
            start = groups[-1].stop
        return NetworkSpec(axes=self.axes, groups=tuple(groups))

    # Sizes.

    @property
    def is_chain(self) -> bool:
        """Whether the network is a sequence of dense layers and convolutions, one after the other."""
        return bool(self.layers)

    @property
    def num_layers(self) -> int:
        """Number of layers of a chain."""
        return len(self.layers)

    @property
    def has_kernels(self) -> bool:
        return any(len(group.shape) > len(group.axes) for group in self.groups)

    @property
    def widths(self) -> tuple[int, ...]:
        """Neurons of each axis; in a chain, those of layers `0 .. L`: input, hidden, output."""
        return self.__dict__["_widths"]

    @property
    def num_entries(self) -> int:
        """Number of weights and biases of the network: the length of the packed axis."""
        return self.groups[-1].stop

    def fixed_axes(self, symmetry: Symmetry) -> frozenset[int]:
        """Axes that do not permute: none for NP, those of input and output for HNP."""
        if symmetry not in ("NP", "HNP"):
            raise UserError(f"Symmetry is 'NP' (all neurons permute) or 'HNP' (hidden neurons), not {symmetry!r}.")
        return frozenset() if symmetry == "NP" else frozenset(n for n, a in enumerate(self.axes) if a.role != "hidden")

    def parent_places(self, axes: Sequence[int]) -> tuple[int | None, ...]:
        """For the axes of a group, the place of the axis that each one is nested in; None if it is not nested.

        If the outer axis occurs several times, as in recurrent weights, it is the nearest one before that is still
        free; else the nearest one after.
        """
        result: list[int | None] = []
        for place, axis in enumerate(axes):
            candidates = [n for n, other in enumerate(axes) if other == self.axes[axis].within]
            taken = {parent for parent, other in zip(result, axes, strict=False) if other == axis}
            free = [n for n in candidates if n not in taken] or candidates
            result.append(min(free, key=lambda n: (n > place, abs(n - place)), default=None))
        return tuple(result)

    @property
    def symmetry(self) -> NetworkSymmetry:
        """The transformations of weights that preserve the function; see `NetworkSymmetry`."""
        from neuralfunctionals.weight_space.symmetry import NetworkSymmetry

        return NetworkSymmetry(self)

    def require_chain(self, who: str) -> None:
        """Raises unless this is a chain of layers."""
        if not self.is_chain:
            raise UserError(
                f"{who} takes chains of dense layers and convolutions only, but got the network {self}. "
                "NFT, NFN, NeuronGraphNet and StatNN take any network."
            )

    # The function.

    @property
    def activation(self) -> Activation | None:
        """The activation of the hidden neurons, if it is known and the same for all."""
        found = {axis.activation for axis in self.axes if axis.role == "hidden"}
        return found.pop() if len(found) == 1 else None

    @property
    def omega(self) -> float | None:
        """The frequency of a sine network; None for other networks, or if it is unknown."""
        return self.activation.omega if self.activation is not None else None

    def with_activation(self, activation: Activation | str | None, *, convention: str | None = None) -> NetworkSpec:
        """The same chain with another hidden activation and, for sine networks, another convention."""
        self.require_chain("with_activation")
        activation = Activation.of(activation)
        last = None if activation is None else Activation("identity")
        layers = [replace(layer, activation=activation) for layer in self.layers[:-1]]
        return replace(
            self,
            layers=(*layers, replace(self.layers[-1], activation=last)),
            convention=convention if activation is not None and activation.omega is not None else None,
        )

    def matches(self, other: NetworkSpec) -> bool:
        """Whether both are equal and their functions agree as far as both record them."""
        return self is other or (self == other and self.find_conflict(other) is None)

    def find_conflict(self, other: NetworkSpec) -> str | None:
        """A description of how the functions of two equal specs differ; None if they agree."""
        for n, (a, b) in enumerate(zip(self.axes, other.axes, strict=True)):
            if None not in (a.activation, b.activation) and a.activation != b.activation:
                return f"neurons of layer {n} with activation {a.activation}, not {b.activation}"
        if None not in (self.convention, other.convention) and self.convention != other.convention:
            return f"the SIREN convention '{self.convention}', not '{other.convention}'"
        if None not in (self.pooling, other.pooling) and self.pooling != other.pooling:
            return f"{self.pooling} pooling, not {other.pooling} pooling"
        for n, (a, b) in enumerate(zip(self.layers, other.layers, strict=False), start=1):
            for name in ("stride", "padding"):
                mine, others = getattr(a, name), getattr(b, name)
                if None not in (mine, others) and mine != others:
                    return f"{name} {mine} in layer {n}, not {others}"
        return None

    # JSON.

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and strings, for JSON."""
        known = {"convention": self.convention, "pooling": self.pooling}
        known = {name: value for name, value in known.items() if value is not None}
        if self.is_chain:
            return {"layers": [layer.to_dict() for layer in self.layers], **known}
        axes = [
            {**dataclasses.asdict(a), "activation": a.activation and a.activation.to_json_value()} for a in self.axes
        ]
        data = {"axes": axes, "groups": [dataclasses.asdict(g) for g in self.groups], **known}
        return {**data, **({"aliases": [list(pair) for pair in self.aliases]} if self.aliases else {})}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> NetworkSpec:
        """The inverse of `to_dict`."""
        try:
            known = {name: data[name] for name in ("convention", "pooling") if name in data}
            if "axes" in data:
                axes = tuple(Axis(**{**a, "activation": Activation.of(a["activation"])}) for a in data["axes"])
                aliases = tuple((a, b) for a, b in data.get("aliases", ()))
                return cls(axes=axes, groups=tuple(map(_read_group, data["groups"])), aliases=aliases, **known)
            return cls(tuple(map(_read_layer, data["layers"])), **known)
        except (KeyError, TypeError) as error:
            raise UserError(
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
            raise UserError(f"A network spec is stored as JSON, but this is not JSON: {text[:80]!r}.") from error
        return cls.from_dict(data)

    def __str__(self) -> str:
        if self.is_chain:
            return ", ".join(map(str, self.layers))
        hidden = [str(axis.size) for axis in self.axes if axis.role == "hidden"]
        return (
            f"{len(self.groups)} groups of {self.num_entries} entries with hidden axes of {', '.join(hidden)} neurons"
        )


def _read_layer(data: Mapping[str, Any]) -> LayerSpec:
    tuples = {name: tuple(data[name]) for name in ("kernel", "stride", "padding") if data.get(name) is not None}
    return LayerSpec(**{**data, **tuples, "activation": Activation.of(data.get("activation"))})


def _chain_layers(
    widths: Sequence[int],
    kernels: Sequence[tuple[int, ...]],
    bias: bool,
    activation: Activation | str | None,
    stride: int | None = None,
    padding: int | None = None,
) -> tuple[LayerSpec, ...]:
    activations = [Activation.of(activation)] * (len(kernels) - 1)
    last = None if activation is None else Activation("identity")
    return tuple(
        LayerSpec(
            o,
            i,
            kernel,
            bias,
            f"layers.{n}",
            act,
            None if stride is None or not kernel else (stride,) * len(kernel),
            None if padding is None or not kernel else (padding,) * len(kernel),
        )
        for n, ((i, o), kernel, act) in enumerate(
            zip(itertools.pairwise(widths), kernels, [*activations, last], strict=True)
        )
    )


def _require_chain_fits(layers: Sequence[LayerSpec]) -> None:
    if not layers:
        raise UserError("A network needs at least one layer, but got none. Give the layers from input to output.")
    for i, (before, after) in enumerate(itertools.pairwise(layers)):
        if before.out_neurons != after.in_neurons:
            raise UserError(
                f"Layer {i + 1} has {before.out_neurons} outgoing neurons, but layer {i + 2} expects "
                f"{after.in_neurons} incoming ones. Neighbouring layers must fit. Chains do not support flattening the "
                "positions of a convolution: pool over all positions before the dense layers."
            )


def _chain_axes(layers: Sequence[LayerSpec]) -> tuple[Axis, ...]:
    last = len(layers)
    axes = [Axis(layers[0].in_neurons, "input", "input")]
    for n, layer in enumerate(layers, start=1):
        role, name = ("output", "output") if n == last else ("hidden", f"hidden {n}")
        axes.append(Axis(layer.out_neurons, role, name, layer.activation))
    return tuple(axes)


def _chain_groups(layers: Sequence[LayerSpec]) -> tuple[Group, ...]:
    groups: list[Group] = []
    start = 0
    for i, layer in enumerate(layers, start=1):
        groups.append(Group(i, "weight", (i, i - 1), layer.weight_shape, start, layer.key("weight")))
        start = groups[-1].stop
        if layer.has_bias:
            groups.append(Group(i, "bias", (i,), (layer.out_neurons,), start, layer.key("bias")))
            start = groups[-1].stop
    return tuple(groups)


def _require_groups_fit(axes: Sequence[Axis], groups: Sequence[Group]) -> None:
    """Groups must be contiguous, have the sizes of their axes, and have the parents of nested axes."""
    start = 0
    for group in groups:
        if group.start != start or any(not 0 <= a < len(axes) for a in group.axes):
            raise UserError(f"Expected packed groups on axes 0 to {len(axes) - 1}, but got {group}.")
        sizes = tuple(axes[a].size for a in group.axes)
        if group.shape[: len(sizes)] != sizes or (group.strides is not None and len(group.strides) != len(group.shape)):
            raise UserError(f"Expected '{group.key}' to have dimensions {sizes} for its axes, but got {group.shape}.")
        parents = {axes[a].within for a in group.axes} - {None}
        if not parents <= set(group.axes):
            raise UserError(f"Expected '{group.key}' to have the axes that its axes are nested in, but got {group}.")
        start = group.stop
    if not groups:
        raise UserError("A network needs at least one group of entries, but got none.")


def _read_group(data: Mapping[str, Any]) -> Group:
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, (list, tuple)) else v for name, v in data.items()}
    return Group(**values)
