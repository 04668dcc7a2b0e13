"""The trained models inside the package: `SHIPPED`, `find_shipped`."""

from __future__ import annotations

import os
from pathlib import Path

_FOLDER = Path(__file__).parent / "pretrained"

SHIPPED: tuple[str, ...] = tuple(sorted(path.parent.name for path in _FOLDER.glob("*/run.json")))
"""Their names. Each is a run directory without its checkpoints, with a card, `README.md`."""


def find_shipped(name: str | os.PathLike[str]) -> Path:
    """The directory of a shipped model by its name; any other name, or a directory that is there, stays a path.

    Example:
        >>> find_shipped("some/run")
        PosixPath('some/run')
    """
    path = Path(name)
    return _FOLDER / os.fspath(name) if os.fspath(name) in SHIPPED and not path.is_dir() else path
