"""Calls the compiled fitting loop of `siren_fit.cpp`; the plain form is the torch engine of `inr.fit`."""

from __future__ import annotations

import ctypes

import numpy as np
import torch
from jaxtyping import Float, Float64, Int32
from torch import Tensor

from neuralfunctionals.kernels.choice import call
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
    parameters = parameters.clone().contiguous()
    errors = torch.empty(len(parameters), dtype=torch.float64)
    steps = torch.empty(len(parameters), dtype=torch.int32)
    status = call(
        NAME,
        "fit_sirens",
        len(parameters),
        ctypes.c_int32(spec.num_layers),
        np.array(spec.widths, dtype=np.int32),
        ctypes.c_float(omega),
        len(points),
        points.contiguous(),
        targets.contiguous(),
        parameters,
        ctypes.c_int32(len(rates)),
        rates.float().contiguous(),
        ctypes.c_int32(use_adam),
        ctypes.c_float(betas[0]),
        ctypes.c_float(betas[1]),
        ctypes.c_float(epsilon),
        ctypes.c_double(stop_error),
        steps,
        errors,
        cancelled,
    )
    if status == 2:
        raise KeyboardInterrupt
    return parameters, errors, steps
