"""Downloads the publishers' files of an image set and checks them."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import tarfile
import tempfile
import urllib.request
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuralfunctionals.errors import UserError
from neuralfunctionals.files.writing import write_whole

_TIMEOUT_SECONDS = 30
_CHUNK = 1 << 18
_MAX_BYTES = 256 << 20
"""Largest size of a download, and of a file in it: CIFAR-10, the largest download, has 170 MB."""


@dataclass(frozen=True)
class Source:
    """Where an image set comes from: its folder under the data root and the files in it, with their SHA-256."""

    folder: str
    url: str
    archives: Mapping[str, tuple[str, ...]]
    """Each download and the files it holds."""
    sha256: Mapping[str, str]


def missing_files(source: Source, root: Path) -> list[Path]:
    """The files that are not there yet."""
    return [path for name in source.sha256 if not (path := root / source.folder / name).is_file()]


def download(
    name: str,
    source: Source,
    root: Path,
    *,
    mirror: str | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> None:
    """Downloads the files that are missing from the data root.

    Args:
        name: The image set, for messages and as the folder of a mirror.
        source: Its files.
        root: The data root.
        mirror: URL of another server with the same files: `<mirror>/<name>/<file>`.
        progress: Called with the file, the bytes so far and the total bytes (0 if unknown).
    """
    missing = {path.name for path in missing_files(source, root)}
    folder = root / source.folder
    for archive, members in source.archives.items():
        if not missing & set(members):
            continue
        url = f"{mirror.rstrip('/')}/{name}/{archive}" if mirror else f"{source.url}/{archive}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as packed:  # has no name: a killed download leaves no file
                _fetch(url, packed, lambda done, total, file=archive: progress and progress(file, done, total))
                packed.seek(0)
                _unpack(packed, members, folder, source.sha256, url)
        except (OSError, EOFError, ValueError, http.client.HTTPException, tarfile.TarError, zlib.error) as error:
            wanted = ", ".join(sorted(missing))
            raise UserError(
                f"The image set '{name}' is not complete under {root}, and {url} could not be downloaded: {error}. Put "
                f"the publisher's files ({wanted}) into {folder}, set another data root (--data-root, NF_DATA_ROOT), "
                "or use an embedded set, such as --images mnist-sample (fashion-sample, shapes-sample)."
            ) from error


def _fetch(url: str, target, report: Callable[[int, int], None]) -> None:
    with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as response:
        total = int(response.headers.get("Content-Length") or 0)
        done = 0
        while chunk := response.read(_CHUNK):
            target.write(chunk)
            done += len(chunk)
            if done > _MAX_BYTES:
                raise OSError(f"it is larger than {_MAX_BYTES} bytes")
            report(done, total)
        if total and done != total:
            raise OSError(f"the connection ended after {done} of {total} bytes")


def _unpack(packed, members: tuple[str, ...], folder: Path, sha256: Mapping[str, str], url: str) -> None:
    if not url.endswith(".tar.gz"):
        with gzip.open(packed) as stream:
            _place(stream, folder / members[0], sha256[members[0]], url)
        return
    with tarfile.open(fileobj=packed, mode="r:gz") as archive:
        # Read by name and as bytes: the archive does not determine where anything is written.
        inside = {Path(m.name).name: m for m in archive.getmembers() if m.isfile()}
        for member in members:
            stream = archive.extractfile(inside[member]) if member in inside else None
            if stream is None:
                raise OSError(f"the archive does not hold {member}")
            _place(stream, folder / member, sha256[member], url)


def _place(stream: Any, path: Path, sha256: str, url: str) -> None:
    data = stream.read(_MAX_BYTES + 1)  # a small archive can hold any amount of zeros
    if len(data) > _MAX_BYTES:
        raise OSError(f"{path.name} is larger than {_MAX_BYTES} bytes")
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise OSError(f"{path.name} has the wrong checksum: expected sha256 {sha256}, got {found}")
    write_whole(path, data)
