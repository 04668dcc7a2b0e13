"""Batches for training and evaluation, the same on any number of processes: `TrainBatches`, `EvalBatches`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from neuralfunctionals.data import WeightDataset, WeightItems
from neuralfunctionals.errors import UserError
from neuralfunctionals.weight_space import NetworkSymmetry

# Axes: B items of a batch.

Prepare = Callable[[WeightItems], Any]
"""From the dataset's items to what a task trains on."""

READ_AHEAD = 256
"""Items that are read at once: cheaper than batch by batch."""


def mixed_seed(*parts: int) -> int:
    """One seed from several numbers, such as those of run, step and process; similar numbers give unrelated seeds."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> np.uint64(1))


class TrainBatches:
    """Shuffled batches for a stretch of training; which items batch number `n` holds follows from the seed alone.

    So a run that is continued at some batch sees what it would have seen without the break, and processes that share
    a batch take equal parts of it without talking to each other. An incomplete last batch of an epoch is left out.

    Args:
        dataset: The items.
        prepare: Applied to the items of each batch.
        canonical: Symmetry whose canonical form the networks get before that, those of several batches at a time.
        batch_size: Items of a batch over all processes.
        seed: Seed of the order.
        length: Batches of a stretch.
        first: Gives the number of the first batch when a stretch begins.
        share: `(i, n)`: take the `i`-th of `n` equal parts of each batch.
    """

    def __init__(
        self,
        dataset: WeightDataset,
        prepare: Prepare,
        *,
        canonical: NetworkSymmetry | None = None,
        batch_size: int,
        seed: int,
        length: int,
        first: Callable[[], int] = lambda: 0,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        if batch_size > len(dataset):
            raise UserError(
                f"Expected at least one batch of {batch_size} items to train on, but there are only {len(dataset)}. "
                "Make a larger dataset or take a smaller batch."
            )
        if batch_size % share[1]:
            raise UserError(
                f"Expected a batch that {share[1]} processes can share in equal parts, but got {batch_size} items."
            )
        self.dataset, self.prepare, self.canonical = dataset, prepare, canonical
        self.batch_size, self.seed = batch_size, seed
        self.length, self.first, self.share = length, first, share
        self._order: tuple[int, Tensor] | None = None

    def indices(self, batch: int) -> Int[Tensor, "B"]:
        """The items of a batch, for all processes."""
        epoch, place = divmod(batch, len(self.dataset) // self.batch_size)
        if self._order is None or self._order[0] != epoch:
            generator = torch.Generator().manual_seed(mixed_seed(self.seed, epoch))
            self._order = epoch, torch.randperm(len(self.dataset), generator=generator)
        return self._order[1][place * self.batch_size : (place + 1) * self.batch_size]

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        first, (part, parts) = self.first(), self.share
        batches, size = range(first, first + self.length), self.batch_size // parts
        ahead = max(1, READ_AHEAD // size)
        for start in range(0, self.length, ahead):
            indices = [self.indices(batch)[part::parts] for batch in batches[start : start + ahead]]
            items = self.dataset[torch.cat(indices)]
            if self.canonical is not None and items.features is not None:
                items = replace(items, features=self.canonical.canonicalize(items.features)[0])
            for place in range(len(indices)):
                yield self.prepare(items[place * size : (place + 1) * size])


class EvalBatches:
    """All items once, in their order.

    Args:
        dataset: The items.
        prepare: Applied to the items of each batch.
        batch_size: Items of a batch of one process.
        share: `(i, n)`: take every `n`-th item from the `i`-th on.
    """

    def __init__(
        self, dataset: WeightDataset, prepare: Prepare, *, batch_size: int, share: tuple[int, int] = (0, 1)
    ) -> None:
        self.dataset, self.prepare, self.batch_size = dataset, prepare, batch_size
        self.items = torch.arange(len(dataset))[share[0] :: share[1]]

    def __len__(self) -> int:
        return -(-len(self.items) // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        for part in self.items.split(self.batch_size):
            if len(part):
                yield self.prepare(self.dataset[part])
