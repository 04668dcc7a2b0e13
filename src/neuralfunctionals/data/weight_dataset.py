"""From a store to items and batches: `WeightDataset`."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neuralfunctionals.data.store import Store
from neuralfunctionals.errors import UserError, require_choice
from neuralfunctionals.images.splits import SPLITS
from neuralfunctionals.inr import SirenForm, convert, image_bytes, render_images
from neuralfunctionals.inr.siren import can_be_siren
from neuralfunctionals.weight_space import Activation, NetworkSpec, WeightSpaceFeatures

# Axes: B items.

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class WeightItems:
    """Some items of a dataset: one, or a batch.

    For one item, `label`, `source_index` and `copy` are numbers, `split` is a string, `image` is `(H, W, C)` and
    `features` is a batch of one. For a batch, they are tensors, a list, `(B, H, W, C)` and a batch.
    """

    features: WeightSpaceFeatures | None
    """The weights, one channel; None for a store of latents."""
    label: Any
    image: Tensor | None
    split: Any
    source_index: Any
    copy: Any
    tensors: dict[str, Tensor]
    """The store's tensors for these items, by name; for checkpoints of the training, use `WeightDataset.column`."""

    def __getitem__(self, index: slice) -> WeightItems:
        """A slice of the batch."""

        def part(values: Any) -> Any:
            return None if values is None else values[index]

        names = ("features", "label", "image", "split", "source_index", "copy")
        tensors = {name: tensor[index] for name, tensor in self.tensors.items()}
        return WeightItems(**{name: part(getattr(self, name)) for name in names}, tensors=tensors)

    @property
    def latents(self) -> Tensor | None:
        """Latents, if the store holds them."""
        return self.tensors.get("latents")


