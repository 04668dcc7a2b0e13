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

from neuralfunctionals.data.formats.network_files import (
    describe_content,
    naming,
    read_form,
    read_networks,
    read_state_dicts,
    unwrap,
)
from neuralfunctionals.data.weight_dataset import WeightDataset
from neuralfunctionals.errors import UserError
from neuralfunctionals.inr.form import with_one_frequency
from neuralfunctionals.weight_space import NetworkSpec, WeightSpaceFeatures
from neuralfunctionals.weight_space.state import require_plain

_EXPECTED = "a module, a state_dict, the path of a file, a list of these, features, or a store"


@dataclass(frozen=True, eq=False)
class GivenNetworks:
    """Networks as features, and the function that converts them back."""

    features: WeightSpaceFeatures
    """In float32. Their spec has what the networks record about the frequency and convention of their sines."""
    is_single: bool
    """Whether a single network was given rather than a list."""
    restore: Callable[[WeightSpaceFeatures], Any]
    """Converts features with new values to the type and the dtypes of the given networks."""
    where: object = "the input"
    """Their name in messages."""


def read_given(
    networks: Any, *, layers: str | Sequence[str] | None = None, module: nn.Module | None = None
) -> GivenNetworks:
    """Reads networks from a module, a `state_dict`, a file, a list of these, features, or a store.

    Checkpoints are unwrapped (`state_dict`, `model_state_dict`, `model`), and so are modules inside
    `DistributedDataParallel` and `torch.compile`. Files are read as data only.

    Args:
        networks: The networks, all of one architecture. A path is that of a file or of a store.
        layers: Names of the layers from input to output, if the shapes of a `state_dict` allow several orders.
        module: A module that the `state_dict` belongs to, if its names and shapes are not enough.
    """
    find_spec = _SpecFinder(layers, module)
    if isinstance(networks, (str, os.PathLike)):
        path = _local_path(networks)
        return _from_store(WeightDataset(path)) if path.is_dir() else _from_file(path, find_spec)
    if isinstance(networks, WeightDataset):
        return _from_store(networks)
    if isinstance(networks, WeightSpaceFeatures):
        dtype = networks.dtype
        return GivenNetworks(networks.to(torch.float32), False, lambda new: new.to(dtype))
    if isinstance(networks, (nn.Module, Mapping)) and not isinstance(networks, nn.ModuleList):
        return _from_parts([networks], find_spec, is_single=True)
    if not isinstance(networks, Iterable) or isinstance(networks, (Tensor, bytes)):
        raise UserError(f"Expected {_EXPECTED}, but got {type(networks).__name__}.")
    return _from_parts(list(networks), find_spec, is_single=False)


def _local_path(path: str | os.PathLike[str]) -> Path:
    if "://" in os.fspath(path):
        raise UserError(f"Expected a path on this machine, but got the URL {path}. Download the file first.")
    return Path(path).expanduser()


def _from_store(dataset: WeightDataset) -> GivenNetworks:
    features = dataset[:].features
    if features is None:
        raise UserError(f"Expected a store of networks, but {dataset.path} holds {', '.join(dataset.tensor_names)}.")
    return GivenNetworks(features.to(torch.float32), False, lambda new: new, dataset.path)


def _from_file(file: Path, find_spec: _SpecFinder) -> GivenNetworks:
    if file.suffix == ".npz":
        features, form = read_networks(file), read_form(file)
        return GivenNetworks(features if form is None else form.label(features), False, lambda new: new, file)
    with naming(file):
        parts = read_state_dicts(file)
        return replace(_from_parts(parts, find_spec, is_single=len(parts) == 1), where=file)


def _from_parts(parts: list[Any], find_spec: _SpecFinder, *, is_single: bool) -> GivenNetworks:
    networks = [network for part in parts for network in _read_part(part, is_single=is_single)]
    if not networks:
        raise UserError(f"Expected {_EXPECTED}, but got an empty list.")
    specs = [find_spec(content, module) for module, content in networks]
    common = next((spec for spec in specs if spec.activation is not None), specs[0])
    for number, spec in enumerate(specs):
        if not spec.matches(common):
            difference = spec.find_conflict(common) if spec == common else f"layers {spec}, not {common}"
            raise UserError(f"Expected networks of one architecture, but network {number} has {difference}.")
    vectors = [
        WeightSpaceFeatures.from_state_dicts([_as_float32(content)], spec).tensor
        for (_, content), spec in zip(networks, specs, strict=True)
    ]

    features, factors = with_one_frequency(WeightSpaceFeatures(common, torch.cat(vectors)))

    def restore(new: WeightSpaceFeatures) -> Any:
        found = []
        vectors = (new.to("cpu").tensor / factors).split(1)
        for (module, old), spec, vector in zip(networks, specs, vectors, strict=True):
            (values,) = WeightSpaceFeatures(spec, vector).to_state_dicts()
            made = {**old, **{name: x.to(old[name].device, old[name].dtype) for name, x in values.items()}}
            found.append(made if module is None else _with_weights(module, made))
        return found[0] if is_single else found

    return GivenNetworks(features, is_single, restore)


