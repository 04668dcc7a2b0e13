"""Networks with extreme numbers through what computes with them.

    python tools/adversary/numerics.py               1,000 cases
    python tools/adversary/numerics.py --short       60 of them, in seconds

Entries from 1e-45 to 3e38, zeros, denormal numbers, single outliers, in half, single and double precision. Every case
must be refused with a `ValueError`, or give finite numbers that agree with a computation in double precision. Ends with
exit code 1 if anything else happened.
"""

from __future__ import annotations

import math
import random
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from trials import Tally, parser, warm_up, workshop

from neuralfunctionals import NetworkSpec, NeuronPermutation, SineSymmetry, WeightSpaceFeatures, canonicalize
from neuralfunctionals.data import build_cnn
from neuralfunctionals.data.formats.network_files import read_networks, write_networks
from neuralfunctionals.inr import SirenForm, convert, render
from neuralfunctionals.models import StatNN
from neuralfunctionals.runs import open_run

SPEC = NetworkSpec.mlp([2, 8, 8, 1])
SIREN = NetworkSpec.mlp([2, 32, 32, 1])
DTYPES = (torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16)


def draw(spec: NetworkSpec, dice: random.Random, dtype: torch.dtype, *, largest: float = 38.4) -> WeightSpaceFeatures:
    """A few networks of random and often extreme size."""
    generator = torch.Generator().manual_seed(dice.randrange(2**31))
    tensor = torch.randn(3, spec.num_entries, 1, generator=generator, dtype=torch.float64) / 8
    kind = dice.choice(["plain", "scaled", "outlier", "zeros", "mixed"])
    size = 10.0 ** dice.uniform(-45, largest)
    if kind == "scaled":
        tensor *= size
    elif kind == "outlier":
        tensor[dice.randrange(3), dice.randrange(spec.num_entries)] = dice.choice([size, -size])
    elif kind == "zeros":
        tensor[dice.randrange(3)] = 0
    elif kind == "mixed":
        tensor *= 10.0 ** (torch.rand(tensor.shape, generator=generator, dtype=torch.float64) * 20 - 10)
    return WeightSpaceFeatures(spec, tensor.clamp(-3.4e38, 3.4e38).to(dtype))


def evaluate(networks: WeightSpaceFeatures, omega: float, points: Tensor) -> Tensor:
    return render(SirenForm(omega).label(networks).to(torch.float64), points.double())


def canonical(dice: random.Random, path: Path) -> str:
    """The canonical form shows the same and does not depend on signs, phases and order."""
    dtype, omega = dice.choice(DTYPES), dice.choice([1.0, 30.0, 100.0])
    networks = draw(SPEC, dice, dtype)
    made, _ = canonicalize(networks, omega=omega)
    if dtype not in (torch.float32, torch.float64):
        return f"{dtype} was not refused"
    if not bool(made.tensor.isfinite().all()):
        return "not finite"
    biases = torch.cat([b.flatten() for b in networks.biases[:-1]]).double().abs().max().item()
    weights = torch.cat([w.flatten() for w in networks.weights]).double().abs().max().item()
    # Rounding of the biases, carried through the layers; where it is not small, nothing can be said.
    error = 64 * torch.finfo(dtype).eps * omega * max(1.0, biases) * (1 + omega * 8 * weights) ** 2
    if error < 1e-2:
        points = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
        difference = (evaluate(made, omega, points) - evaluate(networks, omega, points)).abs().max().item()
        if difference > error:
            return f"shows something else, by {difference:.3g}, expected at most {error:.3g}"
    generator = torch.Generator().manual_seed(dice.randrange(2**31))
    g = SineSymmetry.random(SPEC, omega=omega, generator=generator)
    again, _ = canonicalize(g(networks), omega=omega)
    return _compare_canonical(made, again, 1e3 * torch.finfo(dtype).eps * (1 + biases) * (1 + 1 / omega), omega)


def _compare_canonical(a: WeightSpaceFeatures, b: WeightSpaceFeatures, tolerance: float, omega: float) -> str:
    """Invariant but where a phase lies at the edge of its interval, on which side rounding decides."""
    for n in range(len(a)):
        quarters = torch.cat([bias[n].flatten() for bias in a.biases[:-1]]).double() * (2 * omega / math.pi)
        if ((quarters - quarters.round()).abs() < 4 * omega * tolerance).any():
            continue
        difference = (a.tensor[n] - b.tensor[n]).abs().max().item()
        scale = max(1.0, a.tensor[n].abs().max().item())
        if not difference <= tolerance * scale:
            return f"not invariant: network {n} differs by {difference:.3g}, expected at most {tolerance * scale:.3g}"
    return ""


