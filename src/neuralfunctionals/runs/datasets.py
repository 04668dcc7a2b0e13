"""The dataset of a run, made once and cached: `dataset_for`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from neuralfunctionals.config import DataConfig, ZooConfig
from neuralfunctionals.data import FitPlan, WeightDataset, ZooPlan, fit_dataset, make_zoo, open_images
from neuralfunctionals.machine import cache_directory


def plan_for(config: DataConfig | ZooConfig) -> FitPlan | ZooPlan:
    """The plan of the networks to fit or train."""
    options = asdict(config)
    images = open_images(options.pop("images"))
    if isinstance(config, ZooConfig):
        return ZooPlan.make(images, **options)
    return FitPlan.make(images, recipe=options.pop("fit"), **options)


def cached_path(plan: FitPlan | ZooPlan) -> Path:
    """The cache directory for the networks of a plan, unique to the plan."""
    digest = hashlib.sha256(plan.header.to_bytes()).hexdigest()[:12]
    kind = "-zoo" if isinstance(plan, ZooPlan) else ""
    return cache_directory() / "data" / f"{Path(plan.image_set.name).name}{kind}-{digest}"


def dataset_for(
    config: DataConfig | ZooConfig,
    out: Path | None = None,
    *,
    progress: Callable[[int, int, Sequence[float]], None] | None = None,
) -> WeightDataset:
    """Opens the networks of a config; makes those that are missing first.

    Args:
        config: Which networks.
        out: Their directory. Defaults to their directory in the cache.
        progress: Called with the total number of networks, the number finished since the last call, and their PSNR, or
            the test accuracies of CNNs.
    """
    plan = plan_for(config)
    path = out or cached_path(plan)

    def report(count: int, qualities: Sequence[float]) -> None:
        if progress is not None:
            progress(plan.header.num_items, count, qualities)

    make: Callable[..., Any] = make_zoo if isinstance(plan, ZooPlan) else fit_dataset
    make(plan, path, progress=report)
    return WeightDataset(path)
