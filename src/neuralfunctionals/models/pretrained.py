"""Saving and loading models: safetensors weights and a JSON config, from a directory, the package or the hub."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch
from huggingface_hub import ModelCard, PyTorchModelHubMixin, snapshot_download
from safetensors import SafetensorError
from safetensors.torch import load_file

from neuralfunctionals.errors import UserError
from neuralfunctionals.files.checksums import require_intact
from neuralfunctionals.files.strict_json import JsonError, conform, read_json, require_arguments
from neuralfunctionals.imports import import_for_file, imports_for, path_of
from neuralfunctionals.models.claims import limit_tensors
from neuralfunctionals.models.hub import model_card, upload
from neuralfunctionals.models.older_configs import modernize, told_by_run
from neuralfunctionals.shipped import SHIPPED, find_shipped
from neuralfunctionals.weight_space import NetworkSpec, NetworkSymmetry

Model = TypeVar("Model", bound="Pretrained")
_RESTORE = "Restore it from a copy, or save the model again."


class Pretrained(PyTorchModelHubMixin, library_name="neuralfunctionals", license="mit"):
    """Adds `save_pretrained(directory)` and `from_pretrained(directory, shipped name or hub id)` to a model.

    The constructor's arguments are the config; they must be plain values, a `NetworkSpec` or a `NetworkSymmetry`.
    """

    def save_pretrained(self, save_directory: str | Path, **kwargs: Any) -> str | None:
        """Writes weights and config; the config names the class, for `nf.from_pretrained`."""
        described: Any = self
        if kwargs.get("config") is None:
            kwargs["config"] = {"class": path_of(type(self)), **described._hub_mixin_config}
        return super().save_pretrained(save_directory, **kwargs)

    def push_to_hub(self, repo_id: str, **kwargs: Any) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Uploads weights, config and a card to the Hugging Face Hub; `nf.from_pretrained(repo_id)` downloads them.

        Args:
            repo_id: The name there, such as `"you/your-model"`.
            **kwargs: For the hub's `create_repo`, such as `private` or `token`.

        Returns:
            The address of the upload.
        """
        with TemporaryDirectory() as scratch:
            self.save_pretrained(scratch, model_card_kwargs={"name": repo_id})
            return upload(Path(scratch), repo_id, **kwargs)

    def generate_model_card(self, *, name: str = "DIRECTORY", **_: Any) -> ModelCard:  # pyright: ignore
        """The card, `README.md`, of a model with this id on the hub, or in this directory."""
        return ModelCard(model_card(self, name))  # pyright: ignore[reportArgumentType]

    @classmethod
    def from_pretrained(cls: type[Model], name: str | Path, **kwargs: Any) -> Model:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Loads a model, in evaluation mode.

        Args:
            name: A directory written by `save_pretrained`, or that of a finished run; else the name of a shipped
                model; else the model's id on the hub.
            **kwargs: Passed to the hub's `snapshot_download`, such as `revision` or `cache_dir`.
        """
        path, asking = _find(name, **kwargs)
        with imports_for(asking):
            return cls._load(path, _read_config(path))

    @classmethod
    def _load(cls: type[Model], path: Path, config: Mapping[str, Any]) -> Model:
        arguments = {key: value for key, value in config.items() if key != "class"}
        held = config.get("class", path_of(cls))
        try:
            if held != path_of(cls):
                raise TypeError(f"it holds a {held}")
            arguments = modernize(cls, arguments, told_by_run(path), model_class)
            require_arguments(cls, arguments, str(path / "config.json"))
            # The config may be wrong, so the model is built without memory first.
            with torch.device("meta"), limit_tensors(path / "model.safetensors", arguments):
                construct(cls, cls.decode_config(arguments))
            model: Any = construct(cls, cls.decode_config(arguments))
            model.load_state_dict(load_file(path / "model.safetensors"))
        except JsonError as error:
            raise UserError(f"{error} {_RESTORE}") from error
        except SafetensorError as error:
            raise UserError(f"{path / 'model.safetensors'} is damaged: {error}. {_RESTORE}") from error
        except UserError:
            raise
        except Exception as error:  # any error of a constructor about impossible sizes
            # Torch appends its C++ stack to some messages.
            reason = str(error).partition("Exception raised from")[0].strip().rstrip(".")
            raise UserError(
                f"{path} does not hold a {cls.__name__}: {reason}. Load it with the class that saved it, or with "
                "nf.from_pretrained, which finds the class."
            ) from error
        return model.eval()

    @classmethod
    def _encode_arg(cls, arg: Any) -> Any:
        """A constructor's argument as JSON."""
        if isinstance(arg, NetworkSymmetry):
            return {"spec": arg.spec.to_dict()}
        return arg.to_dict() if isinstance(arg, NetworkSpec) else super()._encode_arg(arg)  # pyright: ignore

    @classmethod
    def decode_config(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """The constructor's arguments from the JSON config."""
        return {**config, **({"spec": NetworkSpec.from_dict(config["spec"])} if "spec" in config else {})}


def decode_symmetry(value: Mapping[str, Any] | None) -> NetworkSymmetry | None:
    """A symmetry from its JSON."""
    return None if value is None else NetworkSpec.from_dict(value["spec"]).symmetry


@cache
def with_pretrained(kind: type[Any]) -> type[Any]:
    """Adds `save_pretrained` and `from_pretrained` to a user's module class, unless it has them."""
    if issubclass(kind, Pretrained):
        return kind
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind, Pretrained), names)


