"""Files of one network or a few, as people keep them: `read_networks`, `read_form`, `write_networks`."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from neuralfunctionals.data.files import write_whole
from neuralfunctionals.inr import SirenForm
from neuralfunctionals.weight_space import NetworkSpec, WeightSpaceFeatures

_STATE_DICTS = (".pth", ".pt", ".safetensors")


def read_networks(file: str | os.PathLike[str]) -> WeightSpaceFeatures:
    """The network of a `state_dict` (`.pth`, `.pt`, `.safetensors`), or those of an `.npz` (`weights` and `spec`)."""
    file = _require_ending(file)
    if not file.is_file():
        raise ValueError(f"Expected a file of weights, but there is none at {file}.")
    if file.suffix == ".npz":
        arrays = read_arrays(file)
        spec = NetworkSpec.from_json(str(arrays["spec"]))
        return WeightSpaceFeatures.from_vectors(spec, torch.from_numpy(arrays["weights"].astype(np.float32)))
    try:
        return WeightSpaceFeatures.from_state_dicts([read_state_dict(file)])
    except ValueError as error:
        raise ValueError(str(error) if str(file) in str(error) else f"{file}: {error}") from error


def read_form(file: str | os.PathLike[str]) -> SirenForm | None:
    """What an `.npz` file says of the form of its sine networks; files that do not say give None."""
    return read_form_of_arrays(Path(file)) if Path(file).suffix == ".npz" else None


def write_networks(
    file: str | os.PathLike[str], networks: WeightSpaceFeatures, *, form: SirenForm | None = None
) -> None:
    """Writes what `read_networks` reads, in the format of the name's ending; whole or not at all.

    Args:
        file: Where to write.
        networks: What to write; many only to an `.npz` file.
        form: The form of sine networks, for `read_form`; a `state_dict` has no place for it.
    """
    file = _require_ending(file)
    if file.suffix != ".npz" and len(networks) != 1:
        raise ValueError(
            f"Expected one network for {file}, but got {len(networks)}. Write many to a file ending in .npz."
        )
    data = io.BytesIO()
    if file.suffix == ".npz":
        arrays: Any = {"weights": networks.to_vectors().numpy(), "spec": np.array(networks.spec.to_json())}
        np.savez(data, **arrays, **arrays_of_form(form))
    elif file.suffix == ".safetensors":
        data.write(safetensors.torch.save(networks.to_state_dicts()[0]))
    else:
        torch.save(networks.to_state_dicts()[0], data)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, data.getvalue())


def _require_ending(file: str | os.PathLike[str]) -> Path:
    endings = (*_STATE_DICTS, ".npz")
    if Path(file).suffix not in endings:
        raise ValueError(f"Expected a file of weights ending in {', '.join(endings)}, but got {file}.")
    return Path(file)


def read_state_dict(file: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a `.pth`, `.pt` or `.safetensors` file; whatever else it holds is refused, not run."""
    file = Path(file)
    try:
        if file.suffix == ".safetensors":
            content: Any = safetensors.torch.load_file(file)
        else:
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a hostile or damaged file may fail in any way
        reason = str(error).strip().splitlines()
        raise ValueError(
            f"Refused {file}: it holds more than tensors, or is damaged ({(reason or [type(error).__name__])[0]}). "
            "Expected a state_dict; nothing in it was run."
        ) from error
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    if not isinstance(content, Mapping) or not all(isinstance(v, Tensor) for v in content.values()) or not content:
        raise ValueError(
            f"Refused {file}: expected a state_dict, names with tensors, but it holds {type(content).__name__}."
        )
    return {str(name): tensor.float() for name, tensor in content.items()}


def read_arrays(file: Path) -> dict[str, np.ndarray]:
    """The arrays of an `.npz` file of networks, as `nf data export npz` writes it, without what tells their form."""
    content = _load(file)
    if "weights" not in content or "spec" not in content or content["weights"].ndim != 2:
        raise ValueError(
            f"Expected arrays 'weights' of shape (networks, entries) and 'spec' (JSON) in {file}, but found "
            f"{sorted(content)}. nf data export npz shows the form."
        )
    return {name: array for name, array in content.items() if name not in _FORM}


def _load(file: Path, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """The arrays of an `.npz` file, or as many of these as there are."""
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files if names is None or name in names}
    except Exception as error:  # a hostile or damaged file may fail in any way
        raise ValueError(
            f"Refused {file}: it is no npz file of plain arrays ({error}). Nothing in it was run."
        ) from error


_FORM = ("omega", "convention")
"""Arrays without axes: a number and a string."""


def arrays_of_form(form: SirenForm | None) -> dict[str, Any]:
    """What `read_form_of_arrays` reads."""
    return {} if form is None else {name: np.array(getattr(form, name)) for name in _FORM}


def read_form_of_arrays(file: Path) -> SirenForm | None:
    """The form of sine networks that an `.npz` file tells."""
    told = {name: array.item() if array.size == 1 else None for name, array in _load(file, _FORM).items()}
    try:
        return SirenForm.from_provenance(told)
    except (TypeError, ValueError) as error:
        raise ValueError(f"Expected a number 'omega' and a string 'convention' in {file}: {error}") from error
