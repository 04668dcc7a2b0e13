"""Saving and loading models: safetensors weights and a JSON config, in a directory or on the hub."""

from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub import PyTorchModelHubMixin

from neuralfunctionals.weight_space import NetworkSpec

Model = TypeVar("Model", bound="Pretrained")


class Pretrained(PyTorchModelHubMixin):
    """Gives a model `save_pretrained(directory)` and `from_pretrained(directory or hub id)`.

    The constructor's arguments are the config; they must be plain values or a `NetworkSpec`.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        kwargs.setdefault("library_name", "neuralfunctionals")
        kwargs.setdefault("license", "mit")
        super().__init_subclass__(**kwargs)

    @classmethod
    def _decode_arg(cls, expected_type: Any, value: Any) -> Any:
        # The mixin writes a dataclass as nested dictionaries but reads only flat ones.
        return NetworkSpec.from_dict(value) if expected_type is NetworkSpec else super()._decode_arg(expected_type, value)

    @classmethod
    def from_pretrained(cls: type[Model], pretrained_model_name_or_path: str | Path, **kwargs: Any) -> Model:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Loads a model from a directory that `save_pretrained` wrote, or else from the hub by its id."""
        path = Path(pretrained_model_name_or_path)
        missing = [name for name in ("config.json", "model.safetensors") if not (path / name).is_file()]
        if path.is_dir() and missing:
            raise ValueError(
                f"Expected a directory written by save_pretrained, but {path} has no {' and no '.join(missing)}."
            )
        try:
            return super().from_pretrained(str(pretrained_model_name_or_path), **kwargs)
        except OSError as error:
            raise ValueError(
                f"Found no model '{pretrained_model_name_or_path}': it is neither a directory here nor a model that the "
                f"hub could give ({type(error).__name__}). Give the directory that save_pretrained wrote."
            ) from error
