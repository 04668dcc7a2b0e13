"""The two engines that train sine networks: `FitJob`, `choose_engine`, `train_native`, `train_torch`."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Float64, Int32
from torch import Tensor

from neuralfunctionals import kernels
from neuralfunctionals.inr.recipe import FitRecipe
from neuralfunctionals.weight_space import NetworkSpec, WeightSpaceFeatures

# Axes: B input networks, N packed entries, P points, D input dimensions, O outputs.

_KERNEL = "siren_fit"
_MAX_LAYERS = 16
"""Of the compiled engine."""


def choose_engine(engine: str, spec: NetworkSpec, device: str | torch.device = "cpu") -> Literal["native", "torch"]:
    """The engine that `fit` will use."""
    suits = torch.device(device).type == "cpu" and spec.num_layers <= _MAX_LAYERS
    needs = f"the CPU and at most {_MAX_LAYERS} layers"
    return kernels.choose_engine(engine, _KERNEL, suits=suits, needs=needs)


@dataclass(frozen=True, eq=False)
class FitJob:
    """How all networks of a batch are trained; the points and errors are on the scale of their convention."""

    spec: NetworkSpec
    points: Float[Tensor, "P D"]
    omega: float
    recipe: FitRecipe
    stop_error: float
    tolerated_error: float
    """Networks with a smaller error have not diverged."""
    engine: Literal["native", "torch"]
    num_threads: int
    batch_size: int | None
    device: torch.device


Trained = tuple[Float[Tensor, "B N"], Float64[Tensor, "B"], Int32[Tensor, "B"]]
"""Parameters, mean squared errors, and steps."""


def train_native(
    job: FitJob, parameters: Float[Tensor, "B N"], targets: Float[Tensor, "B P O"], report: Callable[[int], None]
) -> Trained:
    """Trains every network separately, on one thread, with the interpreter's lock released."""
    recipe, rates = job.recipe, job.recipe.rates()
    widths, points = np.array(job.spec.widths, dtype=np.int32), job.points.contiguous()
    cancelled = torch.zeros(1, dtype=torch.int32)
    # The pieces only make the progress bar smoother.
    pieces = torch.arange(len(parameters)).split(16)

    def run(piece: Tensor) -> Trained:
        trained, target = parameters[piece].contiguous(), targets[piece].contiguous()
        errors, steps = torch.zeros(len(piece), dtype=torch.float64), torch.zeros(len(piece), dtype=torch.int32)
        status = kernels.call(
            _KERNEL,
            "fit_sirens",
            len(piece),
            ctypes.c_int32(job.spec.num_layers),
            widths,
            ctypes.c_float(job.omega),
            len(points),
            points,
            target,
            trained,
            ctypes.c_int32(len(rates)),
            rates,
            ctypes.c_int32(recipe.optimizer == "adam"),
            ctypes.c_float(recipe.beta1),
            ctypes.c_float(recipe.beta2),
            ctypes.c_float(recipe.epsilon),
            ctypes.c_double(job.stop_error),
            steps,
            errors,
            cancelled,
        )
        if status == 2:
            raise KeyboardInterrupt
        return trained, errors, steps

    results = []
    with ThreadPoolExecutor(job.num_threads) as pool:
        try:
            for result in map(run, pieces) if job.num_threads == 1 else pool.map(run, pieces):
                results.append(result)
                report(len(result[0]))
        except BaseException:
            cancelled.fill_(1)
            pool.shutdown(cancel_futures=True)
            raise
    return _join(results)


def train_torch(
    job: FitJob, parameters: Float[Tensor, "B N"], targets: Float[Tensor, "B P O"], report: Callable[[int], None]
) -> Trained:
    """Trains batches of networks on any device."""
    # On the CPU a batch should stay in the cache; elsewhere it should fill the device.
    size = job.batch_size or (32 if job.device.type == "cpu" else 2048)
    results = []
    for piece, target in zip(parameters.split(size), targets.split(size), strict=True):
        results.append(_train_batch(job, piece.to(job.device), job.points.to(job.device), target.to(job.device)))
        report(len(piece))
    return _join(results)


