"""From images to a store of fitted sine networks: `FitPlan`, `fit_dataset`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Int

from neuralfunctionals.data.shards import Shard, ShardPlan, Task, describe_items, make_shards
from neuralfunctionals.data.store import StoreHeader
from neuralfunctionals.errors import UserError
from neuralfunctionals.images.image_set import SPLITS, ImageSet
from neuralfunctionals.inr import FitRecipe, SirenForm, choose_engine, find_recipe, fit
from neuralfunctionals.weight_space import NetworkSpec
from neuralfunctionals.weight_space.axes import DEFAULT_OMEGA

# Axes: B items.


@dataclass(frozen=True, eq=False)
class FitPlan(ShardPlan):
    """The items of a dataset and how they are fitted: everything that determines its bytes."""

    image_set: ImageSet
    items: Int[np.ndarray, "B 2"]
    """Source index and copy of each item, in source order."""
    recipe: FitRecipe
    engine: str
    options: dict[str, Any]
    """Further arguments of `inr.fit` that all items share."""
    header: StoreHeader
    quality = "psnr_db"

    @classmethod
    def make(
        cls,
        image_set: ImageSet,
        *,
        recipe: str | FitRecipe = "default",
        copies: int = 1,
        limit: int | None = None,
        psnr_db: float | None = None,
        hidden: Sequence[int] = (32, 32),
        omega: float = DEFAULT_OMEGA,
        convention: str = "paper",
        seed: int = 0,
        engine: str = "auto",
        shard_size: int | None = None,
    ) -> FitPlan:
        """Plans a dataset.

        Args:
            image_set: The images.
            recipe: How each network is trained.
            copies: Networks per training image, from independent initial weights; validation and test images get one.
            limit: Use only this many images, in proportion from each split. Defaults to all.
            psnr_db: Stop each network when it reaches this PSNR.
            hidden: Widths of the hidden layers.
            omega: Frequency of the sines.
            convention: The SIREN convention; see `inr.convert_convention`.
            seed: Random seed of the whole dataset.
            engine: See `inr.fit`.
            shard_size: Items fitted and written together. By default, depends on the number of items.
        """
        if copies < 1:
            raise UserError(f"Expected at least one copy of each image, but got {copies}.")
        if seed < 0:
            raise UserError(f"Expected a seed of at least 0, but got {seed}.")
        form, chosen = SirenForm(omega, convention), find_recipe(recipe)
        if psnr_db is not None:
            chosen = replace(chosen, stop_psnr_db=float(psnr_db))
        sources = image_set.select(limit)
        counts = np.where(image_set.splits[sources] == SPLITS.index("train"), copies, 1)
        copy = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        items = np.stack([np.repeat(sources, counts), copy], axis=1)
        # The provenance records the form, not the spec: names of cached stores depend on the spec in the header.
        spec = NetworkSpec.mlp([2, *hidden, image_set.shape[2]])
        engine = choose_engine(engine, spec)
        options = {"omega": form.omega, "convention": form.convention, "seed": seed}
        provenance = {
            "kind": "fitted sine networks",
            "images": image_set.name,
            "images_sha256": image_set.digest(sources),
            "image_shape": list(image_set.shape),
            "recipe": chosen.to_dict(),
            "copies": copies,
            "limit": limit,
            "engine": engine,
            **options,
        }
        if shard_size is None:
            shard_size = min(512, max(16, len(items) // 16))
        header = StoreHeader(len(items), shard_size, spec, provenance)
        return cls(image_set, items, chosen, engine, {"hidden": tuple(hidden), **options}, header)

    def task(self, shard: int) -> Task:
        """The task that fits the networks of a shard."""
        items = self.header.items_of(shard)
        sources, copies = self.items[items.start : items.stop].T.astype(np.int64)
        facts = {
            "image": self.image_set.read(sources),
            "label": self.image_set.labels[sources].astype(np.int64),
            "split": self.image_set.splits[sources],
            "source_index": sources,
            "copy": copies,
        }
        return partial(_fit_shard, items, facts, {"recipe": self.recipe, "engine": self.engine, **self.options})


def _fit_shard(
    items: range,
    facts: dict[str, np.ndarray],
    options: dict[str, Any],
    shared: None,
    progress: Callable[[int], None] | None,
) -> Shard:
    pairs = torch.from_numpy(np.stack([facts["source_index"], facts["copy"]], axis=1))
    result = fit(facts["image"], items=pairs, num_threads=1, progress=progress, **options)
    metadata = describe_items(
        items,
        **{name: facts[name] for name in ("source_index", "copy", "label", "split")},
        psnr_db=[round(value, 4) for value in result.psnr_db.tolist()],
        steps=result.steps.tolist(),
        restarts=result.restarts.tolist(),
        missed_psnr=result.missed.tolist(),
    )
    weights = result.features.to_vectors().numpy()
    return Shard({**facts, "weights": weights, "psnr_db": result.psnr_db.numpy()}, metadata)


fit_dataset = make_shards
"""Fits the networks that are missing from the store of a `FitPlan`."""
