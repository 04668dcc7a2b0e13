"""Loggers and callbacks of Lightning, or of the user, by name: `make_loggers`, `make_callbacks`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from lightning.pytorch import Callback, callbacks, loggers
from lightning.pytorch.loggers import Logger

from neuralfunctionals.config import TrainingConfig
from neuralfunctionals.errors import UserError, require_choice
from neuralfunctionals.imports import call_object, import_object

Part = TypeVar("Part", Logger, Callback)


def make_loggers(names: str, folder: Path) -> list[Logger]:
    """The loggers with these names, separated by commas.

    Args:
        names: Classes of `lightning.pytorch.loggers`, such as `CSVLogger`; or paths of your own classes or functions
            that need no arguments, such as `my_package.make_logger`.
        folder: The run directory, where loggers that have a `save_dir` write.
    """
    return [_call(make, name, Logger) for name, make in _find(names, "logger", loggers, save_dir=folder)]


def make_callbacks(names: str) -> list[Callback]:
    """The callbacks with these names, like `make_loggers`; Lightning's are those of `lightning.pytorch.callbacks`."""
    return [_call(make, name, Callback) for name, make in _find(names, "callback", callbacks)]


def require_parts(config: TrainingConfig) -> None:
    """Raises if a logger or callback of the config cannot be made; nothing is made yet."""
    _find(config.loggers, "logger", loggers, save_dir=Path())
    _find(config.callbacks, "callback", callbacks)


def _find(names: str, word: str, module: Any, **known: Any) -> list[tuple[str, Callable[[], Any]]]:
    """For each name, the function that makes the part, with those of the known arguments that it takes."""
    found = []
    for name in filter(None, (name.strip() for name in names.split(","))):
        path = name
        if not {".", ":"} & set(name):
            require_choice(f"a {word} of Lightning, or the path of your own,", name, module.__all__)
            path = f"{module.__name__}.{name}"
        kind = import_object(path)
        takes = inspect.signature(kind).parameters if callable(kind) else {}
        options = {key: value for key, value in known.items() if key in takes}
        try:
            inspect.signature(kind).bind(**options)
        except TypeError as error:
            raise UserError(
                f"Cannot make the {word} {name} from its name alone: {error}. Write a function without arguments that "
                f"returns it, and name this function instead, such as my_package.make_{word}."
            ) from error
        found.append((name, partial(call_object, path, **options)))
    return found


def _call(make: Callable[[], Any], name: str, kind: type[Part]) -> Part:
    made = make()
    if not isinstance(made, kind):
        raise UserError(f"Expected {name} to return a {kind.__name__} of Lightning, but got {type(made).__name__}.")
    return made
