"""Fits sine networks to images, thousands at once: `fit`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float, Float64, Int, Int32, UInt8
from torch import Tensor

from neuralfunctionals.errors import UserError
from neuralfunctionals.inr.coordinates import image_grid
from neuralfunctionals.inr.engines import FitJob, choose_engine, train_native, train_torch
from neuralfunctionals.inr.form import SirenForm
from neuralfunctionals.inr.metrics import psnr_from_error
from neuralfunctionals.inr.recipe import FitRecipe, find_recipe
from neuralfunctionals.inr.siren import initial_weights
from neuralfunctionals.machine import num_cores
from neuralfunctionals.weight_space import NetworkSpec, WeightSpaceFeatures
from neuralfunctionals.weight_space.axes import DEFAULT_OMEGA

# Axes: B input networks, N packed entries, P points, D input dimensions, O outputs, S steps.

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
    points, values = _require_signals(images, coordinates)
    chosen = find_recipe(recipe)
    chosen = chosen if psnr_db is None else replace(chosen, stop_psnr_db=psnr_db)
    spec = NetworkSpec.mlp([points.shape[1], *hidden, values.shape[2]]) if start is None else start.spec
    form = SirenForm.of(spec, assumed=SirenForm(omega, convention))
    spec = form.complete(spec)
    ends = (points.shape[1], values.shape[2])
    if start is not None and (len(start), spec.widths[0], spec.widths[-1]) != (len(values), *ends):
        raise UserError(
            f"Expected {len(values)} networks to start from, with {ends[0]} inputs and {ends[1]} outputs, but got "
            f"{len(start)} networks {spec}."
        )
    if items is None:
        items = torch.stack([torch.arange(len(values)), torch.zeros(len(values), dtype=torch.int64)], dim=1)
    if items.shape != (len(values), 2):
        raise UserError(f"Expected items of shape ({len(values)}, 2): source index and copy, got {tuple(items.shape)}.")
    # The convention determines the network's own inputs and outputs; errors below are on its scale.
    is_dws = form.convention == "dws"
    scale, stop = 0.5 if is_dws else 1.0, chosen.stop_psnr_db
    job = FitJob(
        spec=spec,
        points=(points.flip(1) if is_dws else points).float(),
        omega=form.omega,
        recipe=chosen,
        stop_error=0.0 if stop is None else (2 * scale) ** 2 / 10 ** ((stop + _PSNR_MARGIN_DB) / 10),
        tolerated_error=0.01 * scale**2,
        engine=choose_engine(engine, spec, device),
        num_threads=num_threads or num_cores(),
        batch_size=batch_size,
        device=torch.device(device),
    )

    def draw(which: Tensor, attempt: int) -> Tensor:
        if start is not None and attempt == 0:
            return start.to_vectors().float().cpu().clone()  # trained in place
        return initial_weights(spec, items[which], seed=seed, attempt=attempt)

    parameters, errors, steps, restarts = _train_with_restarts(job, draw, scale * values.float(), progress or _ignore)
    quality = psnr_from_error(errors, peak=2 * scale).float()
    missed = torch.zeros(len(values), dtype=torch.bool) if stop is None else quality < stop
    features = WeightSpaceFeatures.from_vectors(spec, parameters)
    return FitResult(features, quality, steps, restarts, job.engine, missed)


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


def _require_signals(
    images: Tensor | np.ndarray, coordinates: Float[Tensor, "P D"] | None
) -> tuple[Float[Tensor, "P D"], Float[Tensor, "B P O"]]:
    """The points and the values to fit there."""
    if coordinates is None:
        pixels = image_values(images)
        return image_grid(*pixels.shape[1:3]), rearrange(pixels, "B H W O -> B (H W) O")
    values = torch.as_tensor(images)
    if coordinates.ndim != 2 or values.ndim != 3 or values.shape[1] != coordinates.shape[0]:
        raise UserError(
            "Expected values of shape (number, points, outputs) and coordinates of shape (points, dimensions), but got "
            f"{tuple(values.shape)} and {tuple(coordinates.shape)}."
        )
    if not bool(values.isfinite().all() and coordinates.isfinite().all()):
        raise UserError("Expected finite values and coordinates, but some are NaN or infinite.")
    return coordinates, values


def _ignore(count: int) -> None:
    pass


def _train_with_restarts(
    job: FitJob,
    draw: Callable[[Tensor, int], Tensor],
    targets: Float[Tensor, "B P O"],
    report: Callable[[int], None],
) -> tuple[Float[Tensor, "B N"], Float64[Tensor, "B"], Int32[Tensor, "B"], Int32[Tensor, "B"]]:
    """Trains all networks, and those that diverge again at a quarter of the learning rate; also counts the restarts.

    Args:
        job: How to train them.
        draw: Returns the initial parameters of some networks, by their indices and the number of the attempt.
        targets: The values to fit.
        report: Called with the number of networks finished since the last call; not for restarts.
    """
    train = train_native if job.engine == "native" else train_torch
    # Worse than a constant picture after many steps: training diverged, even if the numbers are finite.
    variance = targets.flatten(1).var(1, correction=0).double()
    parameters = torch.empty(len(targets), job.spec.num_entries)
    errors = torch.full((len(targets),), math.inf, dtype=torch.float64)
    steps, restarts = (torch.zeros(len(targets), dtype=torch.int32) for _ in range(2))
    left = torch.arange(len(targets))
    for attempt in range(_MAX_RESTARTS + 1):
        slower = replace(job.recipe, learning_rate=job.recipe.learning_rate * 0.25**attempt)
        found, error, taken = train(
            replace(job, recipe=slower), draw(left, attempt), targets[left], _ignore if attempt else report
        )
        error = torch.where(error.isfinite() & found.isfinite().all(1), error, math.inf)
        better = error < errors[left]
        for kept, new in ((parameters, found), (errors, error), (steps, taken)):
            kept[left[better]] = new[better]
        restarts[left] = attempt
        is_judged = job.recipe.steps >= 50
        astray = ~errors.isfinite() | ((errors > variance) & (errors > job.tolerated_error) & is_judged)
        left = astray.nonzero()[:, 0]
        if not len(left):
            break
    if not bool(errors.isfinite().all()):
        raise UserError(
            f"{len(left)} of {len(targets)} networks diverged in each of {_MAX_RESTARTS + 1} attempts. "
            f"Expected a recipe that converges, but got {job.recipe}. Lower its learning rate."
        )
    return parameters, errors, steps, restarts
