"""Builds the package's C++ files on first use, where the machine has a compiler, and keeps the results in a cache."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

_FLAGS = ("-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-shared", "-fPIC", "-std=c++17")


def cache_directory() -> Path:
    """Where the package keeps what it can make again: `NF_CACHE`, or `~/.cache/neuralfunctionals`."""
    return Path(os.environ.get("NF_CACHE") or Path.home() / ".cache" / "neuralfunctionals")


def find_compiler() -> str | None:
    """The machine's C++ compiler: `CXX`, or the first of c++, g++ and clang++."""
    wanted = os.environ.get("CXX")
    return shutil.which(wanted) if wanted else next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)


@functools.cache
def load_library(source: Path, *flags: str) -> ctypes.CDLL | None:
    """The compiled source, built if need be; nothing where that is impossible.

    Args:
        source: A C++ file.
        flags: Options of the compiler beyond the usual ones.
    """
    compiler = find_compiler()
    if compiler is None:
        return None
    try:
        return ctypes.CDLL(str(_build(compiler, source, (*_FLAGS, *flags))))
    except (OSError, subprocess.SubprocessError):
        return None


def _build(compiler: str, source: Path, flags: tuple[str, ...]) -> Path:
    """Compiles for this very processor, once: the result's name tells source, headers, compiler and processor apart."""
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=60).stdout
    texts = [file.read_bytes() for file in (source, *sorted(source.parent.glob("*.hpp")))]
    key = hashlib.sha256(b"\0".join([*texts, version, " ".join(flags).encode(), _processor()])).hexdigest()
    directory = cache_directory() / "kernels"
    built = directory / f"{source.stem}-{key[:16]}.so"
    if built.exists():
        return built
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        result = Path(scratch) / built.name
        for native in (["-march=native"], ["-mcpu=native"], []):
            command = [compiler, *flags, *native, "-o", str(result), str(source)]
            if subprocess.run(command, capture_output=True, timeout=300).returncode == 0:
                break
        else:
            raise OSError(f"{compiler} cannot build {source}.")
        os.replace(result, built)
    return built


def _processor() -> bytes:
    try:
        lines = Path("/proc/cpuinfo").read_bytes().split(b"\n\n")[0].splitlines()
        return b"\n".join(x for x in lines if x.split(b"\t")[0] in (b"model name", b"flags", b"Features", b"CPU part"))
    except OSError:
        return f"{platform.machine()} {platform.processor()}".encode()