def conversion(dice: random.Random, path: Path) -> str:
    """Networks converted to another form and back are what they were, or not finite and then refused on writing."""
    networks = draw(SPEC, dice, torch.float32)
    forms = [SirenForm(10.0 ** dice.uniform(-2, 3), dice.choice(["paper", "dws"])) for _ in range(2)]
    there = convert(forms[0].label(networks), forms[1])
    if not bool(there.tensor.isfinite().all()):
        there.require_finite()
        return "not finite, and not found"
    back = convert(there, forms[0])
    scale = networks.tensor.abs().amax((1, 2), keepdim=True).clamp_min(1.0)
    difference = ((back.tensor - networks.tensor).abs() / scale).max().item()
    return "" if difference < 1e-4 else f"back from {forms[1]} it differs by {difference:.3g}"


def files(dice: random.Random, path: Path) -> str:
    """What is written is read again, bit by bit; what is not finite is refused."""
    ending = dice.choice([".pth", ".safetensors", ".npz"])
    networks = draw(SPEC, dice, dice.choice([torch.float32, torch.float64]))[:1]
    write_networks(path / f"a{ending}", networks)
    found = read_networks(path / f"a{ending}")
    return "" if torch.equal(found.tensor, networks.tensor.float()) else "other numbers"


def edit(dice: random.Random, path: Path) -> str:
    """Edited networks are finite."""
    task = _opened(dice.choice(["digits-dilate", "digits-erode"])).task
    edited = task.edit(draw(SIREN, dice, torch.float32))
    return "" if bool(edited.tensor.isfinite().all()) else "silent: not finite"


def encode(dice: random.Random, path: Path) -> str:
    """Latents are finite."""
    latents = _opened("digits-inr2array").task.encode(draw(SIREN, dice, torch.float32))
    return "" if bool(latents.isfinite().all()) else "silent: not finite"


def classify(dice: random.Random, path: Path) -> str:
    """A class of a network that was read without overflow."""
    classes = _opened("digits-classify").task.classify(draw(SIREN, dice, torch.float32))
    return "" if set(classes.tolist()) <= set(range(10)) else f"classes {classes.tolist()}"


def predict(dice: random.Random, path: Path) -> str:
    """Accuracies are finite and from 0 to 1."""
    spec = NetworkSpec.from_module(build_cnn())
    accuracies = _opened("cnn-accuracy").task.predict(draw(spec, dice, torch.float32))
    return "" if bool(((accuracies >= 0) & (accuracies <= 1)).all()) else f"accuracies {accuracies.tolist()}"


def statistics(dice: random.Random, path: Path) -> str:
    """StatNN on no networks and in half precision."""
    dtype = dice.choice(DTYPES)
    model = StatNN(SPEC, out_channels=1).to(dtype).eval()
    networks = draw(SPEC, dice, dtype, largest=3)[: dice.randrange(4)]
    out = model(networks)
    if out.shape != (len(networks), 1):
        return f"shape {tuple(out.shape)} for {len(networks)} networks"
    return "" if bool(out.isfinite().all()) or not bool(networks.tensor.isfinite().all()) else "not finite"


def permutation(dice: random.Random, path: Path) -> str:
    """A permuted network has the same entries."""
    networks = draw(SPEC, dice, dice.choice(DTYPES))
    g = NeuronPermutation.random(SPEC, generator=torch.Generator().manual_seed(dice.randrange(2**31)))
    back = g.inverse()(g(networks))
    return "" if torch.equal(back.tensor, networks.tensor) else "other entries"


_OPEN: dict[str, Any] = {}


def _opened(name: str) -> Any:
    if name not in _OPEN:
        _OPEN[name] = open_run(name)
    return _OPEN[name]


CASES: tuple[Callable[[random.Random, Path], str], ...] = (
    *(canonical, canonical, canonical, conversion, files, edit, encode, classify, predict, statistics, permutation),
)


def main() -> int:
    made = parser(__doc__)
    made.add_argument("--count", type=int, default=1000, help="cases (1000)")
    options = made.parse_args()
    tally, dice = Tally("numerics", options.seed), random.Random(options.seed)
    warm_up()
    warnings.simplefilter("ignore")
    with tally, workshop(options.keep) as path, torch.no_grad():
        for number in range(60 if options.short else options.count):
            case, seed = CASES[number % len(CASES)], dice.randrange(2**31)
            try:
                failure, kind = case(random.Random(seed), path), "right"
            except ValueError:
                failure, kind = "", "refused"
            except Exception as error:
                failure, kind = repr(error)[:300], "traceback"
            tally.add(case.__name__, kind, failure and f"seed {seed}: {failure}")
    return tally.finish()


if __name__ == "__main__":
    sys.exit(main())
