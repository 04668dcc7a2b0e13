"""From a store of networks to one of their latents: `encode_dataset`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from neuralfunctionals.data.shards import Shard, ShardPlan, Task, make_shards
from neuralfunctionals.data.store import Store, StoreError, StoreHeader
from neuralfunctionals.errors import UserError
from neuralfunctionals.weight_space import WeightSpaceFeatures

# Axes: B input networks, M latents, D latent channels.

Encode = Callable[[WeightSpaceFeatures], Float[Tensor, "B M D"]]

_BATCH = 64


@dataclass(frozen=True, eq=False)
class EncodePlan(ShardPlan):
    """Latents for every network of a store, shard by shard; its other tensors are kept."""

    source: Store
    header: StoreHeader
    shared: Any = None
    """The encoder, from networks to latents (`Encode`); called from several threads."""

    @classmethod
    def make(cls, encode: Encode, source: Store, made_by: Mapping[str, Any]) -> EncodePlan:
        """Plans latents.

        Args:
            encode: The encoder, from networks to latents.
            source: A complete store of networks.
            made_by: Everything that determines the latents, as plain JSON; to continue a store, it must be the same.
        """
        if source.header.spec is None:
            raise StoreError(f"The store at {source.path} holds no networks to encode. Make one with nf fit.")
        missing = source.header.num_shards - len(source.shards)
        if missing:
            raise StoreError(f"The store at {source.path} lacks {missing} shards. Repeat the command that makes it.")
        provenance = {
            "kind": "latents",
            "encoder": dict(made_by),
            "networks": dict(source.header.provenance),
            "networks_sha256": hashlib.sha256(source.header.to_bytes()).hexdigest(),
        }
        return cls(source, StoreHeader(source.header.num_items, source.header.shard_size, None, provenance), encode)

    def task(self, shard: int) -> Task:
        return partial(_encode_shard, self.source, shard)


@torch.no_grad()
def _encode_shard(source: Store, shard: int, encode: Encode, progress: Callable[[int], None] | None) -> Shard:
    """Encodes a shard. Batches do not depend on interruptions, so that results stay the same."""
    tensors = source.map_tensors(shard)
    spec = source.header.spec
    assert spec is not None
    latents, item = [], source.header.items_of(shard).start
    for vectors in torch.from_numpy(tensors.pop("weights")).split(_BATCH):
        try:
            latents.append(encode(WeightSpaceFeatures(spec, vectors[..., None])).float().cpu())
        except ValueError as error:
            raise UserError(f"{source.path}, networks from {item}: {error}") from error
        item += len(vectors)
        if progress is not None:
            progress(len(vectors))
    return Shard({**tensors, "latents": torch.cat(latents).numpy()}, source.read_index(shard)[0])


def encode_dataset(
    plan: EncodePlan,
    out: str | os.PathLike[str],
    *,
    workers: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Store:
    """Encodes the networks that are missing from the store; finished shards are kept.

    Args:
        plan: The networks to encode, and the encoder.
        out: The store's directory: new, or started with the same plan.
        workers: Shards encoded at the same time, one thread each. Defaults to all cores.
        progress: Called with the number of items finished since the last call.
    """
    report = progress or (lambda count: None)
    return make_shards(plan, out, workers=workers, progress=lambda count, _: report(count))
