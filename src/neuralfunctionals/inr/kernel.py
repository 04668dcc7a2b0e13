"""Builds and calls the compiled fitting loop of `kernel.cpp`, where the machine has a C++ compiler."""

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

import numpy as np
import torch
from jaxtyping import Float, Float64, Int32
from torch import Tensor

from neuralfunctionals.weight_space import NetworkSpec

# Axes: B input networks, N packed entries, P points, D input dimensions, O outputs, S steps.

_SOURCE = Path(__file__).with_name("kernel.cpp")
_FLAGS = ("-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-shared", "-fPIC", "-std=c++17")
_MAX_LAYERS = 16


def cache_directory() -> Path:
    """Where the package keeps what it can make again: `NF_CACHE`, or `~/.cache/neuralfunctionals`."""
    return Path(os.environ.get("NF_CACHE") or Path.home() / ".cache" / "neuralfunctionals")


def find_compiler() -> str | None:
    """The machine's C++ compiler: `CXX`, or the first of c++, g++ and clang++."""
    wanted = os.environ.get("CXX")
    return shutil.which(wanted) if wanted else next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)


def is_available(spec: NetworkSpec | None = None) -> bool:
    """Whether the compiled loop can be used here, for this network."""
    return (spec is None or spec.num_layers <= _MAX_LAYERS) and _library() is not None


def fit_networks(
    spec: NetworkSpec,
    parameters: Float[Tensor, "B N"],
    points: Float[Tensor, "P D"],
    targets: Float[Tensor, "B P O"],
    rates: Float[Tensor, "S"],
    *,
    omega: float,
    use_adam: bool,
    betas: tuple[float, float],
    epsilon: float,
    stop_error: float,
    cancelled: Int32[Tensor, "1"],
) -> tuple[Float[Tensor, "B N"], Float64[Tensor, "B"], Int32[Tensor, "B"]]:
    """Trains every network alone, on one thread and without the interpreter's lock.

    Returns:
        The trained parameters, the final mean squared errors and the number of steps of each.
    """
    library = _library()
    assert library is not None
    widths = np.array(spec.widths, dtype=np.int32)
    parameters = parameters.clone().contiguous()
    points, targets, rates = points.contiguous(), targets.contiguous(), rates.float().contiguous()
    errors = torch.empty(len(parameters), dtype=torch.float64)
    steps = torch.empty(len(parameters), dtype=torch.int32)
    status = library.fit_sirens(
        ctypes.c_int64(len(parameters)),
        ctypes.c_int32(spec.num_layers),
        ctypes.c_void_p(widths.ctypes.data),
        ctypes.c_float(omega),
        ctypes.c_int64(len(points)),
        _address(points),
        _address(targets),
        _address(parameters),
        ctypes.c_int32(len(rates)),
        _address(rates),
        ctypes.c_int32(use_adam),
        ctypes.c_float(betas[0]),
        ctypes.c_float(betas[1]),
        ctypes.c_float(epsilon),
        ctypes.c_double(stop_error),
        _address(steps),
        _address(errors),
        _address(cancelled),
    )
    if status == 1:
        raise MemoryError("Not enough memory to fit one network.")
    if status == 2:
        raise KeyboardInterrupt
    return parameters, errors, steps


def mean_squared_gradients(
    spec: NetworkSpec,
    parameters: Float[Tensor, "B N"],
    points: Float[Tensor, "P D"],
    targets: Float[Tensor, "B P O"],
    *,
    omega: float,
) -> tuple[Float64[Tensor, "B"], Float[Tensor, "B N"]]:
    """Mean squared errors and their gradients, as the fitting loop computes them."""
    library = _library()
    assert library is not None
    widths = np.array(spec.widths, dtype=np.int32)
    parameters, points, targets = parameters.contiguous(), points.contiguous(), targets.contiguous()
    errors, gradients = torch.empty(len(parameters), dtype=torch.float64), torch.empty_like(parameters)
    status = library.siren_gradients(
        ctypes.c_int64(len(parameters)),
        ctypes.c_int32(spec.num_layers),
        ctypes.c_void_p(widths.ctypes.data),
        ctypes.c_float(omega),
        ctypes.c_int64(len(points)),
        _address(points),
        _address(targets),
        _address(parameters),
        _address(errors),
        _address(gradients),
    )
    assert status == 0
    return errors / targets[0].numel(), gradients


def _address(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _library() -> ctypes.CDLL | None:
    return load_library(_SOURCE)


@functools.cache
def load_library(source: Path) -> ctypes.CDLL | None:
    """The functions of a C++ file, built on first use; nothing where there is no compiler or it fails."""
    compiler = find_compiler()
    if compiler is None:
        return None
    try:
        return ctypes.CDLL(str(_build(compiler, source)))
    except (OSError, subprocess.SubprocessError):
        return None


def _build(compiler: str, source: Path) -> Path:
    """Compiles for this very processor, once: the result's name tells source, compiler and processor apart."""
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=60).stdout
    key = hashlib.sha256(
        b"\0".join([source.read_bytes(), version, " ".join(_FLAGS).encode(), _processor()])
    ).hexdigest()
    directory = cache_directory() / "kernels"
    built = directory / f"{source.stem}-{key[:16]}.so"
    if built.exists():
        return built
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        result = Path(scratch) / built.name
        for native in (["-march=native"], ["-mcpu=native"], []):
            command = [compiler, *_FLAGS, *native, "-o", str(result), str(source)]
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
