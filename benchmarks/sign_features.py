"""Compares features that are equivariant to signs and phases with canonical weights, for classifying sine networks.

The weights of a neuron sin(w x + b) may change by a sign s, and its bias by half turns of parity p. `PhasorClassifier`
gives each neuron features of four kinds, which are then multiplied by 1, s, p or s p: incoming weights are of kind s,
outgoing ones of kind s p, cos b of kind p and sin b of kind s p. The product of two kinds is of the third, so products
and messages along the weights keep the kinds. The class is predicted from features of kind 1 and absolute values, so
the classifier is invariant without the discontinuities of the canonical form. It is trained for as much processor time
as `NeuronGraphNet` on raw and on canonical weights, each with the better learning rate by validation. Prints a table
and, last, one line of JSON.

    nf fit --images mnist --limit 6000 --out digits
    python benchmarks/sign_features.py --data digits --seconds 90
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from neuralfunctionals import NetworkSpec, SineSymmetry, WeightSpaceFeatures
from neuralfunctionals.data import WeightDataset
from neuralfunctionals.models import Canonical, NeuronGraphNet

BATCH = 32
RATES = (1e-3, 3e-3)
EVEN, SIGN, PARITY, BOTH = range(4)
"""Kinds of features."""


class PhasorRound(nn.Module):
    """Updates the features of one hidden layer from themselves and from the messages of the neighbouring layers."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        sizes = [3 * channels, 2 * channels, channels, 2 * channels]
        self.mixes = nn.ModuleList(nn.Linear(size, 2 * channels, bias=kind == EVEN) for kind, size in enumerate(sizes))
        self.even = nn.Sequential(nn.Linear(5 * channels, channels), nn.GELU(), nn.Linear(channels, channels))
        self.gates = nn.Linear(channels, 3 * channels)
        self.odd = nn.ModuleList(nn.Linear(3 * channels, channels, bias=False) for _ in range(3))

    def forward(self, kinds: list[Tensor], sent: list[list[Tensor]]) -> list[Tensor]:
        joined = [torch.cat([x, *more], -1) for x, more in zip(kinds, sent, strict=True)]
        seen = [F.rms_norm(x, x.shape[-1:]) for x in joined]
        first, second = zip(*(mix(x).chunk(2, -1) for mix, x in zip(self.mixes, seen, strict=True)), strict=True)
        squares = [first[kind] * second[kind] for kind in (SIGN, PARITY, BOTH)]
        even = kinds[EVEN] + self.even(torch.cat([first[EVEN], second[EVEN], *squares], -1))
        gates = self.gates(F.gelu(first[EVEN])).sigmoid().chunk(3, -1)
        updated = [even]
        for kind, gate, linear in zip((SIGN, PARITY, BOTH), gates, self.odd, strict=True):
            a, b = (other for other in (SIGN, PARITY, BOTH) if other != kind)
            mixed = torch.cat([first[kind], first[kind] * second[EVEN], first[a] * second[b]], -1)
            updated.append(kinds[kind] + gate * linear(mixed))
        return updated


class PhasorClassifier(nn.Module):
    """Classifies sine networks; invariant to permutation, sign and phase."""

    def __init__(self, spec: NetworkSpec, *, channels: int = 32, num_rounds: int = 4, omega: float = 30.0) -> None:
        super().__init__()
        self.spec, self.omega = spec, omega
        self.ends = nn.ParameterList(torch.randn(n, channels) for n in (spec.widths[0], spec.widths[-1]))
        self.starts = nn.ParameterList(torch.randn(5, channels) for _ in spec.widths[1:-1])
        self.updates = nn.ModuleList(PhasorRound(channels) for _ in range(num_rounds * (len(spec.widths) - 2)))
        pooled = 2 * 4 * channels * (len(spec.widths) - 2) + channels
        self.head = nn.Sequential(nn.Linear(pooled, 128), nn.GELU(), nn.Dropout(0.1), nn.Linear(128, 10))

    def forward(self, features: WeightSpaceFeatures) -> Tensor:
        weights = [w[..., 0] for w in features.weights]
        # Weights are divided by the root mean square of their layer.
        weights = [w / w.square().mean((1, 2), keepdim=True).add(1e-12).sqrt() for w in weights]
        last = len(weights) - 1
        layers = []
        for bias, start in zip(features.biases[:-1], self.starts, strict=True):
            angle = self.omega * bias
            one, twice = torch.ones_like(angle), 2 * angle
            layers.append(
                [
                    one * start[0] + twice.cos() * start[1],
                    twice.sin() * start[2],
                    angle.cos() * start[3],
                    angle.sin() * start[4],
                ]
            )
        for number, update in enumerate(self.updates):
            n = number % len(layers)
            into, out = weights[n], weights[n + 1].mT
            behind = [self.ends[0]] * 4 if n == 0 else layers[n - 1]
            ahead = [self.ends[1]] * 4 if n + 1 == last else layers[n + 1]
            even = [_send(into.abs(), behind[EVEN], signed=False), _send(out.abs(), ahead[EVEN], signed=False)]
            layers[n] = update(layers[n], [even, [_send(into, behind[BOTH])], [], [_send(out, ahead[SIGN])]])
        even = [x for kinds in layers for x in (kinds[EVEN], *(x.abs() for x in kinds[1:]))]
        pooled = [value for x in even for value in (x.mean(1), x.amax(1))]
        answer = _send(weights[-1], layers[-1][BOTH]).sum(1)
        return self.head(torch.cat([*pooled, answer], -1))


