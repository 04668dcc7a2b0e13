"""Checks that a model's config does not claim more weights than its file holds: `limit_tensors`."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)

from neuralfunctionals.files.budget import require_memory


@contextmanager
def limit_tensors(file: Path, config: Any) -> Iterator[None]:
    """Raises while a model is being built if its parameters and buffers become more or larger than those of a file.

    Args:
        file: The safetensors file to load the model from.
        config: The arguments of its constructor: numbers of layers and channels, none of which exceeds the entries.
    """
    require_memory(2 * file.stat().st_size, f"The model in {file.parent}")
    with safe_open(file, "pt") as stored:
        names = list(stored.keys())
        entries = sum(torch.Size(stored.get_slice(name).get_shape()).numel() for name in names)
    # Twice as many: tensors that parts of a model share are saved once, and some buffers are not saved.
    left = {"tensors": 2 * len(names) + 1000, "entries": 2 * entries + 1_000_000}
    too_large = ValueError(
        f"The config in {file.parent} describes a larger model than there are weights for: {file.name} holds "
        f"{len(names)} tensors with {entries} entries. Expected two files written by save_pretrained."
    )
    if _largest_number(config) > left["entries"]:
        raise too_large
    thread = threading.get_ident()

    def count(module: Any, name: str, tensor: Tensor | None) -> None:
        if threading.get_ident() != thread:  # hooks see all modules, also those that other threads build
            return
        if tensor is not None and not torch.nn.parameter.is_lazy(tensor):
            left["tensors"] -= 1
            left["entries"] -= tensor.numel()
        if min(left.values()) < 0:
            raise too_large

    with ExitStack() as hooks:
        for register in (register_module_parameter_registration_hook, register_module_buffer_registration_hook):
            hooks.callback(register(count).remove)
        yield


def _largest_number(config: Any) -> int:
    """The largest integer in lists and dictionaries, except for the spec, whose numbers do not take memory."""
    if isinstance(config, Mapping):
        return max((_largest_number(value) for name, value in config.items() if name != "spec"), default=0)
    if isinstance(config, (list, tuple)):
        return max(map(_largest_number, config), default=0)
    return config if isinstance(config, int) else 0
