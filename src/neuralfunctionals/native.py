"""Builds C++ files where the machine has a compiler, and keeps the results in a cache.

A library runs with the user's rights, and a damaged one can kill the process. So one from the cache is loaded only if
nobody else could have put it there or changed it, and if its SHA-256, kept beside it, still fits; else it is built
again. If the cache cannot be trusted, the library is built in a private directory that is gone once it is loaded.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import filter as matching
from pathlib import Path

from neuralfunctionals.machine import cache_directory

_FLAGS = ("-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-shared", "-fPIC", "-std=c++17")
_TEMPORARY = ".tmp-"
_ABANDONED_SECONDS = 3600


def find_compiler() -> str | None:
    """The machine's C++ compiler: `CXX`, or the first of c++, g++ and clang++."""
    wanted = os.environ.get("CXX")
    return shutil.which(wanted) if wanted else next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)


def load_library(source: Path, *flags: str, build: bool = True) -> ctypes.CDLL | None:
    """The compiled source; None if it is not in the cache and cannot or may not be built.

    Without a compiler, a library that one built here earlier is used.

    Args:
        source: A C++ file.
        flags: Options of the compiler beyond the usual ones.
        build: Whether to run the compiler if need be.

    Raises:
        OSError: The compiler or the loader failed.
    """
    flags = (*_FLAGS, *flags)
    compiler = find_compiler()
    try:
        name = _name(source, flags, compiler)
        with _open_cache() as cache:
            found = None if cache is None else _find(cache, name)
            if found is None and compiler is not None and build:
                library = _build(compiler, source, flags)
                found = None if cache is None else _keep(cache, name, library)
                if found is None:
                    return _load_private(library)
            return None if found is None else ctypes.CDLL(os.path.join(_reach(cache), found))
    except subprocess.SubprocessError as error:
        raise OSError(f"{compiler} does not work: {error}") from error


def _name(source: Path, flags: tuple[str, ...], compiler: str | None) -> str:
    """The name of a library's file, which tells source, headers, options, processor and compiler apart.

    If there is no compiler, a pattern for those of any compiler.
    """
    texts = [file.read_bytes() for file in (source, *sorted(source.parent.glob("*.hpp")))]
    key = hashlib.sha256(b"\0".join([*texts, " ".join(flags).encode(), _processor()])).hexdigest()[:16]
    if compiler is None:
        return f"{source.stem}-{key}-*.so"
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=60).stdout
    return f"{source.stem}-{key}-{hashlib.sha256(version).hexdigest()[:16]}.so"


# The cache. Everything goes through a descriptor of its directory: nobody can exchange it between check and use.


@contextmanager
def _open_cache() -> Iterator[int | None]:
    """The descriptor of the directory of libraries; nothing if there can be none or others could write to it."""
    path = cache_directory() / "kernels"
    try:
        if os.name != "posix":
            raise OSError("Owners and modes of files are only known on POSIX systems.")
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        cache = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        yield None
        return
    try:
        if _is_private(cache):
            yield cache
            return
        warnings.warn(
            f"{path} belongs to another user or can be written by others: libraries in it are not used, and are built "
            f"anew by each process. Run 'chmod go-w {path}', or set NF_CACHE to a directory of your own.",
            stacklevel=2,
        )
        yield None
    finally:
        os.close(cache)


def _is_private(descriptor: int) -> bool:
    """Whether a file or directory belongs to the user, and nobody else can write to it."""
    status = os.fstat(descriptor)
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _reach(cache: int | None) -> str:
    """A path to the opened directory itself, wherever its name leads by now."""
    return f"/proc/self/fd/{cache}" if os.path.isdir("/proc/self/fd") else os.fspath(cache_directory() / "kernels")


def _find(cache: int, name: str) -> str | None:
    """The newest intact library of that name; files that others could have made or changed do not count."""
    intact = {}
    for file in matching(os.listdir(cache), name):
        content, checksum = _read(cache, file), _read(cache, f"{file}.sha256")
        if content is not None and checksum == _checksum(content, file):
            intact[file] = os.stat(file, dir_fd=cache).st_mtime
    return max(intact, key=lambda file: intact[file], default=None)


def _checksum(content: bytes, name: str) -> bytes:
    """As `sha256sum` writes it."""
    return f"{hashlib.sha256(content).hexdigest()}  {name}\n".encode()


def _read(cache: int, name: str) -> bytes | None:
    try:
        # Not blocking: something else than a file may have this name.
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=cache)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode) or not _is_private(descriptor):
            return None
        return file.read()


def _keep(cache: int, name: str, library: bytes) -> str | None:
    """Writes a library and its checksum into the cache, each whole or not at all; nothing if it cannot be kept."""
    try:
        for file in os.listdir(cache):  # what killed processes left
            if file.startswith(_TEMPORARY) and os.stat(file, dir_fd=cache).st_mtime < time.time() - _ABANDONED_SECONDS:
                os.unlink(file, dir_fd=cache)
        _write(cache, name, library)
        _write(cache, f"{name}.sha256", _checksum(library, name))
    except OSError:
        return None
    return name


def _write(cache: int, name: str, content: bytes) -> None:
    temporary = f"{_TEMPORARY}{os.getpid()}-{os.urandom(4).hex()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=cache)
    try:
        with open(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, name, src_dir_fd=cache, dst_dir_fd=cache)
    except BaseException:
        os.unlink(temporary, dir_fd=cache)
        raise


# Building.


def _build(compiler: str, source: Path, flags: tuple[str, ...]) -> bytes:
    """Compiles for this very processor."""
    print(f"neuralfunctionals: compiling {source.name}, about 10 s, once", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="neuralfunctionals-") as scratch:
        result = Path(scratch) / "library.so"
        for native in (["-march=native"], ["-mcpu=native"], []):
            command = [compiler, *flags, *native, "-o", str(result), str(source)]
            run = subprocess.run(command, capture_output=True, timeout=300, text=True, errors="replace")
            if run.returncode == 0:
                return result.read_bytes()
    lines = [line.strip() for line in run.stderr.splitlines() if "error" in line] or [f"exit code {run.returncode}"]
    raise OSError(f"{compiler} cannot build {source.name}: {lines[0]}")


def _load_private(library: bytes) -> ctypes.CDLL:
    """Loads a library from a directory of its own; it stays loaded when its file is gone."""
    with tempfile.TemporaryDirectory(prefix="neuralfunctionals-") as scratch:
        file = Path(scratch) / "library.so"
        file.write_bytes(library)
        return ctypes.CDLL(str(file))


def _processor() -> bytes:
    try:
        lines = Path("/proc/cpuinfo").read_bytes().split(b"\n\n")[0].splitlines()
        return b"\n".join(x for x in lines if x.split(b"\t")[0] in (b"model name", b"flags", b"Features", b"CPU part"))
    except OSError:
        return f"{platform.machine()} {platform.processor()}".encode()
