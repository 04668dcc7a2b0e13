"""Checksums of files, in a file `SHA256SUMS` next to them: `sha256_of`, `require_intact`, `read_intact`.

The format is that of `sha256sum`. While a file is being replaced, it is listed with its old and its new checksum.
Files that are not listed are accepted: older releases did not write checksums.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from neuralfunctionals.errors import UserError

SUMS = "SHA256SUMS"


def sha256_of(file: Path) -> str:
    """The checksum of a file, read in chunks."""
    with open(file, "rb") as stream:
        digest = hashlib.sha256()
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def read_sums(directory: Path) -> dict[str, list[str]]:
    """The checksums listed in a directory, by file name; malformed lines are skipped."""
    try:
        lines = (directory / SUMS).read_text(errors="replace").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    found: dict[str, list[str]] = {}
    for line in lines:
        digest, separator, name = line.partition("  ")
        if separator and len(digest) == 64:
            found.setdefault(name, []).append(digest)
    return found


def format_sums(sums: dict[str, list[str]]) -> bytes:
    """The inverse of `read_sums`."""
    return "".join(f"{digest}  {name}\n" for name in sorted(sums) for digest in sums[name]).encode()


def known_sums(file: Path) -> list[str]:
    """The checksums listed for a file, in its directory or the one above; an empty list if it is not listed."""
    above = file.parent.parent
    return read_sums(file.parent).get(file.name) or read_sums(above).get(f"{file.parent.name}/{file.name}", [])


def require_intact(file: Path, remedy: str) -> None:
    """Raises if a file does not have the checksum listed for it, if there is one.

    Args:
        file: The file.
        remedy: A sentence that says what to do about a damaged file.
    """
    known = known_sums(file)
    if known:
        _require_known(file, sha256_of(file), known, remedy)


def read_intact(file: Path, remedy: str) -> bytes:
    """Reads a file, with the check of `require_intact`."""
    data = file.read_bytes()
    known = known_sums(file)
    if known:
        _require_known(file, hashlib.sha256(data).hexdigest(), known, remedy)
    return data


def _require_known(file: Path, digest: str, known: list[str], remedy: str) -> None:
    if digest not in known:
        raise UserError(
            f"{file} is damaged: it does not have the checksum listed in {SUMS}. {remedy} If you changed it on "
            f"purpose, remove its line from {SUMS}."
        )