def _read_part(part: Any, *, is_single: bool) -> list[tuple[nn.Module | None, Mapping[str, Tensor]]]:
    """The `state_dict`s of one entry of a list, with the module they belong to."""
    if isinstance(part, (str, os.PathLike)):
        return [(None, content) for content in read_state_dicts(_local_path(part))]
    module = _inner(part) if isinstance(part, nn.Module) else None
    content = unwrap(part)
    if module is not None:
        content = {name: x for name, x in module.state_dict().items() if isinstance(x, Tensor)}
    if not isinstance(content, Mapping) or not all(isinstance(v, Tensor) for v in content.values()):
        got = f"{'' if is_single else 'a list that contains '}{describe_content(content)}"
        raise UserError(f"Expected {_EXPECTED}, but got {got}.")
    for name, x in content.items():
        require_plain(name, x)
    return [(module, content)]


def _inner(module: nn.Module) -> nn.Module:
    """The user's module inside the wrappers of `torch.compile` and data-parallel training."""
    while True:
        inner = getattr(module, "_orig_mod", None)
        if inner is None and isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            inner = module.module
        if not isinstance(inner, nn.Module):
            return module
        module = inner


class _SpecFinder:
    """Finds the spec of each network; networks with the same shapes and settings share it.

    Args:
        layers: Names of the layers of all networks.
        module: A module that `state_dict`s belong to.
    """

    def __init__(self, layers: str | Sequence[str] | None, module: nn.Module | None) -> None:
        if module is not None and not isinstance(module, nn.Module):
            got = f"the class {module.__name__}" if isinstance(module, type) else f"a {type(module).__name__}"
            raise UserError(f"Expected a module with the layers of the state_dict, but got {got}. Pass an instance.")
        self._layers = [name.strip() for name in layers.split(",")] if isinstance(layers, str) else layers
        self._module = module
        self._found: dict[Any, NetworkSpec] = {}

    def __call__(self, content: Mapping[str, Tensor], module: nn.Module | None) -> NetworkSpec:
        key = (tuple((name, x.shape) for name, x in content.items()), None if module is None else _settings(module))
        if key not in self._found:
            self._found[key] = self._find(content, module)
        return self._found[key]

    def _find(self, content: Mapping[str, Tensor], module: nn.Module | None) -> NetworkSpec:
        if self._layers is not None:
            return NetworkSpec.from_state_dict(content, self._layers)
        if module is not None and not isinstance(module, torch.jit.ScriptModule):
            return NetworkSpec.from_module(module)
        if self._module is None:
            return NetworkSpec.from_state_dict(content)
        spec = NetworkSpec.from_module(_inner(self._module))
        # Checkpoints of wrapped modules have longer names: module.net.0.weight.
        first = spec.layers[0].key("weight")
        prefix = next((name.removesuffix(first) for name in content if name.endswith(first)), "")
        return replace(spec, layers=tuple(replace(layer, name=prefix + layer.name) for layer in spec.layers))


def _settings(module: nn.Module) -> tuple[Any, ...]:
    """The classes, plain attributes and scalar buffers of a module and its parts: what its function depends on."""
    settings: list[Any] = [(name, x.item()) for name, x in module.named_buffers() if x.numel() == 1]
    for name, part in module.named_modules():
        settings += [name, type(part)]
        settings += [(k, v) for k, v in vars(part).items() if isinstance(v, (bool, int, float, str))]
    return tuple(settings)


def _as_float32(content: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: x.detach().to("cpu", torch.float32) if x.is_floating_point() else x for name, x in content.items()}


def _with_weights(module: nn.Module, content: Mapping[str, Tensor]) -> nn.Module:
    copied = copy.deepcopy(module)
    copied.load_state_dict(content, strict=False)  # modules may have state other than tensors
    return copied
