"""Imports users' classes and modules by path: `import_object`; `imports_for` controls when a file may request this.

A path such as `my_package.MyModel` is imported if the user names it, or if it is in a run or model directory that the
user owns. A shipped model or a model from the hub never imports anything.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from neuralfunctionals.errors import UserError

_OWN = __name__.partition(".")[0]
_asking: ContextVar[Path | None] = ContextVar("_asking", default=None)


def import_object(path: str) -> Any:
    """Imports the class or module with this path, such as `my_package.MyModel` or `my_package:MyModel`."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # like `python -m`: finds modules in the working directory
    path = path.replace(":", ".")
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError as error:
            if error.name and not f"{path}.".startswith(f"{error.name}."):
                raise UserError(f"Cannot import {path}: it needs {error.name}, which is not installed.") from error
            continue
        except Exception as error:  # of the user's module
            raise UserError(f"Cannot import {path}: {type(error).__name__}: {error}.") from error
        try:
            for name in parts[count:]:
                found = getattr(found, name)
        except AttributeError as error:
            raise UserError(f"Expected {path} to be a class or a module, but {error}.") from error
        return found
    raise UserError(f"Cannot import {path}: there is no module '{parts[0]}'. Run from its folder, or install it.")


def call_object(path: str, *arguments: Any, **options: Any) -> Any:
    """Calls the class or function with this path; its errors are reported as the user's."""
    found = import_object(path)
    if not callable(found):
        raise UserError(f"Expected {path} to be a class or a function, but it is a {type(found).__name__}.")
    try:
        return found(*arguments, **options)
    except Exception as error:
        raise UserError(f"{path} raised {type(error).__name__}: {error}") from error


def path_of(kind: type[Any]) -> str:
    """The name of a class in files: just its name if it is ours, otherwise a path for `import_object`."""
    return kind.__name__ if kind.__module__.partition(".")[0] == _OWN else f"{kind.__module__}.{kind.__qualname__}"


@contextmanager
def imports_for(directory: Path | None) -> Iterator[None]:
    """Allows files in this directory to import classes, if the user owns it; with None, nothing may be imported."""
    token = _asking.set(directory)
    try:
        yield
    finally:
        _asking.reset(token)


def import_for_file(path: str) -> Any:
    """Imports a path that is named in a file; see `imports_for`."""
    directory = _asking.get()
    if directory is None:
        raise UserError(
            f"This model needs to import {path}, which is only allowed for directories that you own. Download it, "
            "check the code, and pass its directory."
        )
    user = getattr(os, "getuid", lambda: None)()  # none on Windows
    files = [directory, *(f for f in (directory / "run.json", directory / "config.json") if f.exists())]
    if user is not None and any(file.stat().st_uid != user for file in files):
        raise UserError(
            f"{directory} needs to import {path}, but belongs to another user. If you trust it, copy it to a directory "
            "of your own."
        )
    return import_object(path)
