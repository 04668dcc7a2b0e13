"""The parts of a spec: axes of neurons, groups of entries, layers of a chain, activations. No tensors here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from neuralfunctionals.errors import UserError, require_choice

Symmetry = Literal["NP", "HNP"]
"""`"NP"`: all neurons permute; `"HNP"`: only hidden neurons permute, not inputs and outputs."""

Role = Literal["input", "hidden", "output"]
"""Kind of the neurons of an axis: inputs, hidden neurons or outputs. Only hidden ones permute in HNP."""

DEFAULT_OMEGA = 30.0
"""Frequency of sine networks if nothing else is given or recorded."""

_ODD = ("sine", "tanh", "identity", "softsign", "tanhshrink", "hardtanh", "erf")
_HOMOGENEOUS = ("relu", "leaky_relu", "identity")
_OTHERS = ("gelu", "gelu_tanh", "sigmoid", "silu", "elu", "selu", "softplus", "mish", "hardswish", "relu6")


@dataclass(frozen=True)
class Activation:
    """The function that a layer applies to each of its neurons.

    Args:
        name: `"sine"`, `"tanh"`, `"relu"`, `"gelu"`, ..., with torch's default parameters; `"identity"` for none.
        omega: Frequency of a sine, $\\sin(\\omega z)$; other activations have none.
    """

    name: str
    omega: float | None = None

    def __post_init__(self) -> None:
        require_choice("an activation (None if unknown),", self.name, sorted({*_ODD, *_HOMOGENEOUS, *_OTHERS}))
        if (self.name == "sine") != (self.omega is not None):
            raise UserError(f"Expected a frequency omega for 'sine' and for no other activation, but got {self}.")
        if self.omega is not None:
            object.__setattr__(self, "omega", float(self.omega))
            if not 0 < self.omega < math.inf:
                raise UserError(f"Expected omega, the frequency of the sines, to be positive, but got {self.omega:g}.")

    @property
    def is_odd(self) -> bool:
        """Whether $f(-z) = -f(z)$, so that the sign of a neuron is a symmetry."""
        return self.name in _ODD

    @property
    def is_homogeneous(self) -> bool:
        """Whether $f(\\lambda z) = \\lambda f(z)$ for $\\lambda > 0$, so that the scale of a neuron is a symmetry."""
        return self.name in _HOMOGENEOUS

    @classmethod
    def of(cls, value: Activation | str | Mapping[str, Any] | None) -> Activation | None:
        """An activation from its name or its JSON; None stays None."""
        if value is None or isinstance(value, Activation):
            return value
        return cls(value) if isinstance(value, str) else cls(**value)

    def to_json_value(self) -> dict[str, Any]:
        return {"name": self.name} if self.omega is None else {"name": self.name, "omega": self.omega}

    def __str__(self) -> str:
        return self.name if self.omega is None else f"{self.name} of frequency {self.omega:g}"


@dataclass(frozen=True)
class Axis:
    """A set of neurons that dimensions of weights and biases run over.

    Args:
        size: Number of neurons.
        role: `"hidden"` neurons may permute without changing the function; `"input"` and `"output"` ones move with the
            network's inputs and outputs.
        name: For messages; axes are compared without their names.
        activation: Activation of the neurons; None if unknown.
        within: Number of the axis that this one is nested in: its neurons permute separately for each neuron of that
            axis, as the neurons within an attention head do.
    """

    size: int
    role: Role = "hidden"
    name: str = field(default="", compare=False)
    activation: Activation | None = field(default=None, compare=False)
    within: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or self.size < 1:
            raise UserError(f"An axis needs a size of at least 1, but '{self.name}' got {self.size!r}.")
        if self.role not in ("input", "hidden", "output"):
            raise UserError(f"The role of an axis is 'input', 'hidden' or 'output', not {self.role!r}.")


@dataclass(frozen=True)
class Group:
    """Entries of one tensor of the `state_dict`, and their position in the packed tensor.

    `axes` numbers the axes of neurons that the first dimensions of `shape` run over; the dimensions after them are
    inner positions, such as those of a kernel, which never permute. In a chain, layer 0 is the input and layer `L` the
    output; weights of layer `i` have axes `(i, i - 1)`, and biases `(i,)`.

    A group is a whole tensor or a strided block of one: entry `i` of the group is entry
    `offset + sum(i * strides)` of the flattened tensor `key`.
    """

    layer: int
    """In a chain, the number of the layer, from 1; else that of the tensor in its `state_dict`, from 1."""
    kind: str
    """`"weight"` or `"bias"`; also `"scale"`, `"running mean"`, `"running variance"` of a norm."""
    axes: tuple[int, ...]
    shape: tuple[int, ...]
    start: int
    key: str = field(default="", compare=False)
    offset: int = 0
    strides: tuple[int, ...] | None = None
    """None if the group is the whole tensor, in its own shape."""
    tensor_shape: tuple[int, ...] | None = None
    """Shape of the tensor, if the group is a block of it."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def stop(self) -> int:
        return self.start + self.size

    @property
    def kernel_size(self) -> int:
        return math.prod(self.inner_shape)

    @property
    def inner_shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions that are not axes of neurons."""
        return self.shape[len(self.axes) :]

    @property
    def is_whole(self) -> bool:
        return self.strides is None

    def __str__(self) -> str:
        return f"{self.kind} of layer {self.layer}" if self.is_whole else f"{self.kind} '{self.key}'"


@dataclass(frozen=True)
class LayerSpec:
    """One layer of a chain: a dense layer, or a convolution if it has a kernel.

    The name is the layer's path in its module (`name.weight`, `name.bias`). Layers are compared by shape only, not
    by name or by what is known about their function (activation, stride and padding).
    """

    out_neurons: int
    in_neurons: int
    kernel: tuple[int, ...] = ()
    has_bias: bool = True
    name: str = field(default="", compare=False)
    activation: Activation | None = field(default=None, compare=False)
    """Applied to the layer's outputs; None if unknown."""
    stride: tuple[int, ...] | None = field(default=None, compare=False)
    """Of a convolution; None if unknown."""
    padding: tuple[int, ...] | None = field(default=None, compare=False)
    """Of a convolution; None if unknown."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kernel", tuple(self.kernel))
        object.__setattr__(self, "activation", Activation.of(self.activation))
        for size in (self.out_neurons, self.in_neurons, *self.kernel):
            if not isinstance(size, int) or size < 1:
                raise UserError(
                    f"A layer needs sizes of at least 1, but got {self.out_neurons} outgoing neurons, "
                    f"{self.in_neurons} incoming neurons and kernel {self.kernel}. Give positive integers."
                )
        for name in ("stride", "padding"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, tuple(value))
                if len(tuple(value)) != len(self.kernel):
                    raise UserError(f"Expected a {name} for each of the kernel's {self.kernel}, but got {value}.")

    @property
    def weight_shape(self) -> tuple[int, ...]:
        return (self.out_neurons, self.in_neurons, *self.kernel)

    @property
    def kernel_size(self) -> int:
        """Number of kernel positions; 1 for a dense layer."""
        return math.prod(self.kernel)

    def key(self, kind: str) -> str:
        """Key of this layer's weight or bias in a `state_dict`."""
        return f"{self.name}.{kind}" if self.name else kind

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; unknown parts of the function are left out."""
        known = {
            "activation": self.activation and self.activation.to_json_value(),
            "stride": self.stride and list(self.stride),
            "padding": self.padding and list(self.padding),
        }
        return {
            "out_neurons": self.out_neurons,
            "in_neurons": self.in_neurons,
            "kernel": list(self.kernel),
            "has_bias": self.has_bias,
            "name": self.name,
            **{name: value for name, value in known.items() if value is not None and value != ()},
        }

    def __str__(self) -> str:
        kernel = f" ({'x'.join(map(str, self.kernel))})" if self.kernel else ""
        return f"{self.in_neurons}->{self.out_neurons}{kernel}" + ("" if self.has_bias else " without bias")
