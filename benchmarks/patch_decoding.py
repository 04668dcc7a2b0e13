"""Compares two ways to render decoded patch networks: each on its own patch, or with weights gathered for every pixel.

Both render the same networks in one process, interleaved, forward and backward, and must agree. Memory is the peak that
one step adds in a fresh process. Prints a table and, last, one line of JSON.

    python benchmarks/patch_decoding.py --threads 2 --repeats 10
"""

import argparse
import json
import multiprocessing
import platform
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from einops import rearrange
from torch import Tensor

from neuralfunctionals import NetworkSpec, WeightSpaceFeatures
from neuralfunctionals.inr import image_grid, initial_weights, patch_pixels, render, render_patches

SPEC = NetworkSpec.mlp([2, 32, 32, 1])
SIZE = 28


def ours(vectors: Tensor, grid_size: int) -> Tensor:
    return render_patches(WeightSpaceFeatures(SPEC, vectors[..., None]), SIZE, SIZE, grid_size=grid_size)


def gather(vectors: Tensor, grid_size: int) -> Tensor:
    """Renders with a copy of the patch's weights for every pixel."""
    pixels, places = patch_pixels(SIZE, grid_size)
    part = places // pixels.shape[1]
    patch = (part[:, None] * grid_size + part).flatten()
    copies = rearrange(vectors, "(B M) N -> B M N", M=grid_size**2)[:, patch].flatten(0, 1)
    points = image_grid(SIZE, SIZE).repeat(len(copies) // SIZE**2, 1)[:, None]
    values = render(WeightSpaceFeatures(SPEC, copies[..., None]), points)
    return rearrange(values, "(B H W) 1 O -> B H W O", H=SIZE, W=SIZE)


WAYS: dict[str, Callable[[Tensor, int], Tensor]] = {"ours": ours, "gather": gather}


def make_networks(batch: int, grid_size: int) -> Tensor:
    items = torch.stack([torch.arange(batch * grid_size**2), torch.zeros(batch * grid_size**2, dtype=torch.long)], 1)
    return initial_weights(SPEC, items, seed=0).requires_grad_()


def step(way: str, vectors: Tensor, grid_size: int) -> Tensor:
    vectors.grad = None
    WAYS[way](vectors, grid_size).square().mean().backward()
    assert vectors.grad is not None
    return vectors.grad


def peak_memory_mb(way: str, batch: int, grid_size: int, threads: int) -> float:
    """How much a step raises the peak memory of a fresh process that already holds the networks."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak_memory_mb, (way, batch, grid_size, threads))


def _peak_memory_mb(way: str, batch: int, grid_size: int, threads: int) -> float:
    torch.set_num_threads(threads)
    step(way, make_networks(1, grid_size), grid_size)  # loads libraries before the measurement
    vectors = make_networks(batch, grid_size)
    Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak counts from now on
    before = _memory_kb("VmRSS")
    step(way, vectors, grid_size)
    return (_memory_kb("VmHWM") - before) / 1024


def _memory_kb(field: str) -> int:
    return int(re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text())[1])  # pyright: ignore


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grid-size", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=10)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    grid_size, batch = arguments.grid_size, arguments.batch

    vectors = make_networks(batch, grid_size)
    expected, given = (step(way, vectors, grid_size).clone() for way in ("gather", "ours"))
    torch.testing.assert_close(given, expected, atol=1e-5, rtol=1e-3)
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(arguments.repeats):
        for way, values in times.items():
            start = time.perf_counter()
            step(way, vectors, grid_size)
            values.append(1e3 * (time.perf_counter() - start))
    faster = statistics.median(b / a for a, b in zip(times["ours"], times["gather"], strict=True))
    medians = {way: statistics.median(values) for way, values in times.items()}
    memory = {way: peak_memory_mb(way, batch, grid_size, arguments.threads) for way in WAYS}
    print(f"{batch} pictures of {SIZE} x {SIZE} pixels from {grid_size**2} networks each, forward and backward")
    for way in WAYS:
        print(f"{way:8}{medians[way]:>10.1f} ms{memory[way]:>10.1f} MB")
    print(f"ours is {faster:.1f} times as fast and takes 1/{memory['gather'] / memory['ours']:.1f} of the memory")
    print(
        json.dumps(
            {
                "benchmark": "patch_decoding",
                "patches": grid_size**2,
                "batch": batch,
                "threads": arguments.threads,
                "ours_ms": round(medians["ours"], 2),
                "gather_ms": round(medians["gather"], 2),
                "times_faster": round(faster, 2),
                "ours_mb": round(memory["ours"], 1),
                "gather_mb": round(memory["gather"], 1),
                "memory_ratio": round(memory["gather"] / memory["ours"], 2),
                "torch": torch.__version__,
                "machine": platform.machine(),
            }
        )
    )


if __name__ == "__main__":
    main()
