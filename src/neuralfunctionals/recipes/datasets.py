"""The dataset of a run: made once into the cache, and found there again: `dataset_for`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from neuralfunctionals.data import FitPlan, WeightDataset, fit_dataset, open_images
from neuralfunctionals.native import cache_directory
from neuralfunctionals.recipes.run import DataConfig


def plan_for(config: DataConfig) -> FitPlan:
    """What to fit."""
    return FitPlan.make(
        open_images(config.images), recipe=config.fit, copies=config.copies, limit=config.limit, seed=config.seed
    )


def cached_path(plan: FitPlan) -> Path:
    """Where the fitted networks are kept; another plan has another place."""
    digest = hashlib.sha256(plan.header.to_bytes()).hexdigest()[:12]
    return cache_directory() / "data" / f"{Path(plan.image_set.name).name}-{digest}"


def dataset_for(
    config: DataConfig, *, progress: Callable[[int, int, Sequence[float]], None] | None = None
) -> WeightDataset:
    """The networks of a config: fitted now, or as far as they are missing.

    Args:
        config: Which networks.
        progress: Called with the number of networks in all, those finished since the last call, and their PSNR.
    """
    plan = plan_for(config)
    report = progress or (lambda total, count, psnr_db: None)
    path = cached_path(plan)
    fit_dataset(plan, path, progress=lambda count, psnr_db: report(plan.header.num_items, count, psnr_db))
    return WeightDataset(path)
