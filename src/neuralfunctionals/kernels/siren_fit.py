"""Calls the compiled fitting loop of `siren_fit.cpp`; the plain form is the torch engine of `inr.fit`."""

from __future__ import annotations

import ctypes

import numpy as np
import torch
from jaxtyping import Float, Float64, Int32
from torch import Tensor

from neuralfunctionals.kernels.choice import library
from neuralfunctionals.weight_space import NetworkSpec

# Axes: B input networks, N packed entries, P points, D input dimensions, O outputs, S steps.

NAME = "siren_fit"
MAX_LAYERS = 16


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
    compiled = library(NAME)
    assert compiled is not None
    widths = np.array(spec.widths, dtype=np.int32)
    parameters = parameters.clone().contiguous()
    points, targets, rates = points.contiguous(), targets.contiguous(), rates.float().contiguous()
    errors = torch.empty(len(parameters), dtype=torch.float64)
    steps = torch.empty(len(parameters), dtype=torch.int32)
    status = compiled.fit_sirens(
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
    compiled = library(NAME)
    assert compiled is not None
    widths = np.array(spec.widths, dtype=np.int32)
    parameters, points, targets = parameters.contiguous(), points.contiguous(), targets.contiguous()
    errors, gradients = torch.empty(len(parameters), dtype=torch.float64), torch.empty_like(parameters)
    status = compiled.siren_gradients(
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
