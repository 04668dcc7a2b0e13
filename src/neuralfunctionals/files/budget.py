"""A limit on the memory that the contents of a file may take: `require_memory`."""

from __future__ import annotations

import os
import re

from neuralfunctionals.errors import UserError

MAX_MEMORY = "NF_MAX_MEMORY"
"""The environment variable that holds the limit; the option `--max-memory` of every command sets it."""
_DEFAULT = "2G"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_GROWTH = 200
"""Largest ratio of memory to size on disk for files that take more than a small part of the limit."""


def parse_size(text: str) -> int:
    """Bytes from a size such as `500M` or `8G`.

    Example:
        >>> parse_size("8G") == 8 * 1024**3
        True
    """
    found = re.fullmatch(r"([0-9]{1,15})([KMGT]?)(iB|B)?", text.strip(), re.IGNORECASE)
    if not found or not int(found[1]):
        raise UserError(f"Expected a memory size such as 500M or 8G, but got '{text}'.")
    return int(found[1]) * _UNITS[found[2].upper()]


def memory_limit() -> int:
    """The limit in bytes: `NF_MAX_MEMORY`, or 2 GiB."""
    return parse_size(os.environ.get(MAX_MEMORY) or _DEFAULT)


def require_memory(size: int, what: str, *, stored: int | None = None) -> None:
    """Raises if something would take more memory than allowed; call it before allocating any of it.

    Args:
        size: Its bytes in memory.
        what: Its name, for the message.
        stored: Its bytes on disk. A file that takes more than an eighth of the limit may not grow more than 200 times:
            weights and pictures never do, but files made to exhaust memory do.
    """
    limit = memory_limit()
    if size > limit:
        wanted, reason = size, f"more than the limit of {_describe(limit)}"
    elif stored is not None and size > limit // 8 and size > _GROWTH * stored:
        wanted, reason = 8 * size, f"{size // max(stored, 1)} times its size on disk ({_describe(stored)})"
    else:
        return
    gigabytes = -(-wanted // _UNITS["G"])
    raise UserError(
        f"{what} would take {_describe(size)} of memory, {reason}. If this is intended, allow more with "
        f"--max-memory {gigabytes}G or {MAX_MEMORY}={gigabytes}G."
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out; torch has no special class for it on the CPU."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "allocate memory" in str(error))


def _describe(size: int) -> str:
    unit = next((u for u in "TGMK" if size >= _UNITS[u]), "")
    return f"{size / _UNITS[unit]:.3g} {unit}iB" if unit else f"{size} bytes"
