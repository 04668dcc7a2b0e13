"""Atomic writing of files, and removal of the temporary files that killed processes leave."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from neuralfunctionals.files.checksums import SUMS, format_sums, read_sums, sha256_of

_TEMPORARY = re.compile(r"\.tmp-.+-\d+(\.[0-9a-f]+)?-.+", re.DOTALL)
in_use: set[str] = set()
"""Names of the temporary files and directories that this process is using."""


def write_whole(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Writes a file completely or not at all; also removes temporary files that killed processes left next to it.

    Args:
        path: The file.
        data: Its content.
        sync: Whether to wait until the data would survive a power failure.
    """
    remove_abandoned(path.parent)
    with _temporary_with(path, data, sync=sync) as temporary:
        os.replace(temporary, path)
    if sync:
        _sync_directory(path.parent)


def write_new(path: Path, data: bytes) -> bool:
    """Writes a file completely, unless it already exists; of several writers exactly one succeeds.

    Returns:
        Whether it was written.
    """
    with _temporary_with(path, data, sync=True) as temporary:
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS):
                raise
            if not _create(path, data):  # a file system without links
                return False
    _sync_directory(path.parent)
    return True


def write_recorded(path: Path, data: bytes) -> None:
    """Writes a file completely and lists its checksum in `SHA256SUMS`; consistent even if killed in between."""
    digest = hashlib.sha256(data).hexdigest()
    sums = read_sums(path.parent)
    before = sums.get(path.name) or ([sha256_of(path)] if path.is_file() else [])
    write_sums(path.parent, {**sums, path.name: list(dict.fromkeys([digest, *before]))})
    write_whole(path, data)
    # If the power fails now, the previous list is still right.
    write_sums(path.parent, {**sums, path.name: [digest]}, sync=False)


def write_sums(directory: Path, sums: dict[str, list[str]], *, sync: bool = True) -> None:
    """Replaces the checksums that are listed in a directory."""
    write_whole(directory / SUMS, format_sums(sums), sync=sync)


@contextmanager
def _temporary_with(path: Path, data: bytes, *, sync: bool) -> Iterator[Path]:
    """A temporary file with this content next to a path; removed afterwards, unless it was renamed."""
    name = f".tmp-{socket.gethostname()}-{os.getpid()}.{secrets.token_hex(4)}-{path.name}"
    temporary = path.with_name(name)
    in_use.add(name)
    try:
        if not _create(temporary, data, sync=sync):
            raise FileExistsError(errno.EEXIST, "another process created this temporary file", str(temporary))
        yield temporary
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        in_use.discard(name)


def _create(path: Path, data: bytes, *, sync: bool = True) -> bool:
    """Creates and writes a file without following links; returns False if it already exists."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o666)
    except FileExistsError:
        return False
    with open(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        if sync:
            os.fsync(file.fileno())
    return True


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def readable_name(path: Path) -> str:
    r"""A file's name as text; bytes that are not valid text are escaped.

    Example:
        >>> readable_name(Path("caf\udce9.pth"))
        'caf\\xe9.pth'
    """
    return os.fsencode(path.name).decode(errors="backslashreplace")


# Files that killed processes leave.


def is_temporary(path: Path) -> bool:
    """Whether this is a temporary file of `write_whole`."""
    return _TEMPORARY.fullmatch(path.name) is not None


def is_abandoned(path: Path) -> bool:
    """Whether this is a temporary file or directory of a process on this machine that has ended."""
    found = re.match(rf"\.(?:tmp|partial)-{re.escape(socket.gethostname())}-(\d{{1,10}})(?:\.[0-9a-f]+)?-", path.name)
    if not found:
        return False
    if int(found[1]) == os.getpid():  # this process, or an earlier one with the same id
        return path.name not in in_use
    return not is_running(int(found[1]))


def is_running(process: int) -> bool:
    """Whether a process with this id is running on this machine."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def remove_abandoned(directory: Path) -> None:
    """Removes the temporary files of processes that have ended."""
    with suppress(OSError):
        for name in os.listdir(directory):
            if name.startswith(".tmp-") and is_abandoned(directory / name):
                (directory / name).unlink(missing_ok=True)
