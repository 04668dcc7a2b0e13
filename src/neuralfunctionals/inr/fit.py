"""Fits sine networks to images, thousands at once: the fitting loop, its two engines, restarts."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float, Float64, Int, Int32, UInt8
from torch import Tensor

from neuralfunctionals import kernels
from neuralfunctionals.errors import UserError
from neuralfunctionals.inr.coordinates import image_grid
from neuralfunctionals.inr.form import SirenForm
from neuralfunctionals.inr.metrics import psnr_from_error
from neuralfunctionals.inr.recipe import FitRecipe, find_recipe
from neuralfunctionals.inr.siren import initial_weights
from neuralfunctionals.machine import num_cores
from neuralfunctionals.weight_space import NetworkSpec, WeightSpaceFeatures
from neuralfunctionals.weight_space.axes import DEFAULT_OMEGA

# Axes: B input networks, N packed entries, P points, D input dimensions, O outputs, S steps.

_KERNEL = "siren_fit"
_MAX_LAYERS = 16
"""Of the compiled engine."""
_MAX_RESTARTS = 6
# Margin above the requested PSNR, so that rounding elsewhere does not fall below it.
_PSNR_MARGIN_DB = 0.005


@dataclass(frozen=True, eq=False)
class FitResult:
    """Fitted networks, with quality, steps and restarts of each."""

    features: WeightSpaceFeatures
    psnr_db: Float[Tensor, "B"]
    steps: Int32[Tensor, "B"]
    restarts: Int32[Tensor, "B"]
    engine: str
    missed: Bool[Tensor, "B"]
    """Whether the requested PSNR was not reached."""


def fit(
    images: Tensor | np.ndarray,
    *,
    coordinates: Float[Tensor, "P D"] | None = None,
    recipe: str | FitRecipe = "default",
    hidden: Sequence[int] = (32, 32),
    omega: float = DEFAULT_OMEGA,
    convention: str = "paper",
    psnr_db: float | None = None,
    seed: int = 0,
    items: Int[Tensor, "_B 2"] | None = None,
    start: WeightSpaceFeatures | None = None,
    engine: str = "auto",
    num_threads: int | None = None,
    batch_size: int | None = None,
    device: str | torch.device = "cpu",
    progress: Callable[[int], None] | None = None,
) -> FitResult:
    """Fits one sine network to each image, thousands at once.

    Each network starts from its own random weights, which depend only on the seed and its item. A network that
    diverges is fitted again from different weights at a quarter of the learning rate; `restarts` counts this.

    Args:
        images: `(B, H, W)` or `(B, H, W, O)`: bytes, or real numbers in [-1, 1].
        coordinates: The points `(P, D)` at which the values `(B, P, O)` of other signals are given; see `fit_values`.
            Defaults to the pixels of images.
        recipe: A name of `RECIPES`, or your own recipe.
        hidden: Widths of the hidden layers.
        omega: Frequency of the sines.
        convention: The SIREN convention; see `convert_convention`.
        psnr_db: Stop each network when it reaches this PSNR; networks that do not reach it are marked in `missed`.
        seed: Random seed of the whole dataset.
        items: Source index and copy number of each image. Defaults to `(0, 0), (1, 0), ...`.
        start: Networks to start from instead of random weights, one per image; the widths, frequency and convention
            of their spec replace the arguments above.
        engine: `"native"` is compiled for this processor on first use and does not depend on batches; `"torch"` runs on
            every device; `"auto"` uses the first that works.
        num_threads: Threads of the native engine. Defaults to all cores.
        batch_size: Networks trained together by the torch engine.
        device: Where the torch engine trains.
        progress: Called with the number of networks finished since the last call.

    Example:
        >>> result = fit(torch.zeros(2, 8, 8, dtype=torch.uint8), recipe="fast")
        >>> len(result.features), bool((result.psnr_db >= 40).all())
        (2, True)
    """
    if coordinates is None:
        pixels = image_values(images)
        coordinates, values = image_grid(*pixels.shape[1:3]), rearrange(pixels, "B H W O -> B (H W) O")
    else:
        values = torch.as_tensor(images)
    chosen = find_recipe(recipe)
    chosen = chosen if psnr_db is None else replace(chosen, stop_psnr_db=psnr_db)
    if coordinates.ndim != 2 or values.ndim != 3 or values.shape[1] != coordinates.shape[0]:
        raise UserError(
            "Expected values of shape (number, points, outputs) and coordinates of shape (points, dimensions), but got "
            f"{tuple(values.shape)} and {tuple(coordinates.shape)}."
        )
    if not bool(values.isfinite().all() and coordinates.isfinite().all()):
        raise UserError("Expected finite values and coordinates, but some are NaN or infinite.")
    spec = NetworkSpec.mlp([coordinates.shape[1], *hidden, values.shape[2]]) if start is None else start.spec
    form = SirenForm.of(spec, assumed=SirenForm(omega, convention))
    spec, omega, convention = form.complete(spec), form.omega, form.convention
    if start is not None and (len(start), spec.widths[0], spec.widths[-1]) != (
        len(values),
        coordinates.shape[1],
        values.shape[2],
    ):
        raise UserError(
            f"Expected {len(values)} networks to start from, with {coordinates.shape[1]} inputs and {values.shape[2]} "
            f"outputs, but got {len(start)} networks {spec}."
        )
    if items is None:
        items = torch.stack([torch.arange(len(values)), torch.zeros(len(values), dtype=torch.int64)], dim=1)
    if items.shape != (len(values), 2):
        raise UserError(f"Expected items of shape ({len(values)}, 2): source index and copy, got {tuple(items.shape)}.")
    # The convention determines the network's own inputs and outputs; errors below are on its scale.
    scale = 0.5 if convention == "dws" else 1.0
    points = (coordinates.flip(1) if convention == "dws" else coordinates).float()
    targets = scale * values.float()
    name = choose_engine(engine, spec, device)
    train = _train_native if name == "native" else _train_torch
    stop = chosen.stop_psnr_db
    stop_error = 0.0 if stop is None else (2 * scale) ** 2 / 10 ** ((stop + _PSNR_MARGIN_DB) / 10)
    job = _Job(spec, points, omega, chosen, stop_error, num_threads or num_cores(), batch_size, torch.device(device))
    report = progress or (lambda count: None)
    # Worse than a constant picture after many steps: training diverged, even if the numbers are finite.
    variance = targets.flatten(1).var(1, correction=0).double()

    parameters = torch.empty(len(values), spec.num_entries)
    errors = torch.full((len(values),), math.inf, dtype=torch.float64)
    steps = torch.zeros(len(values), dtype=torch.int32)
    restarts = torch.zeros(len(values), dtype=torch.int32)
    left = torch.arange(len(values))
    for attempt in range(_MAX_RESTARTS + 1):
        if start is not None and attempt == 0:
            first = start.to_vectors().float().cpu().clone()  # trained in place
        else:
            first = initial_weights(spec, items[left], seed=seed, attempt=attempt)
        slower = replace(job, recipe=replace(chosen, learning_rate=chosen.learning_rate * 0.25**attempt))
        found, error, taken = train(slower, first, targets[left], report if attempt == 0 else lambda count: None)
        error = torch.where(error.isfinite() & found.isfinite().all(1), error, math.inf)
        better = error < errors[left]
        for kept, new in ((parameters, found), (errors, error), (steps, taken)):
            kept[left[better]] = new[better]
        restarts[left] = attempt
        astray = ~errors.isfinite() | ((errors > variance) & (errors > 0.01 * scale**2) & (chosen.steps >= 50))
        left = astray.nonzero()[:, 0]
        if not len(left):
            break
    if not bool(errors.isfinite().all()):
        raise UserError(
            f"{len(left)} of {len(values)} networks diverged in each of {_MAX_RESTARTS + 1} attempts. "
            f"Expected a recipe that converges, but got {chosen}. Lower its learning rate."
        )
    quality = psnr_from_error(errors, peak=2 * scale).float()
    missed = torch.zeros(len(values), dtype=torch.bool) if stop is None else quality < stop
    return FitResult(WeightSpaceFeatures.from_vectors(spec, parameters), quality, steps, restarts, name, missed)


def fit_values(values: Float[Tensor, "B P O"], coordinates: Float[Tensor, "P D"], **options: Any) -> FitResult:
    """Fits networks to values in [-1, 1] at arbitrary points of any dimension; for the options see `fit`."""
    return fit(values, coordinates=coordinates, **options)


def image_values(images: Tensor | np.ndarray) -> Float[Tensor, "B H W O"]:
    """Images as real numbers in [-1, 1]; bytes `v` become `v / 127.5 - 1`."""
    images = torch.as_tensor(images)
    if images.ndim not in (3, 4) or 0 in images.shape[1:]:
        raise UserError(
            "Expected images of shape (number, height, width) or (number, height, width, channels), "
            f"but got {tuple(images.shape)}. Channels come last."
        )
    images = images if images.ndim == 4 else images[..., None]
    if images.dtype == torch.uint8:
        return images.float() / 127.5 - 1
    if not images.is_floating_point() or not bool(((images >= -1) & (images <= 1)).all()):
        kind = (
            f"{images.dtype} from {images.min().item()} to {images.max().item()}" if len(images) else f"{images.dtype}"
        )
        raise UserError(f"Expected images as bytes (uint8) or as real numbers in [-1, 1], but got {kind}.")
    return images.float()


def image_bytes(values: Float[Tensor, "*_shape"]) -> UInt8[Tensor, "*_shape"]:
    """Values in [-1, 1] as the nearest bytes, the inverse of `image_values`; values outside are clipped."""
    return ((values.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)


def choose_engine(engine: str, spec: NetworkSpec, device: str | torch.device = "cpu") -> Literal["native", "torch"]:
    """The engine that `fit` will use."""
    suits = torch.device(device).type == "cpu" and spec.num_layers <= _MAX_LAYERS
    needs = f"the CPU and at most {_MAX_LAYERS} layers"
    return kernels.choose_engine(engine, _KERNEL, suits=suits, needs=needs)


@dataclass(frozen=True, eq=False)
class _Job:
    spec: NetworkSpec
    points: Float[Tensor, "P D"]
    omega: float
    recipe: FitRecipe
    stop_error: float
    num_threads: int
    batch_size: int | None
    device: torch.device


_Trained = tuple[Float[Tensor, "B N"], Float64[Tensor, "B"], Int32[Tensor, "B"]]


def _train_native(
    job: _Job, parameters: Float[Tensor, "B N"], targets: Float[Tensor, "B P O"], report: Callable[[int], None]
) -> _Trained:
    """Trains every network separately, on one thread, with the interpreter's lock released."""
    recipe, rates = job.recipe, job.recipe.rates()
    widths, points = np.array(job.spec.widths, dtype=np.int32), job.points.contiguous()
    cancelled = torch.zeros(1, dtype=torch.int32)
    # The pieces only make the progress bar smoother.
    pieces = torch.arange(len(parameters)).split(16)

    def run(piece: Tensor) -> _Trained:
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
        report(len(piece))
        return trained, errors, steps

    if job.num_threads == 1 or len(pieces) == 1:
        results = [run(piece) for piece in pieces]
    else:
        with ThreadPoolExecutor(job.num_threads) as pool:
            try:
                results = list(pool.map(run, pieces))
            except BaseException:
                cancelled.fill_(1)
                pool.shutdown(cancel_futures=True)
                raise
    return _join(results)


def _train_torch(
    job: _Job, parameters: Float[Tensor, "B N"], targets: Float[Tensor, "B P O"], report: Callable[[int], None]
) -> _Trained:
    # On the CPU a batch should stay in the cache; elsewhere it should fill the device.
    size = job.batch_size or (32 if job.device.type == "cpu" else 2048)
    results = []
    for piece, target in zip(parameters.split(size), targets.split(size), strict=True):
        results.append(_train_batch(job, piece.to(job.device), job.points.to(job.device), target.to(job.device)))
        report(len(piece))
    return _join(results)


def _join(results: list[Any]) -> _Trained:
    parameters, errors, steps = (torch.cat(parts) for parts in zip(*results, strict=True))
    return parameters, errors, steps


@torch.no_grad()
def _train_batch(
    job: _Job, parameters: Float[Tensor, "B N"], points: Float[Tensor, "P D"], targets: Float[Tensor, "B P O"]
) -> _Trained:
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
