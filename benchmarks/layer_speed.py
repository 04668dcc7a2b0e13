"""Compares speed and memory of our NFT block with the `nfn` package and with plain matrix products.

Both run in one process on the same input, interleaved, so that a busy machine slows both equally; times are medians.
Prints a table and, last, one line of JSON.

    python benchmarks/layer_speed.py                          # SIREN and small CNN; 32, 64, 128 and 256 channels
    python benchmarks/layer_speed.py --specs siren --channels 32 64 256 --modes eager --threads 1 2
    python benchmarks/layer_speed.py --channels 64 --modes eager compiled
    python benchmarks/layer_speed.py --growth docs/pictures/layer_growth.png
"""

import argparse
import json
import multiprocessing
import platform
import re
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn

from neuralfunctionals import NetworkSpec, WeightSpaceFeatures
from neuralfunctionals.layers import Block, WeightSpaceSelfAttention

SPECS = {"siren": NetworkSpec.mlp([2, 32, 32, 1]), "cnn": NetworkSpec.cnn([1, 16, 16, 16], (3, 3), dense=[10])}
MODES = ("eager", "compiled", "bf16", "bf16 compiled")
NUM_HEADS = 4
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


def our_module(name: str, channels: int) -> nn.Module:
    """The whole block. For the CNN only the attention, because nfn's feed-forward differs there and is larger."""
    spec = SPECS[name]
    if name == "cnn":
        return WeightSpaceSelfAttention(spec, channels, NUM_HEADS)
    return Block(spec, channels, 4 * channels, NUM_HEADS)


