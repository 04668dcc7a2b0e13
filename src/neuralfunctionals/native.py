"""Compiles C++ files if the machine has a compiler, and caches the libraries.

A library runs with the user's rights, and a damaged one can crash the process. A cached library is therefore loaded
only if no other user could have written it, and if it matches the SHA-256 stored next to it; otherwise it is built
again. If the cache cannot be trusted, the library is built in a private directory that is deleted after loading.
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
    """Loads the compiled source; returns None if it is not in the cache and cannot or may not be built.

    Without a compiler, a library that was built earlier is used.

    Args:
        source: A C++ file.
        flags: Additional compiler options.
        build: Whether to compile the source if it is not in the cache.

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
    """The file name of a library, unique to its source, headers, options, processor and compiler.

    Without a compiler, a pattern that matches those of any compiler.
    """
    texts = [file.read_bytes() for file in (source, *sorted(source.parent.glob("*.hpp")))]
    key = hashlib.sha256(b"\0".join([*texts, " ".join(flags).encode(), _processor()])).hexdigest()[:16]
    if compiler is None:
        return f"{source.stem}-{key}-*.so"
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=60).stdout
    return f"{source.stem}-{key}-{hashlib.sha256(version).hexdigest()[:16]}.so"


# The cache. It is accessed through a descriptor of its directory, which cannot be replaced between check and use.


@contextmanager
def _open_cache() -> Iterator[int | None]:
    """The descriptor of the library directory; None if it cannot be created or others could write to it."""
    path = cache_directory() / "kernels"
    try:
        if os.name != "posix":
            raise OSError("File owners and modes are only available on POSIX systems.")
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
            f"{path} belongs to another user or can be written by others: its libraries are not used, and each process "
            f"builds them again. Run 'chmod go-w {path}', or set NF_CACHE to a directory of your own.",
            stacklevel=2,
        )
        yield None
    finally:
        os.close(cache)


def _is_private(descriptor: int) -> bool:
    """Whether a file or directory belongs to the user, and no one else can write to it."""
    status = os.fstat(descriptor)
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _reach(cache: int | None) -> str:
    """A path to the opened directory itself, even if its name now leads elsewhere."""
    return f"/proc/self/fd/{cache}" if os.path.isdir("/proc/self/fd") else os.fspath(cache_directory() / "kernels")


def _find(cache: int, name: str) -> str | None:
    """The newest intact library of that name; ignores files that others could have created or changed."""
    intact = {}
    for file in matching(os.listdir(cache), name):
        content, checksum = _read(cache, file), _read(cache, f"{file}.sha256")
        if content is not None and checksum == _checksum(content, file):
            intact[file] = os.stat(file, dir_fd=cache).st_mtime
    return max(intact, key=lambda file: intact[file], default=None)


def _checksum(content: bytes, name: str) -> bytes:
    """The checksum in the format of `sha256sum`."""
    return f"{hashlib.sha256(content).hexdigest()}  {name}\n".encode()


def _read(cache: int, name: str) -> bytes | None:
    try:
        # Non-blocking, because the name may belong to something other than a regular file.
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=cache)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode) or not _is_private(descriptor):
            return None
        return file.read()


def _keep(cache: int, name: str, library: bytes) -> str | None:
    """Writes a library and its checksum to the cache, each atomically; returns None if this fails."""
    try:
        for file in os.listdir(cache):  # left by killed processes
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
    """Compiles for the processor of this machine."""
    print(f"neuralfunctionals: compiling {source.name} (once, about 10 s)", file=sys.stderr, flush=True)
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
    """Loads a library from a temporary directory; it stays loaded after its file is deleted."""
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
