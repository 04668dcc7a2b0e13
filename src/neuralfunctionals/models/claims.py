"""What a model's config claims, against the weights that are there: `limit_tensors`."""

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
    """Stops the making of a model that gets more parameters and buffers, or larger ones, than a file can hold.

    Args:
        file: The safetensors file that the model will be filled from.
        config: The arguments of its constructor: numbers of layers and channels, none of which exceeds the entries.
    """
    require_memory(2 * file.stat().st_size, f"The model in {file.parent}")
    with safe_open(file, "pt") as stored:
        names = list(stored.keys())
        entries = sum(torch.Size(stored.get_slice(name).get_shape()).numel() for name in names)
    # Twice as many: tensors that parts of a model share are kept once, and some buffers are not kept.
    left = {"tensors": 2 * len(names) + 1000, "entries": 2 * entries + 1_000_000}
    too_large = ValueError(
        f"The config in {file.parent} asks for a larger model than there are weights for: {file.name} holds "
        f"{len(names)} tensors with {entries} entries. Expected the two files that save_pretrained wrote."
    )
    if _largest_number(config) > left["entries"]:
        raise too_large
    thread = threading.get_ident()

    def count(module: Any, name: str, tensor: Tensor | None) -> None:
        if threading.get_ident() != thread:  # hooks see all modules, also those made elsewhere at this time
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
    """Among whole numbers in lists and dictionaries, but for those of the spec: these cost no memory by themselves."""
    if isinstance(config, Mapping):
        return max((_largest_number(value) for name, value in config.items() if name != "spec"), default=0)
    if isinstance(config, (list, tuple)):
        return max(map(_largest_number, config), default=0)
    return config if isinstance(config, int) else 0
