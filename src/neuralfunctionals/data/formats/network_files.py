"""Files of one or several networks: `read_networks`, `read_form`, `write_networks`."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from jaxtyping import Float
from torch import Tensor

from neuralfunctionals.errors import UserError
from neuralfunctionals.files.budget import require_memory
from neuralfunctionals.files.untrusted import read_npz, read_tensors
from neuralfunctionals.files.writing import write_whole
from neuralfunctionals.inr import SirenForm
from neuralfunctionals.weight_space import NetworkSpec, WeightSpaceFeatures
from neuralfunctionals.weight_space.state import require_plain

# Axes: B input networks, M latents of each, D their channels.

_STATE_DICTS = (".pth", ".pt", ".ckpt", ".safetensors")


def read_networks(file: str | os.PathLike[str]) -> WeightSpaceFeatures:
    """Reads a `state_dict` (`.pth`, `.pt`, `.safetensors`), or all networks of an `.npz` (`weights` and `spec`)."""
    file = _require_ending(file)
    if not file.is_file():
        raise UserError(f"Expected a file of weights, but there is none at {file}.")
    if file.suffix == ".npz":
        return read_arrays(file)[0]
    return read_network(file)


def read_network(file: Path, spec: NetworkSpec | None = None) -> WeightSpaceFeatures:
    """Reads a file with one `state_dict`; its spec is inferred from the file unless given."""
    with naming(file):
        return WeightSpaceFeatures.from_state_dicts([read_state_dict(file)], spec)


@contextmanager
def naming(file: Path) -> Iterator[None]:
    """Adds the file's name to messages about its content."""
    try:
        yield
    except ValueError as error:
        raise UserError(str(error) if str(file) in str(error) else f"{file}: {error}") from error


def write_networks(file: str | os.PathLike[str], networks: Any, *, form: SirenForm | None = None) -> None:
    """Writes features, a `state_dict` or a list of these to a file that `read_given` reads; atomic.

    Args:
        file: The file; its ending determines the format. Several networks go to an `.npz` file if they are features,
            and to an `.npz`, `.pth`, `.pt` or `.ckpt` file if they are a list.
        networks: The networks. Tensors of a `state_dict` keep their dtypes, except in an `.npz` file.
        form: The form of sine networks, for `read_form`; only `.npz` files can store it.
    """
    file = _require_ending(file)
    if file.suffix == ".npz":
        if not isinstance(networks, WeightSpaceFeatures):
            parts = [networks] if isinstance(networks, Mapping) else networks
            networks = WeightSpaceFeatures.from_state_dicts([{k: v.float() for k, v in p.items()} for p in parts])
        arrays: Any = {"weights": networks.to_vectors().numpy(), "spec": np.array(networks.spec.to_json())}
        return _write(file, lambda data: np.savez(data, **arrays, **arrays_of_form(form)))
    is_one, is_features = isinstance(networks, Mapping), isinstance(networks, WeightSpaceFeatures)
    if not is_one and (is_features or file.suffix == ".safetensors"):
        if len(networks) != 1:
            raise UserError(
                f"Expected one network for {file}, but got {len(networks)}. Write many to a file ending in .npz."
            )
        (networks,) = networks.to_state_dicts() if is_features else networks
    if file.suffix == ".safetensors":
        content = {name: tensor.contiguous() for name, tensor in networks.items()}
        return _write(file, lambda data: data.write(safetensors.torch.save(content)))
    return _write(file, lambda data: torch.save(networks, data))


write_given = write_networks


def write_latents(file: str | os.PathLike[str], latents: Float[Tensor, "B M D"]) -> None:
    """Writes the array `latents` to an `.npz` file; atomic."""
    _write(Path(file), lambda data: np.savez(data, latents=latents.numpy()))


def _write(file: Path, save: Callable[[io.BytesIO], object]) -> None:
    data = io.BytesIO()
    save(data)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, data.getvalue())


def _require_ending(file: str | os.PathLike[str]) -> Path:
    endings = (*_STATE_DICTS, ".npz")
    if Path(file).suffix not in endings:
        raise UserError(f"Expected a file of weights ending in {', '.join(endings)}, but got {file}.")
    return Path(file)


