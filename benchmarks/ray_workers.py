"""Compares two Ray workers with one, with one thread each: the time to make a store, and whether it has the same bytes.

python benchmarks/ray_workers.py --count 600
"""

from __future__ import annotations

import argparse
import filecmp
import json
import logging
import tempfile
import time
from pathlib import Path

import ray
from rich.console import Console
from rich.table import Table

from neuralfunctionals.data import FitPlan, fit_dataset, open_images


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", default="mnist-sample")
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--recipe", default="default")
    parser.add_argument("--shard-size", type=int, default=16)
    options = parser.parse_args()
    images = open_images(options.images)
    plan = FitPlan.make(images, limit=options.count, recipe=options.recipe, shard_size=options.shard_size)
    warm = FitPlan.make(images, limit=16, recipe="fast", shard_size=1, seed=1)
    seconds: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as directory:
        for workers in (1, 2):
            ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
            fit_dataset(warm, Path(directory) / f"warm{workers}", ray_address="local")  # starts the workers
            started = time.perf_counter()
            fit_dataset(plan, Path(directory) / str(workers), ray_address="local")
            seconds[workers] = time.perf_counter() - started
            ray.shutdown()
        one, two = Path(directory) / "1", Path(directory) / "2"
        names = sorted(p.name for p in one.iterdir())
        same = names == sorted(p.name for p in two.iterdir()) and filecmp.cmpfiles(one, two, names, False)[0] == names
    table = Table("workers", "seconds", "fits/s")
    for workers, elapsed in seconds.items():
        table.add_row(str(workers), f"{elapsed:.1f}", f"{options.count / elapsed:.1f}")
    Console().print(table)
    times = round(seconds[1] / seconds[2], 2)
    print(
        json.dumps(
            {"benchmark": "ray_workers", **vars(options), "seconds": seconds, "times": times, "same_bytes": same}
        )
    )


if __name__ == "__main__":
    main()
