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
"""Converts items of the dataset to a batch of a task."""

READ_AHEAD = 256
"""Number of items to read at once, which is faster than batch by batch."""


def mixed_seed(*parts: int) -> int:
    """Mixes several numbers, such as seed, step and process, into one seed; similar numbers give unrelated seeds."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> np.uint64(1))


class TrainBatches:
    """Shuffled batches for a part of training; the items of batch number `n` depend only on the seed.

    A resumed run therefore sees the same batches as one without interruption, and processes that share a batch take
    equal parts of it without communication. The incomplete last batch of an epoch is dropped.

    Args:
        dataset: The items.
        prepare: Applied to the items of each batch.
        canonical: If given, networks are canonicalized under this symmetry first, several batches at a time.
        batch_size: Items per batch, over all processes.
        seed: Seed of the order.
        length: Number of batches per iteration.
        first: Returns the number of the first batch, at the start of an iteration.
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
                "Make a larger dataset or use a smaller batch."
            )
        if batch_size % share[1]:
            raise UserError(
                f"Expected a batch size that is a multiple of the {share[1]} processes, but got {batch_size}."
            )
        self.dataset, self.prepare, self.canonical = dataset, prepare, canonical
        self.batch_size, self.seed = batch_size, seed
        self.length, self.first, self.share = length, first, share
        self._order: tuple[int, Tensor] | None = None

    def indices(self, batch: int) -> Int[Tensor, "B"]:
        """The indices of the items of a batch, for all processes."""
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
    """All items once, in order.

    Args:
        dataset: The items.
        prepare: Applied to the items of each batch.
        batch_size: Items per batch of one process.
        share: `(i, n)`: take every `n`-th item, starting with the `i`-th.
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