def nfn_module(name: str, channels: int) -> nn.Module:
    from nfn import layers

    class NfnBlock(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            spec, c = nfn_spec(name), channels
            self.norms = nn.ModuleList(layers.SimpleLayerNorm(spec, c) for _ in range(2))
            self.attention = layers.NPAttention(spec, c, NUM_HEADS)
            self.feed_forward = nn.Sequential(
                layers.Pointwise(spec, c, 4 * c), layers.TupleOp(nn.GELU()), layers.Pointwise(spec, 4 * c, c)
            )

        def forward(self, x):
            x = x + self.attention(self.norms[0](x))
            return x + self.feed_forward(self.norms[1](x))

    if name == "cnn":
        return layers.NPAttention(nfn_spec(name), channels, NUM_HEADS, share_projections=False)
    return NfnBlock()


def make_input(name: str, channels: int, batch: int) -> WeightSpaceFeatures:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(batch, SPECS[name].num_entries, channels, generator=generator)
    return WeightSpaceFeatures(SPECS[name], values.requires_grad_())


def nfn_input(name: str, channels: int, batch: int):
    from nfn.common import WeightSpaceFeatures as NfnFeatures

    x = make_input(name, channels, batch).detach()
    first = [t.movedim(-1, 1).contiguous().requires_grad_() for t in (*x.weights, *x.biases)]
    return NfnFeatures(first[: x.spec.num_layers], first[x.spec.num_layers :])


def nfn_spec(name: str):
    from nfn.common import network_spec_from_wsfeat

    return network_spec_from_wsfeat(nfn_input(name, 1, 1), set_all_dims=True)


def outputs(result) -> list[Tensor]:
    return [result.tensor] if isinstance(result, WeightSpaceFeatures) else [*result.weights, *result.biases]


def steps(module: nn.Module, features, *, bf16: bool) -> dict[str, Callable[[], None]]:
    def context():
        return torch.autocast("cpu", dtype=torch.bfloat16) if bf16 else nullcontext()

    def forward() -> None:
        with torch.no_grad(), context():
            module(features)

    def forward_backward() -> None:
        with context():
            results = outputs(module(features))
        torch.autograd.backward(results, [torch.ones_like(r) for r in results])

    return {"forward": forward, "forward+backward": forward_backward}


def gemm_steps(name: str, channels: int, batch: int) -> dict[str, Callable[[], None]]:
    """Only the matrix products of the block: projections and feed-forward, then their two gradients."""
    rows = batch * SPECS[name].num_entries
    c = channels
    sizes = [(c, 3 * c), (c, 4 * c), (4 * c, c)]
    operands = [(torch.randn(rows, i), torch.randn(i, o), torch.randn(rows, o)) for i, o in sizes]

    def forward() -> None:
        for x, w, _ in operands:
            _ = x @ w

    def forward_backward() -> None:
        for x, w, y in operands:
            _ = x @ w, y @ w.T, x.T @ y

    return {"forward": forward, "forward+backward": forward_backward}


def time_interleaved(
    functions: dict[str, Callable[[], None]], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Median milliseconds of each function, called in turn."""
    for function in functions.values():
        function()
        function()
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            start = clock()
            function()
            times[name].append(1e3 * (clock() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def peak_memory_mb(who: str, name: str, channels: int, batch: int, threads: int) -> float:
    """How much forward+backward raises the peak memory of a fresh process that already holds the input."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak_memory_mb, (who, name, channels, batch, threads))


def _peak_memory_mb(who: str, name: str, channels: int, batch: int, threads: int) -> float:
    torch.set_num_threads(threads)
    make = {"ours": (our_module, make_input), "nfn": (nfn_module, nfn_input)}[who]
    small = make[0](name, 8), make[1](name, 8, 1)
    steps(*small, bf16=False)["forward+backward"]()  # loads libraries before the measurement
    step = steps(make[0](name, channels), make[1](name, channels, batch), bf16=False)["forward+backward"]
    Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak counts from now on
    before = _memory_kb("VmRSS")
    step()
    return (_memory_kb("VmHWM") - before) / 1024


def _memory_kb(field: str) -> int:
    return int(re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text())[1])  # pyright: ignore


def compare(
    name: str,
    channels: int,
    batch: int,
    modes: list[str],
    repeats: int,
    threads: int,
    clock: Callable[[], float] = time.perf_counter,
) -> list[dict]:
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    modules, features = {}, {}
    for who, make, make_in in (("ours", our_module, make_input), ("nfn", nfn_module, nfn_input)):
        modules[who, "eager"], features[who] = make(name, channels), make_in(name, channels, batch)
        if any("compiled" in mode for mode in modes):
            torch._dynamo.reset()
            modules[who, "compiled"] = torch.compile(modules[who, "eager"])
    functions = {}
    for direction in ("forward", "forward+backward"):
        if name == "siren":
            functions["gemm", "eager", direction] = gemm_steps(name, channels, batch)[direction]
        for (who, how), module in modules.items():
            for mode in dict.fromkeys(["eager", *modes]):
                if ("compiled" in mode) == (how == "compiled"):
                    functions[who, mode, direction] = steps(module, features[who], bf16="bf16" in mode)[direction]
    labels = {" / ".join(key): function for key, function in functions.items()}
    medians = dict(zip(functions, time_interleaved(labels, repeats, clock).values(), strict=True))
    memory = {who: peak_memory_mb(who, name, channels, batch, threads) for who in ("ours", "nfn")}
    rows = []
    for mode in modes:
        for direction in ("forward", "forward+backward"):
            ours, nfn = medians["ours", mode, direction], medians["nfn", "eager", direction]
            gemm = medians.get(("gemm", "eager", direction))
            rows.append(
                {
                    "spec": name,
                    "channels": channels,
                    "threads": threads,
                    "mode": mode,
                    "direction": direction,
                    "ours_ms": round(ours, 2),
                    "nfn_eager_ms": round(nfn, 2),
                    "times_nfn_eager": round(nfn / ours, 2),
                    "times_nfn_same_mode": round(medians["nfn", mode, direction] / ours, 2),
                    "share_of_gemm_rate": None if gemm is None else round(gemm / ours, 2),
                    "memory_ratio": round(memory["ours"] / memory["nfn"], 2) if direction != "forward" else None,
                }
            )
    return rows


def print_table(rows: list[dict]) -> None:
    print(f"{'spec':6} {'ch.':>4} {'threads':>7} {'mode':14} {'direction':17} {'ours ms':>9} {'nfn ms':>9}", end="")
    print(f" {'x nfn':>6} {'x same':>7} {'GEMM':>6} {'memory':>7}")
    for r in rows:
        gemm = "" if r["share_of_gemm_rate"] is None else f"{r['share_of_gemm_rate']:.0%}"
        memory = "" if r["memory_ratio"] is None else f"{r['memory_ratio']:.2f}x"
        print(f"{r['spec']:6} {r['channels']:4} {r['threads']:7} {r['mode']:14} {r['direction']:17}", end="")
        print(
            f" {r['ours_ms']:9.1f} {r['nfn_eager_ms']:9.1f} {r['times_nfn_eager']:5.2f}x"
            f" {r['times_nfn_same_mode']:6.2f}x {gemm:>6} {memory:>7}"
        )
    print("x nfn: speed against nfn eager in float32; x same: against nfn in the same mode;")
    print("GEMM: share of the rate of plain matrix products; memory: peak of forward+backward, eager, against nfn.")


def plot_growth(path: str, repeats: int) -> dict[str, list]:
    """Time of our block, forward+backward in eager mode, against width, depth and batch of the input networks."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    sweeps = {
        "hidden width": [([2, w, w, 1], 4) for w in (8, 16, 32, 64, 128)],
        "layers": [([2, *[32] * (d - 1), 1], 4) for d in (2, 3, 4, 6, 8, 12)],
        "batch": [([2, 32, 32, 1], b) for b in (1, 2, 4, 8, 16, 32)],
    }
    values = {"hidden width": lambda w, b: w[1], "layers": lambda w, b: len(w) - 1, "batch": lambda w, b: b}
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    found = {}
    for axis, (name, cases) in zip(axes, sweeps.items(), strict=True):
        xs = [values[name](*case) for case in cases]
        times = []
        for widths, batch in cases:
            spec = NetworkSpec.mlp(widths)
            features = WeightSpaceFeatures(spec, torch.randn(batch, spec.num_entries, 64).requires_grad_())
            step = steps(Block(spec, 64, 256, NUM_HEADS), features, bf16=False)["forward+backward"]
            times.append(time_interleaved({"step": step}, repeats)["step"])
        found[name] = [xs, [round(t, 2) for t in times]]
        entries = [b * NetworkSpec.mlp(w).num_entries for w, b in cases]
        axis.loglog(xs, times, "o-", label="forward + backward")
        axis.loglog(
            xs, [times[-1] * e / entries[-1] for e in entries], "--", color="grey", label="in proportion to entries"
        )
        axis.set_xlabel(name)
        axis.set_xticks(xs, [str(x) for x in xs])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("milliseconds")
    axes[0].legend(frameon=False)
    figure.suptitle("NFT block, 64 channels: growth with the input networks (2-32-32-1, batch 4, unless varied)")
    figure.savefig(path, dpi=150)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--specs", nargs="+", choices=SPECS, default=list(SPECS))
    parser.add_argument("--channels", nargs="+", type=int, default=[32, 64, 128, 256])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["eager", "compiled"])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", nargs="+", type=int, default=[torch.get_num_threads()])
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="processor suits one thread on a busy machine")
    parser.add_argument("--growth", metavar="PNG", help="instead, draw the growth with width, depth and batch")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads[0])
    machine = {
        "machine": platform.processor() or platform.machine(),
        "threads": arguments.threads,
        "clock": arguments.clock,
    }
    machine |= {"torch": torch.__version__, "capability": torch.backends.cpu.get_cpu_capability()}
    if arguments.growth:
        print(json.dumps({"benchmark": "layer_growth", **machine, **plot_growth(arguments.growth, arguments.repeats)}))
        return
    rows = []
    for name in arguments.specs:
        for channels in arguments.channels:
            for threads in arguments.threads:
                a = arguments
                rows += compare(name, channels, a.batch, a.modes, a.repeats, threads, CLOCKS[a.clock])
    print_table(rows)
    print(json.dumps({"benchmark": "layer_speed", "batch": arguments.batch, **machine, "rows": rows}))


if __name__ == "__main__":
    main()
