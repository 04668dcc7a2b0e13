"""The trained models in the package: `SHIPPED`, `find_shipped`."""

from __future__ import annotations

import os
from pathlib import Path

from neuralfunctionals.errors import UserError, nearest

_FOLDER = Path(__file__).parent / "pretrained"

SHIPPED: tuple[str, ...] = tuple(sorted(path.parent.name for path in _FOLDER.glob("*/run.json")))
"""Their names. Each is a run directory without checkpoints, with a model card, `README.md`."""


def find_shipped(name: str | os.PathLike[str]) -> Path:
    """The directory of a shipped model by its name; any other name or existing directory is returned as a path.

    Example:
        >>> find_shipped("some/run")
        PosixPath('some/run')
    """
    path, word = Path(name), os.fspath(name)
    if path.is_dir() or word not in SHIPPED:
        # A word with a slash may be the name of a model on the hub.
        if not path.exists() and (hint := nearest(word, SHIPPED, cutoff=0.8 if "/" in word else 0.6)):
            raise UserError(f"Found no run or model '{word}'.{hint} nf models lists the shipped models.")
        return path
    return _FOLDER / word
