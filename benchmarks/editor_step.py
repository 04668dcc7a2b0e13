"""Compares a training step of the small NFT editor with the same step written with the layers of the `nfn` package.

A step is forward, rendering, loss, backward and Adam. Both models train in one process on the same networks and
targets, with interleaved steps, so that a busy machine slows both equally. Prints a table of medians and, last, one
line of JSON.

    python benchmarks/editor_step.py --threads 2 --repeats 15
"""

import argparse
import json
import platform
import statistics
import time

import torch
from torch import nn

from neuralfunctionals import WeightSpaceFeatures
from neuralfunctionals.inr import Siren, render_images
from neuralfunctionals.registry import find_run
from neuralfunctionals.runs import build_model


class NfnEditor(nn.Module):
    """The NFT of the small recipe, built from nfn's layers; takes and returns our packed features."""

    def __init__(self, spec, *, channels, num_blocks, hidden_channels, num_heads, fourier_scale, **_):
        super().__init__()
        from nfn import layers
        from nfn.common import network_spec_from_wsfeat

        self.spec = spec
        example = self.to_nfn(WeightSpaceFeatures.from_vectors(spec, torch.zeros(1, spec.num_entries)))
        theirs = network_spec_from_wsfeat(example, set_all_dims=True)

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.norms = nn.ModuleList(layers.SimpleLayerNorm(theirs, channels) for _ in range(2))
                self.attention = layers.NPAttention(theirs, channels, num_heads)
                self.feed_forward = nn.Sequential(
                    layers.Pointwise(theirs, channels, hidden_channels),
                    layers.TupleOp(nn.GELU()),
                    layers.Pointwise(theirs, hidden_channels, channels),
                )

            def forward(self, x):
                x = x + self.attention(self.norms[0](x))
                return x + self.feed_forward(self.norms[1](x))

        self.body = nn.Sequential(
            layers.GaussianFourierFeatureTransform(theirs, 1, channels // 2, fourier_scale),
            layers.LearnedPosEmbedding(theirs, channels),
            *(Block() for _ in range(num_blocks)),
            layers.SimpleLayerNorm(theirs, channels),
            layers.Pointwise(theirs, channels, 1),
            layers.LearnedScale(theirs, 0.01),
        )

    @staticmethod
    def to_nfn(features):
        from nfn.common import WeightSpaceFeatures as NfnFeatures

        first = [t.movedim(-1, 1) for t in (*features.weights, *features.biases)]
        return NfnFeatures(first[: features.spec.num_layers], first[features.spec.num_layers :])

    def forward(self, features):
        result = self.body(self.to_nfn(features))
        last = [[t.movedim(1, -1) for t in part] for part in (result.weights, result.biases)]
        return WeightSpaceFeatures.from_tensors(self.spec, *last)


def make_step(model, networks, target):
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def step() -> None:
        edited = render_images(networks + model(networks), *target.shape[1:3])
        (edited - target).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)

    run = find_run("edit/mnist-dilate", scale="small", model="nft")
    batch = run.training.batch_size
    networks = WeightSpaceFeatures.from_modules([Siren() for _ in range(batch)])
    target = torch.rand(batch, 28, 28, 1) * 2 - 1
    models = {
        "ours": build_model("nft", networks.spec, run.model, seed=0, compiled=False),
        "nfn": NfnEditor(networks.spec, **run.model),
    }
    steps = {name: make_step(model, networks, target) for name, model in models.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(arguments.repeats + 2):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if repeat >= 2:
                times[name].append(1e3 * (time.perf_counter() - start))
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratio = statistics.median(b / a for a, b in zip(times["ours"], times["nfn"], strict=True))
    for name, model in models.items():
        count = sum(p.numel() for p in model.parameters())
        print(f"{name:6}{count:>10,} parameters{medians[name]:>10.1f} ms per step of {batch} networks")
    print(f"ours is {ratio:.2f} times as fast (median over {arguments.repeats} pairs)")
    print(
        json.dumps(
            {
                "benchmark": "editor_step",
                "threads": arguments.threads,
                "batch": batch,
                "ours_ms": round(medians["ours"], 2),
                "nfn_ms": round(medians["nfn"], 2),
                "times_nfn": round(ratio, 3),
                "torch": torch.__version__,
                "machine": platform.machine(),
            }
        )
    )


if __name__ == "__main__":
    main()
