"""The dataset of a run: made once into the cache, and found there again: `dataset_for`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from neuralfunctionals.config import DataConfig, ZooConfig
from neuralfunctionals.data import FitPlan, WeightDataset, ZooPlan, fit_dataset, make_zoo, open_images
from neuralfunctionals.machine import cache_directory


def plan_for(config: DataConfig | ZooConfig) -> FitPlan | ZooPlan:
    """What to fit, or to train."""
    if isinstance(config, ZooConfig):
        options = asdict(config)
        return ZooPlan.make(open_images(options.pop("images")), **options)
    return FitPlan.make(
        open_images(config.images), recipe=config.fit, copies=config.copies, limit=config.limit, seed=config.seed
    )


def cached_path(plan: FitPlan | ZooPlan) -> Path:
    """Where the networks are kept; another plan has another place."""
    digest = hashlib.sha256(plan.header.to_bytes()).hexdigest()[:12]
    kind = "-zoo" if isinstance(plan, ZooPlan) else ""
    return cache_directory() / "data" / f"{Path(plan.image_set.name).name}{kind}-{digest}"


def dataset_for(
    config: DataConfig | ZooConfig, *, progress: Callable[[int, int, Sequence[float]], None] | None = None
) -> WeightDataset:
    """The networks of a config: made now, or as far as they are missing.

    Args:
        config: Which networks.
        progress: Called with the number of networks in all, those finished since the last call, and their PSNR, or the
            test accuracies of CNNs.
    """
    plan = plan_for(config)
    path = cached_path(plan)

    def report(count: int, qualities: Sequence[float]) -> None:
        if progress is not None:
            progress(plan.header.num_items, count, qualities)

    if isinstance(plan, ZooPlan):
        make_zoo(plan, path, progress=report)
    else:
        fit_dataset(plan, path, progress=report)
    return WeightDataset(path)
