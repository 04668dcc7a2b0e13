"""From images to a store of fitted sine networks: `FitPlan`, `fit_dataset`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Int

from neuralfunctionals.data.shards import Shard, ShardPlan, ShardTask, make_shards
from neuralfunctionals.data.store import Store, StoreHeader
from neuralfunctionals.errors import UserError
from neuralfunctionals.images.image_set import SPLITS, ImageSet
from neuralfunctionals.inr import FitRecipe, SirenForm, choose_engine, find_recipe, fit
from neuralfunctionals.weight_space import NetworkSpec

# Axes: B items.


@dataclass(frozen=True, eq=False)
class FitPlan(ShardPlan):
    """Which items a dataset has and how they are fitted: everything that decides its bytes."""

    image_set: ImageSet
    items: Int[np.ndarray, "B 2"]
    """Source index and copy of each item, in source order."""
    recipe: FitRecipe
    spec: NetworkSpec
    """With frequency and convention."""
    seed: int
    engine: str
    header: StoreHeader

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
        omega: float = 30.0,
        convention: str = "paper",
        seed: int = 0,
        engine: str = "auto",
        shard_size: int | None = None,
    ) -> FitPlan:
        """Plans a dataset.

        Args:
            image_set: The images.
            recipe: How each network is trained.
            copies: Networks for each training image, from independent starts; validation and test images get one.
            limit: This many images, spread over the splits in proportion. Defaults to all.
            psnr_db: Stop each network at this quality.
            hidden: Widths of the hidden layers.
            omega: Frequency of the sines.
            convention: How inputs and outputs are meant.
            seed: Start of the random numbers of the whole dataset.
            engine: See `inr.fit`.
            shard_size: Items fitted and written together. By default, chosen by the number of items.
        """
        if copies < 1:
            raise UserError(f"Expected at least one copy of each image, but got {copies}.")
        if seed < 0:
            raise UserError(f"Expected a seed of at least 0, but got {seed}.")
        form = SirenForm(omega, convention)
        chosen = find_recipe(recipe)
        chosen = chosen if psnr_db is None else replace(chosen, stop_psnr_db=float(psnr_db))
        sources = image_set.select(limit)
        counts = np.where(image_set.splits[sources] == SPLITS.index("train"), copies, 1)
        copy = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        items = np.stack([np.repeat(sources, counts), copy], axis=1)
        # The provenance tells the form: cached stores have names that depend on what the header says of the spec.
        spec = NetworkSpec.mlp([2, *hidden, image_set.shape[2]])
        engine = choose_engine(engine, spec)
        provenance = {
            "kind": "fitted sine networks",
            "images": image_set.name,
            "images_sha256": image_set.digest(sources),
            "image_shape": list(image_set.shape),
            "recipe": chosen.to_dict(),
            "copies": copies,
            "limit": limit,
            "omega": form.omega,
            "convention": form.convention,
            "seed": seed,
            "engine": engine,
        }
        if shard_size is None:
            shard_size = min(512, max(16, len(items) // 16))
        header = StoreHeader(len(items), shard_size, spec, provenance)
        return cls(image_set, items, chosen, form.complete(spec), seed, engine, header)

    def task(self, shard: int) -> FitTask:
        """All that a worker needs to fit a shard."""
        items = self.items[list(self.header.items_of(shard))]
        sources = items[:, 0]
        return FitTask(
            self.header.items_of(shard).start,
            items,
            self.image_set.read(sources),
            self.image_set.labels[sources],
            self.image_set.splits[sources],
            self.recipe,
            self.spec,
            self.seed,
            self.engine,
        )


@dataclass(frozen=True, eq=False)
class FitTask(ShardTask):
    """One shard to fit."""

    first_item: int
    items: np.ndarray
    images: np.ndarray
    labels: np.ndarray
    splits: np.ndarray
    recipe: FitRecipe
    spec: NetworkSpec
    seed: int
    engine: str

    def run(self, shared: None, progress: Callable[[int], None] | None = None) -> Shard:
        """Fits the shard on one thread."""
        form = SirenForm.of(self.spec)
        result = fit(
            self.images,
            recipe=self.recipe,
            hidden=self.spec.widths[1:-1],
            omega=form.omega,
            convention=form.convention,
            seed=self.seed,
            items=torch.from_numpy(self.items),
            engine=self.engine,
            num_threads=1,
            progress=progress,
        )
        tensors = {
            "weights": result.features.to_vectors().numpy(),
            "image": self.images,
            "label": self.labels.astype(np.int64),
            "split": self.splits,
            "source_index": self.items[:, 0].astype(np.int64),
            "copy": self.items[:, 1].astype(np.int64),
            "psnr_db": result.psnr_db.numpy(),
        }
        columns = zip(
            self.items.tolist(),
            self.labels.tolist(),
            self.splits.tolist(),
            result.psnr_db.tolist(),
            result.steps.tolist(),
            result.restarts.tolist(),
            result.missed.tolist(),
            strict=True,
        )
        metadata = [
            {
                "item": self.first_item + place,
                "source_index": source_index,
                "copy": copy,
                "label": label,
                "split": SPLITS[split],
                "psnr_db": round(psnr_db, 4),
                "steps": steps,
                "restarts": restarts,
                "missed_psnr": missed,
            }
            for place, ((source_index, copy), label, split, psnr_db, steps, restarts, missed) in enumerate(columns)
        ]
        return Shard(tensors, metadata)


def fit_dataset(
    plan: FitPlan,
    out: str | os.PathLike[str],
    *,
    workers: int | None = None,
    share: tuple[int, int] = (0, 1),
    ray_address: str | None = None,
    progress: Callable[[int, Sequence[float]], None] | None = None,
) -> Store:
    """Fits what is missing in the store; finished shards stay as they are.

    Args:
        plan: What to fit.
        out: The store's directory, new or begun with the same plan.
        workers: Shards fitted at the same time, one thread each. Defaults to all cores.
        share: `(i, n)` does the shards whose number is `i` modulo `n`, so that `n` machines divide the work.
        ray_address: Runs the shards on a Ray cluster: `"local"` starts one here.
        progress: Called with the number of items finished since the last call, and with the PSNR of a finished shard.
    """
    report = progress or (lambda count, psnr_db: None)
    return make_shards(
        plan,
        out,
        workers=workers,
        share=share,
        ray_address=ray_address,
        progress=lambda count, shard: report(count, () if shard is None else shard.tensors["psnr_db"].tolist()),
    )
