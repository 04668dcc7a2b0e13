"""Temporary directories to prepare files in before they are moved into place: `scratch_beside`."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from neuralfunctionals.files.writing import in_use, is_abandoned


@contextmanager
def scratch_beside(path: Path) -> Iterator[Path]:
    """A temporary directory next to a path, on the same file system; also removes those that killed processes left.

    Move finished files out of it with `os.replace`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for leftover in path.parent.glob(".partial-*"):
        if is_abandoned(leftover):
            shutil.rmtree(leftover, ignore_errors=True)
    name = f".partial-{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"
    scratch = path.with_name(name)
    in_use.add(name)
    try:
        scratch.mkdir()  # never through a link
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        in_use.discard(name)