def read_state_dict(file: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Reads the tensors of one network, real numbers as float32; any other content is refused, not run."""
    networks = read_state_dicts(file)
    if len(networks) != 1:
        raise UserError(f"Refused {file}: expected one network, but it holds {len(networks)}.")
    return {name: x.float() if x.is_floating_point() else x for name, x in networks[0].items()}


def read_state_dicts(file: str | os.PathLike[str]) -> list[dict[str, Tensor]]:
    """Reads the networks of a `.pth`, `.pt`, `.ckpt` or `.safetensors` file, with tensors as they are stored.

    The file holds a `state_dict`, a checkpoint with one under `state_dict`, `model_state_dict` or `model`, or a list of
    these. Any other content is refused, not run.
    """
    file = Path(file)
    content = read_tensors(file)
    parts = content if isinstance(content, (list, tuple)) and content else [content]
    return [_require_state_dict(unwrap(part), file) for part in parts]


def unwrap(content: Any) -> Any:
    """The `state_dict` of a checkpoint; anything else is returned as it is."""
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            return content[key]
    return content


def describe_content(content: Any) -> str:
    """What was found instead of a `state_dict`."""
    if not isinstance(content, Mapping):
        return type(content).__name__
    others = (f"'{n}' of type {type(v).__name__}" for n, v in content.items() if not isinstance(v, Tensor))
    return f"a {type(content).__name__} with {next(others, 'nothing in it')}"


def _require_state_dict(content: Any, file: Path) -> dict[str, Tensor]:
    if not isinstance(content, Mapping) or not all(isinstance(v, Tensor) for v in content.values()) or not content:
        raise UserError(
            f"Refused {file}: expected a state_dict (tensors by name), but it holds {describe_content(content)}. Save "
            "the state_dict alone, or under 'state_dict', 'model_state_dict' or 'model'."
        )
    if not all(isinstance(name, str) for name in content):
        raise UserError(f"Refused {file}: expected a state_dict, but the names of its tensors are not all strings.")
    for name, tensor in content.items():
        require_plain(name, tensor, f"Refused {file}: expected")
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise UserError(
                f"Refused {file}: '{name}' repeats its values, {tensor.numel()} from "
                f"{tensor.untyped_storage().nbytes() // tensor.element_size()}. Expected each entry to be stored: save "
                "it with .contiguous()."
            )
    size = 4 * sum(tensor.numel() for tensor in content.values())
    require_memory(size, f"Refused {file}: its tensors", stored=file.stat().st_size)
    return {name: tensor.detach() for name, tensor in content.items()}


def read_arrays(file: Path) -> tuple[WeightSpaceFeatures, dict[str, np.ndarray]]:
    """Reads the networks of an `.npz` file written by `nf data export npz`, and its other arrays except `_FORM`."""
    content = {name: array for name, array in read_npz(file).items() if name not in _FORM}
    names = sorted(content)
    weights, spec = content.pop("weights", None), content.pop("spec", None)
    if weights is None or spec is None or weights.ndim != 2 or spec.ndim != 0 or spec.dtype.kind != "U":
        raise UserError(
            f"Expected arrays 'weights' of shape (networks, entries) and 'spec' (JSON) in {file}, but found "
            f"{names}. nf data export npz writes such files."
        )
    if weights.dtype.kind != "f" or not len(weights):
        raise UserError(
            f"Expected real numbers as 'weights' in {file}, one row per network, but got {weights.dtype} of shape "
            f"{weights.shape}."
        )
    try:
        with np.errstate(over="ignore"):  # numbers that are too large become infinite, and are refused
            vectors = torch.from_numpy(np.ascontiguousarray(weights, dtype=np.float32))
        return WeightSpaceFeatures.from_vectors(NetworkSpec.from_json(str(spec)), vectors), content
    except (ValueError, RecursionError) as error:
        raise UserError(f"Refused {file}: {error or 'its spec is nested too deeply.'}") from error


_FORM = ("omega", "convention")
"""Names of two zero-dimensional arrays: a number and a string."""


def arrays_of_form(form: SirenForm | None) -> dict[str, Any]:
    """The arrays that `read_form` reads."""
    return {} if form is None else {name: np.array(getattr(form, name)) for name in _FORM}


def read_form(file: str | os.PathLike[str]) -> SirenForm | None:
    """The form of sine networks that an `.npz` file records; None if it records none, and for other files."""
    file = Path(file)
    found = {} if file.suffix in _STATE_DICTS else read_npz(file, optional=_FORM)
    told = {name: array.item() if array.size == 1 else None for name, array in found.items()}
    try:
        return SirenForm.from_provenance(told)
    except (TypeError, ValueError) as error:
        raise UserError(f"Expected a number 'omega' and a string 'convention' in {file}: {error}") from error
