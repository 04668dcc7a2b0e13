"""Compares the speed of an NFT training step with that of its matrix products.

A step is a forward pass, a backward pass and an AdamW update of a classifier with HNP pooling. We count its matrix
products (projections, feed-forward and attention, with their gradients) and compare the rate with that of the dense
ones alone, as PyTorch computes them. Both take turns in one process, so that a busy machine slows both equally. Ratios
are medians of the ratios of neighbouring turns. Prints a table and, last, one line of JSON.

    python benchmarks/nft_step.py --channels 32 64 --threads 1 2
    python benchmarks/nft_step.py --channels 256 --batch 8
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable

import torch

from neuralfunctionals import NetworkSpec, WeightSpaceFeatures
from neuralfunctionals.models import NFT

CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
NUM_CLASSES = 10


def make_step(spec: NetworkSpec, channels: int, hidden: int, num_blocks: int, batch: int) -> Callable[[], None]:
    model = NFT(
        spec,
        out_channels=NUM_CLASSES,
        channels=channels,
        num_blocks=num_blocks,
        hidden_channels=hidden,
        num_heads=4,
        pooling="HNP",
        head_channels=(256,),
    )
    networks = WeightSpaceFeatures.from_vectors(spec, 0.1 * torch.randn(batch, spec.num_entries))
    labels = torch.arange(batch) % NUM_CLASSES
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        torch.nn.functional.cross_entropy(model(networks), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def count_products(spec: NetworkSpec, channels: int, hidden: int, num_blocks: int, batch: int) -> tuple[int, int]:
    """Multiply-adds of one forward pass: of the dense products, and of the attention's."""
    dense = spec.num_entries * channels * (3 * channels + 2 * hidden)
    attention = 0
    for axis, n in enumerate(spec.widths):
        vectors = sum(g.size // n for g in spec.groups if axis in g.axes)
        attention += 2 * vectors**2 * n * channels
    return num_blocks * batch * dense, num_blocks * batch * attention


def make_gemms(spec: NetworkSpec, channels: int, hidden: int, num_blocks: int, batch: int) -> Callable[[], None]:
    rows = batch * spec.num_entries
    sizes = [(channels, 3 * channels), (channels, hidden), (hidden, channels)]
    operands = [(torch.randn(rows, i), torch.randn(i, o), torch.randn(rows, o)) for i, o in sizes]

    def step() -> None:
        for _ in range(num_blocks):
            for x, w, y in operands:
                _ = x @ w, y @ w.T, x.T @ y

    return step


def compare(spec: NetworkSpec, channels: int, threads: int, arguments: argparse.Namespace) -> dict:
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    shape = spec, channels, arguments.hidden_factor * channels, arguments.blocks, arguments.batch
    step, gemms, clock = make_step(*shape), make_gemms(*shape), CLOCKS[arguments.clock]
    dense, attention = count_products(*shape)
    times: list[list[float]] = [[], []]
    for repeat in range(arguments.repeats + 2):
        for function, found in zip((step, gemms), times, strict=True):
            start = clock()
            function()
            if repeat >= 2:
                found.append(clock() - start)
    seconds, gemm_seconds = map(statistics.median, times)
    shares = [(dense + attention) / dense * g / s for s, g in zip(*times, strict=True)]
    return {
        "channels": channels,
        "hidden": shape[2],
        "threads": threads,
        "networks_per_second": round(arguments.batch / seconds),
        "gflops": round(6e-9 * (dense + attention) / seconds, 1),
        "gemm_gflops": round(6e-9 * dense / gemm_seconds, 1),
        "share_of_gemm_rate": round(statistics.median(shares), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", nargs="+", type=int, default=[2, 32, 32, 1], help="widths of the input networks")
    parser.add_argument("--channels", nargs="+", type=int, default=[32])
    parser.add_argument("--hidden-factor", type=int, default=2, help="hidden channels of the MLPs per channel")
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", nargs="+", type=int, default=[torch.get_num_threads()])
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="processor suits one thread on a busy machine")
    arguments = parser.parse_args()
    spec = NetworkSpec.mlp(arguments.widths)

    print(f"{'ch.':>4}{'hidden':>8}{'threads':>9}{'networks/s':>12}{'GFLOP/s':>9}{'GEMM':>7}{'of GEMM':>9}")
    rows = []
    for channels in arguments.channels:
        for threads in arguments.threads:
            rows.append(r := compare(spec, channels, threads, arguments))
            print(f"{channels:4}{r['hidden']:8}{threads:9}{r['networks_per_second']:12}{r['gflops']:9.1f}", end="")
            print(f"{r['gemm_gflops']:7.1f}{r['share_of_gemm_rate']:9.0%}")
    about = {name: getattr(arguments, name) for name in ("widths", "blocks", "batch", "clock")}
    kernels = os.environ.get("NF_KERNELS", "auto")
    machine = {"machine": platform.processor() or platform.machine(), "torch": torch.__version__}
    print(json.dumps({"benchmark": "nft_step", "kernels": kernels, **about, **machine, "rows": rows}))


if __name__ == "__main__":
    main()
