"""Reads networks from modules, `state_dict`s, files and stores: `read_given`."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from neuralfunctionals.data.formats.network_files import naming, read_form, read_networks, read_state_dicts, unwrap
from neuralfunctionals.data.weight_dataset import WeightDataset
from neuralfunctionals.errors import UserError
from neuralfunctionals.inr import Siren, SirenForm
from neuralfunctionals.inr.siren import can_be_siren
from neuralfunctionals.weight_space import NetworkSpec, WeightSpaceFeatures

_EXPECTED = "a module, a state_dict, a list of these, features, a store, or the path of a file"


@dataclass(frozen=True, eq=False)
class GivenNetworks:
    """Networks as features, and the function that converts them back."""

    features: WeightSpaceFeatures
    """In float32."""
    is_single: bool
    """Whether a single network was given rather than a list."""
    restore: Callable[[WeightSpaceFeatures], Any]
    """Converts features with new values to the type and the dtypes of the given networks."""
    form: SirenForm | None = None
    """Frequency and convention, if the networks record them."""
    where: object = "the networks"
    """Their name in messages."""


def read_given(networks: Any, *, layers: Sequence[str] | None = None, module: nn.Module | None = None) -> GivenNetworks:
    """Reads networks from a module, a `state_dict`, a list of these, features, a store, or a file.

    Checkpoints are unwrapped (`state_dict`, `model_state_dict`, `model`), and so are modules inside
    `DistributedDataParallel` and `torch.compile`. Files are read as data only.

    Args:
        networks: The networks, all of one architecture. A path is that of a file or of a store.
        layers: Names of the layers from input to output, if the shapes of a `state_dict` allow several orders.
        module: A module that the `state_dict` belongs to, if its names and shapes are not enough.
    """
    if isinstance(networks, (str, os.PathLike)):
        file = Path(networks)
        return _from_store(WeightDataset(file)) if file.is_dir() else _from_file(file, layers, module)
    if isinstance(networks, WeightDataset):
        return _from_store(networks)
    if isinstance(networks, WeightSpaceFeatures):
        dtype = networks.tensor.dtype
        form = _told_form(networks.spec)
        return GivenNetworks(networks.to(torch.float32), False, lambda new: new.to(dtype), form)
    if isinstance(networks, (nn.Module, Mapping)):
        return _from_parts([networks], layers, module, is_single=True)
    if not isinstance(networks, Iterable) or isinstance(networks, Tensor):
        raise UserError(f"Expected {_EXPECTED}, but got {type(networks).__name__}.")
    return _from_parts(list(networks), layers, module, is_single=False)


def _from_store(dataset: WeightDataset) -> GivenNetworks:
    features = dataset[:].features
    if features is None:
        raise UserError(f"Expected a store of networks, but {dataset.path} holds {', '.join(dataset.tensor_names)}.")
    form = SirenForm.from_provenance(dataset.provenance)
    return GivenNetworks(features.to(torch.float32), False, lambda new: new, form, dataset.path)


def _from_file(file: Path, layers: Sequence[str] | None, module: nn.Module | None) -> GivenNetworks:
    if file.suffix == ".npz":
        features = read_networks(file)
        return GivenNetworks(features, False, lambda new: new, read_form(file), file)
    with naming(file):
        parts = read_state_dicts(file)
        return replace(_from_parts(parts, layers, module, is_single=len(parts) == 1), where=file)


def _from_parts(
    parts: list[Any], layers: Sequence[str] | None, module: nn.Module | None, *, is_single: bool
) -> GivenNetworks:
    if not parts:
        raise UserError(f"Expected {_EXPECTED}, but got an empty list.")
    modules = [_inner(part) for part in parts] if all(isinstance(part, nn.Module) for part in parts) else None
    require_one_frequency(modules or ())
    dicts = [m.state_dict() for m in modules] if modules is not None else [unwrap(part) for part in parts]
    for content in dicts:
        if not isinstance(content, Mapping) or not all(isinstance(v, Tensor) for v in content.values()):
            raise UserError(f"Expected {_EXPECTED}, but got a list that contains {type(content).__name__}.")
    spec = _find_spec(dicts[0], modules[0] if modules else module, layers)
    features = WeightSpaceFeatures.from_state_dicts([_as_float32(d) for d in dicts], spec)

    def restore(new: WeightSpaceFeatures) -> Any:
        # The spec has the layer names of the first network; the others have the same names.
        made = [
            {**old, **{name: x.to(old[name].dtype).to(old[name].device) for name, x in values.items()}}
            for old, values in zip(dicts, WeightSpaceFeatures(spec, new.tensor).to_state_dicts(), strict=True)
        ]
        found: list[Any] = (
            made if modules is None else [_with_weights(m, d) for m, d in zip(modules, made, strict=True)]
        )
        return found[0] if is_single else found

    return GivenNetworks(features, is_single, restore, _told_form(spec))


def require_one_frequency(modules: Iterable[nn.Module]) -> None:
    """Raises if there are `Siren`s of several frequencies: features take theirs from the first module."""
    omegas = sorted({module.omega for module in modules if isinstance(module, Siren)})
    if len(omegas) > 1:
        raise UserError(f"Expected networks of one frequency, but got omega {', '.join(map(str, omegas))}.")


def _told_form(spec: NetworkSpec) -> SirenForm | None:
    """The form of sine networks, if the spec records their frequency."""
    return SirenForm.of(spec) if spec.omega is not None and can_be_siren(spec) else None


def _inner(module: nn.Module) -> nn.Module:
    """The user's module inside the wrappers of `torch.compile` and data-parallel training."""
    while True:
        inner = getattr(module, "_orig_mod", None)
        if inner is None and isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            inner = module.module
        if not isinstance(inner, nn.Module):
            return module
        module = inner


def _find_spec(content: Mapping[str, Tensor], module: nn.Module | None, layers: Sequence[str] | None) -> NetworkSpec:
    if layers is not None:
        return NetworkSpec.from_state_dict(content, layers)
    if module is None:
        return NetworkSpec.from_state_dict(content)
    spec = NetworkSpec.from_module(_inner(module))
    # Checkpoints of wrapped modules have longer names: module.net.0.weight.
    first = spec.layers[0].key("weight")
    prefix = next((name.removesuffix(first) for name in content if name.endswith(first)), "")
    return NetworkSpec(tuple(replace(layer, name=prefix + layer.name) for layer in spec.layers)) if prefix else spec


def _as_float32(content: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: x.detach().to("cpu", torch.float32) if x.is_floating_point() else x for name, x in content.items()}


def _with_weights(module: nn.Module, content: Mapping[str, Tensor]) -> nn.Module:
    copied = copy.deepcopy(module)
    copied.load_state_dict(content)
    return copied
