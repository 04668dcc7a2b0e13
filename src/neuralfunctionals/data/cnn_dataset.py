"""From hyperparameters to a store of trained CNNs with known accuracies: `ZooPlan`, `make_zoo`."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from neuralfunctionals.cnn.settings import MIN_IMAGE_SIZE, cnn_spec
from neuralfunctionals.cnn.training import METRICS, CnnImages, checkpoint_epochs, choose_engine, train_cnns
from neuralfunctionals.data.shards import Shard, ShardPlan, Task, describe_items, make_shards
from neuralfunctionals.data.store import StoreHeader
from neuralfunctionals.errors import UserError
from neuralfunctionals.images.image_set import SPLITS, ImageSet


@dataclass(frozen=True, eq=False)
class ZooPlan(ShardPlan):
    """The networks of a zoo and how they are trained: everything that determines its bytes."""

    image_set: ImageSet
    sources: np.ndarray
    """Indices of the images used for training and testing."""
    grey: bool
    engine: str
    options: dict[str, Any]
    """Further arguments of `train_cnns` that all networks share."""
    header: StoreHeader
    quality = "test_accuracy"

    @classmethod
    def make(
        cls,
        image_set: ImageSet,
        *,
        count: int,
        grey: bool = False,
        epochs: int = 86,
        batch_size: int = 512,
        limit_images: int | None = None,
        seed: int = 0,
        engine: str = "auto",
        shard_size: int | None = None,
    ) -> ZooPlan:
        """Plans a zoo.

        Args:
            image_set: The images to classify. Networks train on the splits train and val and are tested on test.
            count: Number of networks.
            grey: Average the colours to one grey channel.
            epochs: How often each network sees its images.
            batch_size: Images per step.
            limit_images: Use only this many images, in proportion from each split. Defaults to all.
            seed: Random seed of the whole zoo.
            engine: See `train_cnns`.
            shard_size: Networks trained and written together. By default, depends on the number of networks.
        """
        values = {"networks": count, "epochs": epochs, "images per batch": batch_size}
        for name, value in values.items():
            if value < 1:
                raise UserError(f"Expected the number of {name} to be at least 1, but got {value}.")
        if seed < 0:
            raise UserError(f"Expected a seed of at least 0, but got {seed}.")
        height, width, channels = image_set.shape
        if min(height, width) < MIN_IMAGE_SIZE:
            raise UserError(
                f"Expected images of at least {MIN_IMAGE_SIZE}x{MIN_IMAGE_SIZE} pixels for three convolutions of "
                f"stride 2, but those of '{image_set.name}' have {height}x{width}. Choose another set, or --image-size."
            )
        sources = image_set.select(limit_images)
        labels, splits = image_set.labels[sources], image_set.splits[sources]
        if len(labels) and labels.min() < 0:
            raise UserError(
                f"Expected images with labels, but '{image_set.name}' has none. Sort a folder's images into one "
                "sub-folder per class, or give an npz file with 'images' and 'labels'."
            )
        is_test = splits == SPLITS.index("test")
        if is_test.all() or not is_test.any():
            raise UserError(
                f"Expected images for training and for testing, but {len(sources)} of '{image_set.name}' give "
                f"{(~is_test).sum()} and {is_test.sum()}. Use more images."
            )
        channels = 1 if grey else channels
        engine = choose_engine(engine, channels)
        options = {"epochs": epochs, "batch_size": batch_size, "seed": seed}
        provenance = {
            "kind": "trained CNNs",
            "images": image_set.name,
            "images_sha256": image_set.digest(sources),
            "image_shape": [height, width, channels],
            "grey": grey or channels == 1,
            "train_images": int((~is_test).sum()),
            "test_images": int(is_test.sum()),
            "checkpoint_epochs": checkpoint_epochs(epochs),
            "engine": engine,
            **options,
        }
        spec = cnn_spec(channels, int(image_set.labels.max()) + 1)
        header = StoreHeader(count, shard_size or min(32, max(4, count // 64)), spec, provenance)
        return cls(image_set, sources, grey, engine, options, header)

    @cached_property
    def shared(self) -> CnnImages:
        """The images, read once."""
        spec = self.header.spec
        assert spec is not None
        height, width = self.image_set.shape[:2]
        pixels = np.empty((len(self.sources), height, width, spec.widths[0]), dtype=np.float32)
        for start in range(0, len(pixels), 1024):
            part = self.image_set.read(self.sources[start : start + 1024]).astype(np.float32)
            pixels[start : start + 1024] = (part.mean(-1, keepdims=True) if self.grey else part) / 127.5 - 1
        is_test = self.image_set.splits[self.sources] == SPLITS.index("test")
        labels = self.image_set.labels[self.sources].astype(np.int32)
        return CnnImages(pixels, labels, np.flatnonzero(~is_test), np.flatnonzero(is_test), spec.widths[-1])

    def task(self, shard: int) -> Task:
        """The task that trains the networks of a shard."""
        items = self.header.items_of(shard)
        splits = zoo_splits(self.header.num_items)[items.start : items.stop]
        return partial(_train_shard, items, splits, {"engine": self.engine, **self.options})


def _train_shard(
    items: range,
    splits: np.ndarray,
    options: dict[str, Any],
    images: CnnImages,
    progress: Callable[[int], None] | None,
) -> Shard:
    networks = train_cnns(images, items, progress=progress, **options)
    weights = np.stack([network.weights for network in networks]).astype(np.float32)
    metrics = np.stack([network.metrics for network in networks])
    tensors = {
        "weights": weights[:, -1],
        "checkpoint_weights": weights,
        "split": splits,
        "source_index": np.array(items, dtype=np.int64),
        "copy": np.zeros(len(items), dtype=np.int64),
    }
    for place, name in enumerate(METRICS):
        tensors[name] = metrics[:, -1, place].astype(np.float32)
        tensors[f"checkpoint_{name}"] = metrics[:, :, place].astype(np.float32)
    last = zip(METRICS, metrics[:, -1].T.tolist(), strict=True)
    metadata = describe_items(
        items,
        split=splits,
        restarts=[network.draws.attempt for network in networks],
        config=[network.settings.to_dict() for network in networks],
        **{name: [round(x, 6) for x in column] for name, column in last},
    )
    return Shard(tensors, metadata)


def zoo_splits(count: int) -> np.ndarray:
    """The published split of networks in a given order: the second half is test, a fifth of the first is validation."""
    first_half = list(range(count // 2))
    random.Random(0).shuffle(first_half)  # Python's own generator, as in the published code
    splits = np.full(count, SPLITS.index("test"), dtype=np.uint8)
    splits[first_half] = SPLITS.index("val")
    splits[first_half[: int(0.8 * len(first_half))]] = SPLITS.index("train")
    return splits


make_zoo = make_shards
"""Trains the networks that are missing from the store of a `ZooPlan`."""
