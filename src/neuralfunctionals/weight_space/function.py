"""The function that input networks compute: `functional_call`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from neuralfunctionals.errors import UserError
from neuralfunctionals.weight_space.axes import DEFAULT_OMEGA, Activation
from neuralfunctionals.weight_space.features import WeightSpaceFeatures
from neuralfunctionals.weight_space.spec import NetworkSpec
from neuralfunctionals.weight_space.state import unpack_state_dict

# Axes: B input networks, P points or images, D input dimensions, O outputs.

_OF_TORCH = "relu leaky_relu gelu silu softsign tanhshrink hardtanh elu selu softplus mish hardswish relu6".split()
_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    **{name: getattr(torch, name) for name in ("tanh", "sigmoid", "erf")},
    **{name: getattr(F, name) for name in _OF_TORCH},
}
_CONVOLUTIONS: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def apply_activation(activation: Activation, x: Tensor) -> Tensor:
    """Applies an activation."""
    return torch.sin(activation.omega * x) if activation.omega is not None else _FUNCTIONS[activation.name](x)


def functional_call(
    features: WeightSpaceFeatures, inputs: Tensor | tuple[Any, ...], *, module: nn.Module | None = None
) -> Any:
    """Runs every network on shared inputs, or on separate inputs for each; differentiable in weights and inputs.

    Chains whose spec records their function (`NetworkSpec.siren`, or `mlp` and `cnn` with an activation and, for
    convolutions, stride, padding and pooling) run directly. Any other network needs `module`.

    Outputs of sine networks of the convention `"dws"` include the 0.5 that it adds.

    Args:
        features: The networks, one channel.
        inputs: For an MLP, points of shape `(P, D)`, or `(B, P, D)` for separate points; for a CNN, images
            `(P, channels, *size)` or `(B, P, channels, *size)`. With a module: its arguments, shared by all networks.
        module: Runs with the weights of each network in turn. Defaults to the function that the spec records.

    Returns:
        The outputs, with a first dimension over the networks.

    Example:
        >>> spec = NetworkSpec.mlp([2, 8, 1], activation="tanh")
        >>> networks = WeightSpaceFeatures.from_vectors(spec, torch.randn(3, spec.num_entries))
        >>> functional_call(networks, torch.randn(5, 2)).shape
        torch.Size([3, 5, 1])
    """
    if module is not None:
        return _call_module(features, inputs, module)
    spec = features.spec
    require_function(spec)
    given: Tensor = inputs[0] if isinstance(inputs, tuple) else inputs
    dimensions = len(spec.layers[0].kernel)
    expected = f"({'images, channels, *size' if dimensions else 'points, ' + str(spec.widths[0])})"
    if given.ndim not in (dimensions + 2, dimensions + 3) or given.shape[-1 - dimensions] != spec.widths[0]:
        raise UserError(
            f"Expected inputs of shape {expected} for all networks, or with a first dimension over the "
            f"{len(features)} networks, but got {tuple(given.shape)}."
        )
    if given.ndim == dimensions + 3 and len(given) != len(features):
        raise UserError(f"Expected inputs for each of {len(features)} networks, but got {len(given)}.")
    x = given if given.ndim == dimensions + 3 else given.expand(len(features), *given.shape)
    x = x.to(features.tensor.dtype)
    for n, layer in enumerate(spec.layers):
        weight, bias = features.weights[n][..., 0], features.biases[n][..., 0] if layer.has_bias else None
        if layer.kernel:
            x = _convolve(x, weight, bias, layer.stride, layer.padding)
        else:
            x = _pool(x, spec.pooling) if n and spec.layers[n - 1].kernel else x
            x = torch.einsum("bpi, boi -> bpo", x, weight)
            x = x if bias is None else x + bias[:, None]
        assert layer.activation is not None
        x = apply_activation(layer.activation, x)
    return x + 0.5 if spec.convention == "dws" else x


def require_function(spec: NetworkSpec) -> None:
    """Raises unless the spec records the function of its networks."""
    spec.require_chain("functional_call without a module")
    missing = []
    for n, layer in enumerate(spec.layers, start=1):
        missing += [f"activation of layer {n}"] if layer.activation is None else []
        missing += [f"{x} of layer {n}" for x in ("stride", "padding") if layer.kernel and getattr(layer, x) is None]
    if spec.layers[0].kernel and not spec.layers[-1].kernel and spec.pooling is None:
        missing.append("pooling before the dense layers")
    if missing:
        raise UserError(
            f"The spec {spec} does not record what its networks compute: {', '.join(missing)}. Make it with "
            "NetworkSpec.siren, mlp(widths, activation) or cnn(..., activation=, stride=, padding=, pooling=), or pass "
            "the module: functional_call(features, inputs, module=module)."
        )


def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any) -> Tensor:
    """One convolution per network, computed as the groups of one grouped convolution."""
    networks, images = x.shape[:2]
    convolve = _CONVOLUTIONS[weight.ndim - 3]
    joined = rearrange(x, "b p c ... -> p (b c) ...")
    y = convolve(
        joined,
        weight.flatten(0, 1),
        None if bias is None else bias.flatten(),
        stride=stride,
        padding=padding,
        groups=networks,
    )
    return rearrange(y, "p (b o) ... -> b p o ...", b=networks, p=images)


def _pool(x: Tensor, pooling: str | None) -> Tensor:
    positions = x.flatten(3)
    return positions.mean(-1) if pooling == "mean" else positions.amax(-1)


def _call_module(features: WeightSpaceFeatures, inputs: Any, module: nn.Module) -> Any:
    arguments = inputs if isinstance(inputs, tuple) else (inputs,)
    buffers = {name for name, _ in module.named_buffers()}  # running statistics have no gradient
    outputs = []
    for vector in features.to_vectors():
        state = unpack_state_dict(features.spec, vector)
        state = {key: value.detach() if key in buffers else value for key, value in state.items()}
        outputs.append(torch.func.functional_call(module, state, arguments))
    if all(isinstance(y, Tensor) for y in outputs):
        return torch.stack(outputs)
    if all(isinstance(y, tuple) for y in outputs):
        return tuple(torch.stack(parts) for parts in zip(*outputs, strict=True))
    return outputs


def evaluate_layers(features: WeightSpaceFeatures, points: Float[Tensor, "*B P D"]) -> list[Float[Tensor, "B P _n"]]:
    """The pre-activations of every layer of sine networks at each point, and the outputs last.

    Args:
        features: Sine networks, one channel; of frequency 30 if their spec does not record it.
        points: Inputs in the networks' own order of coordinates, shared by all networks or separate for each.

    Returns:
        Arguments of the sines, including the frequency.
    """
    omega = DEFAULT_OMEGA if features.spec.omega is None else features.spec.omega
    dtype = features.tensor.dtype
    layers: list[Tensor] = []
    # Arguments of sines of frequency 30 need full precision, also inside a model that uses autocast.
    with torch.autocast(features.tensor.device.type, enabled=False):
        features = features.to(torch.float32) if dtype in (torch.bfloat16, torch.float16) else features
        x = points.to(features.tensor.dtype).expand(len(features), -1, -1)
        for weight, bias in zip(features.weights, features.biases, strict=True):
            x = torch.sin(layers[-1]) if layers else x
            x = torch.baddbmm(rearrange(bias, "B O 1 -> B 1 O"), x, rearrange(weight, "B O I 1 -> B I O"))
            layers.append(x if len(layers) == features.spec.num_layers - 1 else omega * x)
    return layers


def output_slopes(
    features: WeightSpaceFeatures, arguments: Sequence[Float[Tensor, "B P _n"]]
) -> list[Float[Tensor, "B O P _n"]]:
    """The derivatives of the outputs of sine networks, backwards layer by layer.

    Args:
        features: As for `evaluate_layers`.
        arguments: The arguments of the sines at each point, as `evaluate_layers` returns them.

    Returns:
        Derivatives with respect to the inputs, followed by those with respect to the arguments of each layer's sines.
    """
    omega = DEFAULT_OMEGA if features.spec.omega is None else features.spec.omega
    with torch.autocast(features.tensor.device.type, enabled=False):
        features = features.to(arguments[0].dtype) if arguments else features
        *weights, last = (weight[..., 0] for weight in features.weights)
        slopes = [last[:, :, None]]  # B O 1 n: with respect to the last activations, the same at every point
        for weight, argument in zip(reversed(weights), reversed(arguments), strict=True):
            slopes[-1] = slopes[-1] * argument.cos()[:, None]
            slopes.append(omega * slopes[-1] @ weight[:, None])
    return slopes[::-1]