def _send(weights: Tensor, states: Tensor, *, signed: bool = True) -> Tensor:
    return weights @ states / (math.sqrt(weights.shape[-1]) if signed else weights.shape[-1])


def read(data: WeightDataset) -> tuple[WeightSpaceFeatures, Tensor]:
    """The networks and their classes."""
    items = data[:]
    assert items.features is not None
    return items.features, items.label


def train(model: nn.Module, data: WeightDataset, rate: float, seconds: float, seed: int) -> tuple[int, list[float]]:
    """Trains for the given processor time; returns the steps and the accuracies on the validation and test splits."""
    (networks, labels), *held_out = [read(data.split(name)) for name in ("train", "val", "test")]
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    generator = torch.Generator().manual_seed(seed)
    started, steps, spent = time.process_time(), 0, 0.0
    model.train()
    while spent < seconds:
        for batch in torch.randperm(len(labels), generator=generator).split(BATCH):
            spent = time.process_time() - started
            part = min(1.0, spent / seconds)
            for group in optimizer.param_groups:  # warm-up, then cosine decay to zero
                group["lr"] = rate * min(1.0, 16 * part) * 0.5 * (1 + math.cos(math.pi * part))
            F.cross_entropy(model(networks[batch]), labels[batch]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if spent >= seconds:
                break
    model.eval()
    with torch.no_grad():
        return steps, [(model(x).argmax(1) == y).float().mean().item() for x, y in held_out]


def check(model: nn.Module, networks: WeightSpaceFeatures) -> float:
    """The largest change of the output when signs and phases of the neurons change."""
    model, networks = model.double().eval(), networks.with_tensor(networks.tensor.double())
    with torch.no_grad():
        change = (model(SineSymmetry.random(networks.spec)(networks)) - model(networks)).abs().max().item()
    model.float()
    return change


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="store of networks made by nf fit")
    parser.add_argument("--seconds", type=float, default=90, help="processor time of each training")
    parser.add_argument("--channels", type=int, default=32, help="channels of each kind of feature")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    data = WeightDataset(options.data)
    spec = data.spec
    models: dict[str, Callable[[], nn.Module]] = {
        "phasor": lambda: PhasorClassifier(spec, channels=options.channels),
        "neuron-graph, canonical": lambda: Canonical(NeuronGraphNet.classification(spec, channels=64, dropout=0.1)),
        "neuron-graph, raw": lambda: NeuronGraphNet.classification(spec, channels=64, dropout=0.1),
    }
    table = Table("model", "parameters", "change by signs and phases", "rate", "steps", "validation", "test")
    results = []
    for name, make in models.items():
        found = []
        for rate in RATES:
            torch.manual_seed(options.seed)
            model = make()
            change = check(model, read(data)[0][:4])
            steps, accuracies = train(model, data, rate, options.seconds, options.seed)
            count = sum(p.numel() for p in model.parameters())
            found.append({"model": name, "parameters": count, "change": change, "rate": rate, "steps": steps})
            found[-1] |= {"validation": accuracies[0], "test": accuracies[1]}
        best = max(found, key=lambda result: result["validation"])
        results.append(best)
        table.add_row(
            name,
            f"{best['parameters']:,}",
            f"{best['change']:.0e}",
            f"{best['rate']:g}",
            f"{best['steps']:,}",
            f"{best['validation']:.1%}",
            f"{best['test']:.1%}",
        )
    Console().print(table)
    machine = {"torch": torch.__version__, "machine": platform.machine()}
    print(json.dumps({"benchmark": "sign_features", **vars(options), "results": results, **machine}))


if __name__ == "__main__":
    main()
