"""Compares the training speed of message passing with the compiled update and with the plain PyTorch update.

A step is a forward and a backward pass through rounds of `NeuronRound`. Both versions take turns in one process on the
same input, so that a busy machine slows both equally; ratios are medians of the ratios of neighbouring steps. The share
of the GEMM rate is relative to the matrix products of the MLPs alone, as PyTorch computes them, in the same turns.
Prints a table and, last, one line of JSON.

    python benchmarks/message_passing.py --threads 1 2
    python benchmarks/message_passing.py --threads 1 --channels 16 64 256 --gates 1 8
"""

import argparse
import itertools
import json
import platform
import statistics
import time
from collections.abc import Callable

import torch

from neuralfunctionals import NetworkSpec, kernels
from neuralfunctionals.layers import NeuronStates

CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


def make_step(spec: NetworkSpec, channels: int, hidden: int, num_gates: int, num_rounds: int, batch: int):
    """The step and the multiply-adds of one forward pass."""
    layer = NeuronStates(spec, 1, channels, num_rounds=num_rounds, hidden_channels=hidden, num_gates=num_gates)
    hidden_widths = spec.widths[1:-1]
    states = {i: torch.randn(batch, n, channels).requires_grad_() for i, n in enumerate(hidden_widths, 1)}
    pairs = list(itertools.pairwise(hidden_widths))
    gates = []
    for m, n in pairs:
        forwards = torch.randn(batch, num_gates, 2 * n, m) / m**0.5
        backwards = torch.randn(batch, num_gates, 2 * m, n) / n**0.5
        gates.append((forwards.requires_grad_(), backwards.requires_grad_()))

    def step() -> None:
        values = states
        for update in layer.rounds:
            values = update(values, gates)
        ends = list(values.values())
        torch.autograd.backward(ends, [torch.ones_like(v) for v in ends])

    messages = sum(4 * m * n * channels for m, n in pairs)
    mlps = sum(n * hidden * channels * (2 + 2 * (i > 0) + 2 * (i < len(pairs))) for i, n in enumerate(hidden_widths))
    return step, num_rounds * batch * (messages + mlps)


def make_gemms(spec: NetworkSpec, channels: int, hidden: int, num_rounds: int, batch: int):
    """The matrix products of the MLPs of the hidden layers, with both gradients, and their multiply-adds."""
    rows = batch * max(spec.widths)
    sizes = [(3 * channels, hidden), (hidden, channels)]
    operands = [(torch.randn(rows, i), torch.randn(i, o), torch.randn(rows, o)) for i, o in sizes]

    def step() -> None:
        for _ in range(num_rounds):
            for x, w, y in operands:
                _ = x @ w, y @ w.T, x.T @ y

    return step, num_rounds * rows * sum(i * o for i, o in sizes)


def time_in_turns(steps: list[Callable[[], None]], repeats: int, clock: Callable[[], float]) -> list[list[float]]:
    """Seconds of each step in each turn."""
    times: list[list[float]] = [[] for _ in steps]
    for repeat in range(repeats + 2):
        for step, found in zip(steps, times, strict=True):
            start = clock()
            step()
            if repeat >= 2:
                found.append(clock() - start)
    return times


def compare(spec: NetworkSpec, channels: int, num_gates: int, threads: int, arguments: argparse.Namespace) -> dict:
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    hidden = arguments.hidden_factor * channels
    step, work = make_step(spec, channels, hidden, num_gates, arguments.rounds, arguments.batch)
    gemms, gemm_work = make_gemms(spec, channels, hidden, arguments.rounds, arguments.batch)

    def plain() -> None:
        with kernels.use("plain"):
            step()

    times = time_in_turns([plain, step, gemms], arguments.repeats, CLOCKS[arguments.clock])
    medians = [statistics.median(t) for t in times]
    rates = [6e-9 * w / t for w, t in zip([work, work, gemm_work], medians, strict=True)]
    shares = [(work / t) / (gemm_work / g) for t, g in zip(times[1], times[2], strict=True)]
    return {
        "channels": channels,
        "gates": num_gates,
        "threads": threads,
        "plain_networks_per_second": round(arguments.batch / medians[0]),
        "networks_per_second": round(arguments.batch / medians[1]),
        "plain_gflops": round(rates[0], 1),
        "gflops": round(rates[1], 1),
        "gemm_gflops": round(rates[2], 1),
        "times_plain": round(statistics.median([p / c for p, c in zip(times[0], times[1], strict=True)]), 2),
        "share_of_gemm_rate": round(statistics.median(shares), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", nargs="+", type=int, default=[2, 32, 32, 1], help="widths of the input networks")
    parser.add_argument("--channels", nargs="+", type=int, default=[64])
    parser.add_argument("--gates", nargs="+", type=int, default=[1])
    parser.add_argument("--hidden-factor", type=int, default=2, help="hidden channels of the MLPs per channel")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", nargs="+", type=int, default=[torch.get_num_threads()])
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="processor suits one thread on a busy machine")
    arguments = parser.parse_args()
    spec = NetworkSpec.mlp(arguments.widths)

    print(f"{'ch.':>4}{'gates':>6}{'threads':>9}{'networks/s':>12}{'plain':>8}{'GFLOP/s':>9}{'plain':>7}", end="")
    print(f"{'GEMM':>7}{'x plain':>9}{'of GEMM':>9}")
    rows = []
    choices = itertools.product(arguments.channels, arguments.gates, arguments.threads)
    for channels, num_gates, threads in choices:
        rows.append(r := compare(spec, channels, num_gates, threads, arguments))
        print(f"{channels:4}{num_gates:6}{threads:9}{r['networks_per_second']:12}", end="")
        print(f"{r['plain_networks_per_second']:8}{r['gflops']:9.1f}{r['plain_gflops']:7.1f}", end="")
        print(f"{r['gemm_gflops']:7.1f}{r['times_plain']:8.2f}x{r['share_of_gemm_rate']:9.0%}")
    about = {name: getattr(arguments, name) for name in ("widths", "hidden_factor", "rounds", "batch", "clock")}
    machine = {"machine": platform.processor() or platform.machine(), "torch": torch.__version__}
    print(json.dumps({"benchmark": "message_passing", **about, **machine, "rows": rows}))


if __name__ == "__main__":
    main()
