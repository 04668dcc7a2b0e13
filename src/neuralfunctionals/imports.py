"""Classes and modules of users, by their paths: `import_object`, and when a file may ask for it: `imports_for`.

A path such as `my_package.MyModel` is imported where the user names it, or where it stands in a run or model directory
that the user owns. A shipped model or one of the hub never imports anything.
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
    """What a path such as `my_package.MyModel` or `my_package.my_module` names."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # as `python -m` has it: modules beside the user's work
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError as error:
            if error.name and not f"{path}.".startswith(f"{error.name}."):
                raise UserError(f"Cannot import {path}: it needs {error.name}, which is not installed.") from error
            continue
        try:
            for name in parts[count:]:
                found = getattr(found, name)
        except AttributeError as error:
            raise UserError(f"Expected {path} to be a class or a module, but {error}.") from error
        return found
    raise UserError(f"Cannot import {path}: there is no module '{parts[0]}'. Run from its folder, or install it.")


def path_of(kind: type[Any]) -> str:
    """How files name a class: ours by its name, others by the path that `import_object` finds again."""
    return kind.__name__ if kind.__module__.partition(".")[0] == _OWN else f"{kind.__module__}.{kind.__qualname__}"


@contextmanager
def imports_for(directory: Path | None) -> Iterator[None]:
    """Lets the files of a directory name classes to import, if the user owns it; with none, nothing is imported."""
    token = _asking.set(directory)
    try:
        yield
    finally:
        _asking.reset(token)


def import_for_file(path: str) -> Any:
    """What a path in a file names; see `imports_for`."""
    directory = _asking.get()
    if directory is None:
        raise UserError(
            f"This model asks to import {path}, which is done for directories of your own only. Download it, look at "
            "the code, and give its directory."
        )
    user = getattr(os, "getuid", lambda: None)()  # none on Windows
    files = [directory, *(f for f in (directory / "run.json", directory / "config.json") if f.exists())]
    if user is not None and any(file.stat().st_uid != user for file in files):
        raise UserError(
            f"{directory} asks to import {path}, but belongs to another user. If you trust it, copy it to a directory "
            "of yours."
        )
    return import_object(path)
