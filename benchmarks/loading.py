"""Compares loading shuffled batches of networks from a store with loading one `.pth` file per network.

python benchmarks/loading.py --count 20000 --batch 128
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from neuralfunctionals.data import Store, StoreHeader, WeightDataset
from neuralfunctionals.inr import initial_weights
from neuralfunctionals.weight_space import NetworkSpec, WeightSpaceFeatures

SPEC = NetworkSpec.mlp([2, 32, 32, 1])


def make_store(path: Path, weights: torch.Tensor, shard_size: int) -> WeightDataset:
    count = len(weights)
    store = Store.create(path, StoreHeader(count, shard_size, SPEC, {"kind": "benchmark"}))
    for shard in range(store.header.num_shards):
        items = store.header.items_of(shard)
        here = {
            "weights": weights[items.start : items.stop].numpy(),
            "image": np.zeros((len(items), 28, 28, 1), np.uint8),
            "label": np.zeros(len(items), np.int64),
            "split": np.zeros(len(items), np.uint8),
            "source_index": np.array(items),
            "copy": np.zeros(len(items), np.int64),
        }
        store.write_shard(shard, here, [{"item": item} for item in items])
    return WeightDataset(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--shard-size", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    items = torch.stack([torch.arange(options.count), torch.zeros(options.count, dtype=torch.int64)], 1)
    weights = initial_weights(SPEC, items)
    with tempfile.TemporaryDirectory() as directory:
        dataset = make_store(Path(directory) / "store", weights, options.shard_size)
        files = Path(directory) / "files"
        files.mkdir()
        for index, state_dict in enumerate(WeightSpaceFeatures.from_vectors(SPEC, weights).to_state_dicts()):
            torch.save(state_dict, files / f"net{index}.pth")
        ours = theirs = 0.0
        for round_ in range(options.rounds):
            generator = torch.Generator().manual_seed(round_)
            started, seen = time.perf_counter(), 0
            for batch in dataset.batches(options.batch, generator=generator):
                assert batch.features is not None
                seen += len(batch.features)
            ours = max(ours, seen / (time.perf_counter() - started))
            # Part of an epoch is enough, because every file costs the same.
            order = torch.randperm(options.count, generator=generator)[: 20 * options.batch]
            started = time.perf_counter()
            for part in order.split(options.batch):
                loaded = [torch.load(files / f"net{i}.pth", weights_only=True) for i in part.tolist()]
                features = WeightSpaceFeatures.from_state_dicts(loaded, SPEC)
                assert len(features) == len(part)
            theirs = max(theirs, len(order) / (time.perf_counter() - started))
    table = Table("from", "networks/s")
    table.add_row(f"a store, shards of {options.shard_size}: weights, image, label", f"{ours:,.0f}")
    table.add_row("one .pth file per network: weights", f"{theirs:,.0f}")
    Console().print(table)
    result = {"benchmark": "loading", **vars(options), "store_networks_per_second": round(ours)}
    print(json.dumps({**result, "files_networks_per_second": round(theirs), "times": round(ours / theirs, 1)}))


if __name__ == "__main__":
    main()