def _join(results: list[Any]) -> Trained:
    parameters, errors, steps = (torch.cat(parts) for parts in zip(*results, strict=True))
    return parameters, errors, steps


@torch.no_grad()
def _train_batch(
    job: FitJob, parameters: Float[Tensor, "B N"], points: Float[Tensor, "P D"], targets: Float[Tensor, "B P O"]
) -> Trained:
    """Trains all networks of a batch together; finished ones are removed from it."""
    recipe = job.recipe
    rates = recipe.rates().tolist()
    finished = parameters.clone()
    errors = torch.full((len(parameters),), math.nan, dtype=torch.float64)
    steps = torch.zeros(len(parameters), dtype=torch.int32)
    places = torch.arange(len(parameters))
    first, second = torch.zeros_like(parameters), torch.zeros_like(parameters)
    power1 = power2 = 1.0
    for step in range(recipe.steps + 1):
        is_last = step == recipe.steps
        error, gradient = mean_squared_gradients(
            job.spec, parameters, points, targets, omega=job.omega, with_gradient=not is_last
        )
        done = ~(error > job.stop_error) | ~error.isfinite() | is_last
        if bool(done.any()):
            ready = done.cpu()
            finished[places[ready]] = parameters[done]
            errors[places[ready]] = error[done].double().cpu()
            steps[places[ready]] = step
            keep = ~done
            places, targets, gradient = places[~ready], targets[keep], gradient[keep]
            parameters, first, second = parameters[keep], first[keep], second[keep]
            if not len(places):
                break
        power1, power2 = power1 * recipe.beta1, power2 * recipe.beta2
        if recipe.optimizer == "adam":
            first.lerp_(gradient, 1 - recipe.beta1)
            second.mul_(recipe.beta2).addcmul_(gradient, gradient, value=1 - recipe.beta2)
            scale = (second / (1 - power2)).sqrt_().add_(recipe.epsilon)
            parameters.addcdiv_(first, scale, value=-rates[step] / (1 - power1))
        else:
            first.mul_(recipe.beta1).add_(gradient)
            parameters.add_(first, alpha=-rates[step])
    return finished.cpu(), errors, steps


def mean_squared_gradients(
    spec: NetworkSpec,
    parameters: Float[Tensor, "B N"],
    points: Float[Tensor, "P D"],
    targets: Float[Tensor, "B P O"],
    *,
    omega: float,
    with_gradient: bool = True,
) -> tuple[Float[Tensor, "B"], Float[Tensor, "B N"]]:
    r"""Mean squared errors of a batch of sine networks and their gradients, in closed form.

    With $z = Wh + b$, $h' = \sin\omega z$ and $\delta = \partial/\partial z$: $\partial_W = \delta h^\top$,
    $\partial_b = \sum\delta$, and $\delta$ of the layer before is $W^\top\delta \cdot \omega\cos\omega z$.
    """
    features = WeightSpaceFeatures(spec, parameters[..., None])
    weights, biases = [w[..., 0] for w in features.weights], [b[..., 0] for b in features.biases]
    inputs = [points.expand(len(parameters), -1, -1)]
    slopes: list[Tensor] = []
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        phase = torch.baddbmm(bias[:, None], inputs[-1], weight.mT).mul_(omega)
        inputs.append(phase.sin())
        slopes.append(phase.cos_().mul_(omega) if with_gradient else phase)
    difference = torch.baddbmm(biases[-1][:, None], inputs[-1], weights[-1].mT).sub_(targets)
    error = difference.square().flatten(1).mean(1)
    if not with_gradient:
        return error, torch.zeros_like(parameters)
    gradient = torch.empty_like(parameters)
    views = {(g.layer, g.kind): gradient[:, g.start : g.stop].unflatten(1, g.shape) for g in spec.groups}
    delta = difference.mul_(2 / difference[0].numel())
    for layer in range(spec.num_layers, 0, -1):
        views[layer, "weight"].copy_(torch.bmm(delta.mT, inputs[layer - 1]))
        views[layer, "bias"].copy_(delta.sum(1))
        if layer > 1:
            delta = torch.bmm(delta, weights[layer - 1]).mul_(slopes[layer - 2])
    return error, gradient