class WeightDataset:
    """A store of networks as a dataset: items and shuffled batches straight from the memory map.

    Works as a map-style dataset of `torch.utils.data.DataLoader` with `collate_fn=lambda items: items`, because it
    returns whole batches.

    Args:
        path: The store's directory. If the store is still being made, the dataset has the shards finished so far.

    Raises:
        StoreError: If the store has another version or is damaged: every byte is checked, once per process.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.store = Store(path)
        self._shards = self.store.map_shards()
        shards = list(self._shards)
        self.tensor_names = tuple(sorted(self._shards[shards[0]]))
        # One number per item: small enough for memory, and one lookup instead of one in every shard.
        self._columns = self.store.join_columns(self._shards)
        self._numbers = np.array(shards)
        ranges = [self.store.header.items_of(shard) for shard in shards]
        self._starts = np.cumsum([0, *map(len, ranges[:-1])])
        self._items = np.concatenate([np.array(items) for items in ranges])
        self._stored = _tell_form(self.store.header.spec, self.store.header.provenance)
        self._spec = self._stored  # of the items returned
        self._rendered_size: tuple[int, int] | None = None

    @property
    def path(self) -> Path:
        """The store's directory."""
        return self.store.path

    @property
    def spec(self) -> NetworkSpec:
        """The networks' spec; for sine networks, with the frequency and convention that the store records."""
        if self._spec is None:
            raise UserError(f"The store at {self.path} holds no networks. Expected a store made by nf fit or nf zoo.")
        return self._spec

    @property
    def provenance(self) -> dict[str, Any]:
        """How the items were made."""
        return dict(self.store.header.provenance)

    @property
    def is_complete(self) -> bool:
        """Whether no shard is missing."""
        return len(self._shards) == self.store.header.num_shards

    def __len__(self) -> int:
        return len(self._items)

    # Choosing.

    def select(self, indices: Sequence[int] | np.ndarray | Tensor) -> WeightDataset:
        """A dataset of these items only, given by their positions or by a mask; it shares the memory map."""
        return self._with(_items=self._items[_index_array(indices)])

    def _with(self, **changes: Any) -> WeightDataset:
        changed = object.__new__(WeightDataset)
        changed.__dict__.update(self.__dict__, **changes)
        return changed

    def split(self, name: str) -> WeightDataset:
        """The items of `"train"`, `"val"` or `"test"`."""
        require_choice("a split,", name, SPLITS)
        return self.select(np.flatnonzero(self.column("split").numpy() == SPLITS.index(name)))

    def spread(self, count: int | None) -> WeightDataset:
        """A dataset of `count` evenly spaced items; of all items if there are fewer, or if `count` is None."""
        if count is None or count >= len(self):
            return self
        return self.select(np.linspace(0, len(self) - 1, count).astype(np.int64))

    # Conversions on reading.

    def find_form(self, assumed: SirenForm) -> SirenForm | None:
        """The form of the store's sine networks; None if they cannot be sine networks.

        Args:
            assumed: Returned, with a warning in the log, if the store does not record a form.
        """
        if self._stored is None or not can_be_siren(self._stored):
            return None
        if self._stored.omega is None and SirenForm.from_provenance(self.provenance) is None:
            _log.warning("%s does not record the form of its sine networks; assuming %s.", self.path, assumed)
        return SirenForm.of(self._stored, assumed=assumed)

    def in_form(self, form: SirenForm) -> WeightDataset:
        """The dataset with sine networks converted to a form when they are read; other networks are not changed.

        Only the `features` of items are converted, not their `tensors`, and not `column`.
        """
        own = self.find_form(form)
        if own is None or self._stored is None:
            return self
        stored = own.complete(self._stored)
        there = stored.with_activation(Activation("sine", form.omega), convention=form.convention)
        return self._with(_stored=stored, _spec=stored if own == form else there)

    @property
    def can_render(self) -> bool:
        """Whether the networks can be sine networks of two coordinates, which can be rendered as images."""
        spec = self.store.header.spec
        return spec is not None and can_be_siren(spec) and spec.widths[0] == 2

    def with_images(self, size: tuple[int, int] | None = None) -> WeightDataset:
        """The dataset with an image for each item: the one in the store, or else rendered from its network when read.

        Args:
            size: Height and width of rendered images. Defaults to the size that the store records.
        """
        if "image" in self.tensor_names or self._rendered_size is not None:
            return self
        if not self.can_render:
            raise UserError(
                f"Expected images in {self.path}, or sine networks of two coordinates to render them from, but it has "
                f"no images and networks {self.spec}. Make a store with nf fit."
            )
        size = size or tuple(self.provenance.get("image_shape", ())[:2]) or None
        if size is None:
            raise UserError(
                f"The store at {self.path} has no images and does not record the size at which to render its networks. "
                "Import them again with nf data import ... --image-size 28."
            )
        return self._with(_rendered_size=size)

    # Reading.

    def column(self, name: str) -> Tensor:
        """One named tensor for all items: `label`, `split`, `psnr_db`, ..."""
        return self._gather(name, self._items)

    def metadata(self, index: int) -> dict[str, Any]:
        """The index entry of one item."""
        shard, row = divmod(int(self._items[index]), self.store.header.shard_size)
        return self.store.read_index(shard)[0][row]

    def __getitem__(self, index: int | Sequence[int] | slice | np.ndarray | Tensor) -> WeightItems:
        if isinstance(index, slice):
            return self._make(self._items[index], alone=False)
        positions = _index_array(index)
        if positions.ndim:
            return self._make(self._items[positions], alone=False)
        if not -len(self) <= positions < len(self):
            raise IndexError(f"Item {positions} of a dataset of {len(self)}.")
        return self._make(self._items[positions[None]], alone=True)

    def __getitems__(self, indices: Sequence[int]) -> WeightItems:
        return self[indices]

    def batches(
        self, batch_size: int, *, shuffle: bool = True, generator: torch.Generator | None = None
    ) -> Iterator[WeightItems]:
        """Iterates over all items once, in batches; the last may be smaller."""
        order = torch.randperm(len(self), generator=generator) if shuffle else torch.arange(len(self))
        for part in order.split(batch_size):
            yield self[part]

    def _make(self, items: np.ndarray, *, alone: bool) -> WeightItems:
        # Checkpoints are many times larger than the weights, and rarely needed.
        names = [name for name in self.tensor_names if not name.startswith("checkpoint_")]
        tensors = {name: self._gather(name, items) for name in names}
        features, image = None, tensors.get("image")
        if "weights" in tensors:
            features = WeightSpaceFeatures(self._stored or self.spec, tensors["weights"][..., None])
            if self.spec is not self._stored:
                features = WeightSpaceFeatures(self.spec, convert(features, self.spec).tensor)
            if self._rendered_size is not None:
                with torch.no_grad():
                    image = image_bytes(render_images(features, *self._rendered_size))
        codes = tensors["split"].tolist() if "split" in tensors else [None] * len(items)
        splits = [None if code is None else SPLITS[code] for code in codes]

        def value(name: str) -> Any:
            found = image if name == "image" else tensors.get(name)
            return found if found is None or not alone else found[0].item() if found.ndim == 1 else found[0]

        return WeightItems(
            features,
            value("label"),
            value("image"),
            splits[0] if alone else splits,
            value("source_index"),
            value("copy"),
            {name: tensor[0] for name, tensor in tensors.items()} if alone else tensors,
        )

    def _gather(self, name: str, items: np.ndarray) -> Tensor:
        if name not in self.tensor_names:
            raise UserError(f"Expected one of the tensors {list(self.tensor_names)}, but got {name!r}.")
        shards, rows = np.divmod(items, self.store.header.shard_size)
        if name in self._columns:
            place = self._starts[np.searchsorted(self._numbers, shards)] + rows
            return torch.from_numpy(self._columns[name][place])
        arrays = {shard: self._shards[shard][name] for shard in np.unique(shards).tolist()}
        first = next(iter(self._shards.values()))[name]
        gathered = np.empty((len(items), *first.shape[1:]), dtype=first.dtype)
        if len(items) < 16 * len(arrays):
            for place, (shard, row) in enumerate(zip(shards.tolist(), rows.tolist(), strict=True)):
                gathered[place] = arrays[shard][row]
        else:
            for shard, array in arrays.items():
                here = shards == shard
                gathered[here] = array[rows[here]]
        return torch.from_numpy(gathered)

    def __repr__(self) -> str:
        return f"WeightDataset({self.path}: {len(self)} items of {self.store.header.spec})"


def _index_array(index: int | Sequence[int] | np.ndarray | Tensor) -> np.ndarray:
    """Positions, or a mask of booleans, as an array; numpy refuses other numbers."""
    found = np.asarray(index)
    return found if found.size else found.astype(np.int64)


def _tell_form(spec: NetworkSpec | None, made: Mapping[str, Any]) -> NetworkSpec | None:
    """The spec of a store, with the form of sine networks that its provenance records."""
    told = SirenForm.from_provenance(made)
    if spec is None or told is None or not can_be_siren(spec):
        return spec
    return SirenForm.of(spec, assumed=told).complete(spec)
