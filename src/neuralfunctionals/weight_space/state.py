"""The entries of a `state_dict` or module as one vector, in the order of `spec.groups`, and back."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neuralfunctionals.errors import UserError
from neuralfunctionals.weight_space.axes import Group
from neuralfunctionals.weight_space.spec import NetworkSpec


def pack_state_dict(spec: NetworkSpec, state_dict: Mapping[str, Tensor]) -> Float[Tensor, "N"]:
    """The entries as one vector, in the order of `spec.groups`."""
    return torch.cat([_read(group, state_dict, spec).flatten() for group in spec.groups])


def _read(group: Group, state_dict: Mapping[str, Tensor], spec: NetworkSpec) -> Tensor:
    if group.key not in state_dict:
        raise UserError(f"Expected the key '{group.key}' in the state_dict, but it has {sorted(state_dict)}.")
    tensor = state_dict[group.key]
    require_plain(group.key, tensor)
    shape = tensor_shape(group)
    if tuple(tensor.shape) != shape or not tensor.is_floating_point():
        raise UserError(
            f"Expected '{group.key}' to hold real numbers of shape {shape}, but got {tensor.dtype} of shape "
            f"{tuple(tensor.shape)}. All networks of a batch must have one spec: {spec}."
        )
    if group.strides is None:
        return tensor
    return tensor.reshape(-1).as_strided(group.shape, group.strides, group.offset + tensor.reshape(-1).storage_offset())


def require_plain(name: str, tensor: Tensor, start: str = "Expected") -> None:
    """Raises unless a tensor is an ordinary dense tensor with values."""
    if not isinstance(tensor, Tensor) or nn.parameter.is_lazy(tensor):
        kind = f"a {type(tensor).__name__}"
    elif tensor.is_nested or tensor.layout != torch.strided:
        kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
    elif tensor.is_quantized or tensor.is_meta:
        kind = "quantized" if tensor.is_quantized else "on the meta device, without values"
    else:
        return
    raise UserError(
        f"{start} '{name}' to be an ordinary tensor, but it is {kind}. Convert it first, for instance with "
        "to_dense() or dequantize()."
    )


def tensor_shape(group: Group) -> tuple[int, ...]:
    """Shape of the tensor that a group is part of."""
    return group.shape if group.tensor_shape is None else group.tensor_shape


def unpack_state_dict(spec: NetworkSpec, vector: Float[Tensor, "N"]) -> dict[str, Tensor]:
    """The inverse of `pack_state_dict`; the tensors are copies."""
    result: dict[str, Tensor] = {}
    for group in spec.groups:
        values = vector[group.start : group.stop].view(group.shape)
        if group.strides is None:
            if group.key in result:
                raise UserError(f"Expected layers of different names, but the network {spec} has '{group.key}' twice.")
            result[group.key] = values.clone()
            continue
        if group.key not in result:
            result[group.key] = vector.new_zeros(tensor_shape(group))
        result[group.key].view(-1).as_strided(group.shape, group.strides, group.offset).copy_(values)
    for alias, key in spec.aliases:
        result[alias] = result[key]
    return result


def _state(module: nn.Module) -> dict[str, Tensor]:
    state = module.state_dict(keep_vars=True)
    return {key: tensor for key, tensor in state.items() if isinstance(tensor, Tensor)}


@contextlib.contextmanager
def evaluation(module: nn.Module) -> Iterator[None]:
    """Evaluation mode; the mode of every part is restored afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def copy_module(module: nn.Module) -> nn.Module:
    """A deep copy. Tensors with a history are detached: `weight_norm` of older torch keeps such a tensor."""
    memo: dict[int, Any] = {
        id(x): x.detach().clone()
        for part in module.modules()
        for x in vars(part).values()
        if isinstance(x, Tensor) and not x.is_leaf
    }
    try:
        return copy.deepcopy(module, memo)
    except Exception as error:  # attributes of any type may refuse to be copied
        raise UserError(
            f"{type(module).__name__} could not be copied: {error}. Expected a module that copy.deepcopy accepts: "
            "remove attributes such as locks and open files."
        ) from error


def write_module(spec: NetworkSpec, vector: Float[Tensor, "N"], module: nn.Module) -> None:
    """Writes the entries into a module's tensors, in their own dtype; tied tensors are written once."""
    state = _state(module)
    missing = [group.key for group in spec.groups if group.key not in state]
    if missing:
        raise UserError(f"Expected a module with the tensor '{missing[0]}', but it has {sorted(state)}.")
    with torch.no_grad():
        for key, value in unpack_state_dict(replace_aliases(spec), vector).items():
            if tuple(state[key].shape) != tuple(value.shape):
                shapes = f"{tuple(value.shape)}, but got {tuple(state[key].shape)}"
                raise UserError(f"Expected a module whose '{key}' has shape {shapes}.")
            state[key].copy_(value)


def replace_aliases(spec: NetworkSpec) -> NetworkSpec:
    """The spec without the additional keys of tied tensors."""
    return spec if not spec.aliases else NetworkSpec(axes=spec.axes, groups=spec.groups)
