"""Files that are written whole or not at all, and what a killed process leaves of them."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

_TEMPORARY = re.compile(r"\.tmp-(?P<host>.+)-(?P<pid>\d+)-.+")


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all, and makes sure that it stays."""
    temporary = path.with_name(f".tmp-{socket.gethostname()}-{os.getpid()}-{path.name}")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def is_temporary(path: Path) -> bool:
    """Whether this is a file that `write_whole` has not finished."""
    return _TEMPORARY.fullmatch(path.name) is not None


def is_abandoned(path: Path) -> bool:
    """Whether this is a temporary file of a process that has ended; one of another machine is left alone."""
    found = _TEMPORARY.fullmatch(path.name)
    if not found or found["host"] != socket.gethostname():
        return False
    try:
        os.kill(int(found["pid"]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return int(found["pid"]) == os.getpid()
