"""Saving and loading models: safetensors weights and a JSON config, in a directory or on the hub."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub import PyTorchModelHubMixin, snapshot_download
from safetensors.torch import load_file

from neuralfunctionals.weight_space import NetworkSpec

Model = TypeVar("Model", bound="Pretrained")


class Pretrained(PyTorchModelHubMixin, library_name="neuralfunctionals", license="mit"):
    """Gives a model `save_pretrained(directory)` and `from_pretrained(directory or hub id)`.

    The constructor's arguments are the config; they must be plain values or a `NetworkSpec`.
    """

    @classmethod
    def from_pretrained(cls: type[Model], name: str | Path, **kwargs: Any) -> Model:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Loads a model, in evaluation mode, from a directory that `save_pretrained` wrote, or else from the hub.

        Args:
            name: The directory, or the model's id on the hub.
            **kwargs: Passed to the hub's `snapshot_download`, such as `revision` or `cache_dir`.
        """
        path = Path(name)
        if not path.is_dir():
            try:
                path = Path(snapshot_download(str(name), **kwargs))
            except (OSError, ValueError) as error:
                raise ValueError(
                    f"Found no model '{name}': it is neither a directory here nor a model that the hub gives "
                    f"({type(error).__name__}). Give the directory that save_pretrained wrote."
                ) from error
        missing = [file for file in ("config.json", "model.safetensors") if not (path / file).is_file()]
        if missing:
            raise ValueError(
                f"Expected a directory that save_pretrained wrote, but {path} has no {' and no '.join(missing)}."
            )
        config = json.loads((path / "config.json").read_text())
        try:
            model: Any = cls(**cls.decode_config(config))
            model.load_state_dict(load_file(path / "model.safetensors"))
        except (TypeError, RuntimeError) as error:
            raise ValueError(
                f"{path} does not hold a {cls.__name__}: {error}. Load it with the class that saved it."
            ) from error
        return model.eval()

    @classmethod
    def decode_config(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """The constructor's arguments from what JSON keeps of them."""
        return {**config, **({"spec": NetworkSpec.from_dict(config["spec"])} if "spec" in config else {})}
