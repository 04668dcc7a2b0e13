"""Temporary directories to prepare files in before they are moved into place: `scratch_beside`."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from neuralfunctionals.files.writing import is_abandoned

_START = ".partial-"
_in_use: set[str] = set()


@contextmanager
def scratch_beside(path: Path) -> Iterator[Path]:
    """A temporary directory next to a path, on the same file system; also removes those that killed processes left.

    Move finished files out of it with `os.replace`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for leftover in path.parent.glob(f"{_START}*"):
        # Named like the temporary files, so that abandoned ones are recognised in the same way.
        if leftover.name not in _in_use and is_abandoned(Path(f".tmp-{leftover.name.removeprefix(_START)}")):
            shutil.rmtree(leftover, ignore_errors=True)
    name = f"{_START}{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"
    scratch = path.with_name(name)
    _in_use.add(name)
    try:
        scratch.mkdir()  # never through a link
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        _in_use.discard(name)