def construct(kind: type[Any], arguments: Mapping[str, Any]) -> Any:
    """Builds a model and sets its `spec`, if its class does not."""
    model = kind(**arguments)
    if "spec" in arguments and not hasattr(model, "spec"):
        model.spec = arguments["spec"]
    return model


def model_class(name: str | None) -> type[Any]:
    """A model's class by its name in a config: one of ours, or the import path of a user's class."""
    if name is not None and "." in name:
        return with_pretrained(import_for_file(name))
    classes = {c.__name__: c for c in Pretrained.__subclasses__() if path_of(c) == c.__name__}
    if name not in classes:
        raise UserError(f"Expected the config of a model of {sorted(classes)}, but got one of {name!r}.")
    return classes[name]


def from_pretrained(name: str | Path, **kwargs: Any) -> Any:
    """Loads a model of any class, in evaluation mode; arguments as for a model's own `from_pretrained`.

    Example:
        >>> editor = from_pretrained("digits-dilate")  # doctest: +SKIP
    """
    path, asking = _find(name, **kwargs)
    config = _read_config(path)
    with imports_for(asking):
        return model_class(config.get("class"))._load(path, config)


def _read_config(path: Path) -> dict[str, Any]:
    """Reads `config.json`, after a check of the model's files."""
    file = path / "config.json"
    for part in (file, path / "model.safetensors"):
        require_intact(part, _RESTORE)
    try:
        return conform(read_json(file), dict, str(file))
    except JsonError as error:
        raise UserError(f"{error} {_RESTORE}") from error


def _find(name: str | Path, **kwargs: Any) -> tuple[Path, Path | None]:
    """The directory of a model's files; and again if it is neither shipped nor from the hub, else None."""
    given = Path(name).expanduser()
    path = find_shipped(given)
    is_here = path.is_dir() and path == given
    if not path.is_dir():
        try:
            path = Path(snapshot_download(str(name), **kwargs))
        except (OSError, ValueError) as error:
            raise UserError(
                f"Found no model '{name}': it is neither a directory, nor shipped ({', '.join(SHIPPED)}), nor on "
                f"the hub ({type(error).__name__}). Give a directory written by save_pretrained."
            ) from error
    if (path / "model" / "config.json").is_file():
        path /= "model"
    missing = [file for file in ("config.json", "model.safetensors") if not (path / file).is_file()]
    if missing:
        raise UserError(
            f"Expected a directory written by save_pretrained, but {path} has no {' and no '.join(missing)}."
        )
    return path, path if is_here else None
