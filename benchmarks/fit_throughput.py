"""Compares how many sine networks per second are fitted by our engine, by two plain loops, and by JAX with vmap.

The baseline trains one `nn.Module` at a time, with autograd and `torch.optim.Adam` at 5e-4 for 1,000 steps. The second
loop also trains one module at a time, but follows our recipe (learning rate and schedule), with as many steps as ours
took on average. The JAX version does the same fit (same initial weights, rates and steps) as one compiled loop over a
batch, with `vmap` over the networks. All contenders run on the same images, and the best round of each counts, because
other work on the machine can only slow a round down.

    python benchmarks/fit_throughput.py --count 1000 --threads 2
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from neuralfunctionals.data import open_images
from neuralfunctionals.inr import RECIPES, FitRecipe, Siren, fit, image_grid, initial_weights, psnr
from neuralfunctionals.weight_space import NetworkSpec

SPEC = NetworkSpec.mlp([2, 32, 32, 1])


def fit_one_by_one(targets: Tensor, steps: int, rates: list[float]) -> tuple[Tensor, float]:
    """Fits each image with an ordinary training loop; returns the PSNR and the number of steps of each."""
    grid = image_grid(28, 28)
    found = []
    for index, target in enumerate(targets):
        siren = Siren(seed=index)
        optimizer = torch.optim.Adam(siren.parameters(), lr=rates[0])
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = rates[step]
            loss = (siren(grid) - target).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            found.append(psnr(siren(grid)[None], target[None]))
    return torch.cat(found), float(steps)


def make_jax_fit(steps: int, rates: np.ndarray) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """The same fit in JAX: vmap over networks and scan over steps, compiled as one function of a batch."""
    import jax
    import jax.numpy as jnp

    grid = jnp.asarray(image_grid(28, 28).numpy())
    schedule = jnp.asarray(rates[:steps])
    groups = [(g.start, g.stop, g.shape) for g in SPEC.groups]

    def forward(vector):
        parts = [vector[start:stop].reshape(shape) for start, stop, shape in groups]
        x = grid
        for layer in range(2):
            x = jnp.sin(30.0 * (x @ parts[2 * layer].T + parts[2 * layer + 1]))
        return x @ parts[4].T + parts[5]

    def error(vector, target):
        return jnp.square(forward(vector) - target).mean()

    gradient = jax.vmap(jax.grad(error))

    @jax.jit
    def fit_batch(start, targets):
        def step(state, now):
            vector, first, second, count = state
            slope = gradient(vector, targets)
            first = 0.9 * first + 0.1 * slope
            second = 0.999 * second + 0.001 * slope**2
            count = count + 1
            change = (first / (1 - 0.9**count)) / (jnp.sqrt(second / (1 - 0.999**count)) + 1e-8)
            return (vector - now * change, first, second, count), None

        zeros = jnp.zeros_like(start)
        (vector, *_), _ = jax.lax.scan(step, (start, zeros, zeros, 0.0), schedule)
        return jax.vmap(error)(vector, targets)

    return lambda start, targets: np.asarray(fit_batch(start, targets))


def prepare_jax(
    sizes: str, steps: int, rates: np.ndarray, starts: np.ndarray, targets: np.ndarray
) -> dict[int, Callable[[np.ndarray, np.ndarray], np.ndarray]]:
    """One compiled function for each batch size; empty if JAX is not installed."""
    fits = {}
    for size in (int(x) for x in sizes.split(",") if x and int(x) <= len(starts)):
        try:
            fits[size] = make_jax_fit(steps, rates)
        except ImportError:
            return {}
        fits[size](starts[:size], targets[:size])
    return fits


def run_jax(
    jax_fit: Callable[[np.ndarray, np.ndarray], np.ndarray],
    size: int,
    count: int,
    starts: np.ndarray,
    targets: np.ndarray,
    steps: int,
) -> tuple[Tensor, float]:
    errors = [jax_fit(starts[i : i + size], targets[i : i + size]) for i in range(0, count, size)]
    return torch.from_numpy(10 * np.log10(4 / np.concatenate(errors))), float(steps)


@dataclass
class Contender:
    """The best rate of one contender, and the quality of its fits."""

    fits_per_second: float = 0.0
    psnr_db: Tensor = field(default_factory=lambda: torch.tensor([float("nan")]))
    mean_steps: float = 0.0

    def add_round(self, count: int, run: Callable[[], tuple[Tensor, float]]) -> None:
        started = time.perf_counter()
        self.psnr_db, self.mean_steps = run()
        seconds = time.perf_counter() - started
        self.fits_per_second = max(self.fits_per_second, count / seconds)
        print(f"{count} fits in {seconds:.1f} s", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", default="mnist-sample", help="28x28 grey images")
    parser.add_argument("--count", type=int, default=1000, help="images fitted by our engine")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slow-count", type=int, default=6, help="images fitted one at a time in each round")
    parser.add_argument("--jax-batches", default="16,64", help="batch sizes to try with JAX; the best counts")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    images = open_images(options.images)
    pixels = torch.from_numpy(images.read(images.select(options.count)))
    targets = (pixels.float() / 127.5 - 1).view(len(pixels), -1, 1)
    items = torch.stack([torch.arange(len(pixels)), torch.zeros(len(pixels), dtype=torch.int64)], 1)
    starts = initial_weights(SPEC, items).numpy()

    engine = fit(pixels[:32], recipe="fast", num_threads=options.threads).engine  # compiles the loop if necessary

    def ours(part: Tensor, recipe: str | FitRecipe) -> tuple[Tensor, float]:
        result = fit(part, recipe=recipe, num_threads=options.threads)
        return result.psnr_db, result.steps.float().mean().item()

    fast, slow = RECIPES["fast"], RECIPES["slow"]
    found = {
        name: Contender() for name in ("fast", "fast, fixed steps", "default", "jax vmap", "same loop", "baseline")
    }
    half, few = pixels[: max(64, len(pixels) // 2)], targets[: options.slow_count]
    found["fast"].add_round(len(pixels), partial(ours, pixels, "fast"))
    steps = round(found["fast"].mean_steps)
    fixed = FitRecipe(steps=steps, learning_rate=fast.learning_rate)
    # One thread is often faster for small tensors, so each loop gets its best. Runs before JAX, whose threads linger.
    fit_one_by_one(few[:1], 5, slow.rates().tolist())  # warm-up: the first use of autograd and Adam loads code
    for threads in sorted({1, options.threads}):
        torch.set_num_threads(threads)
        for _ in range(options.rounds):
            found["same loop"].add_round(len(few), partial(fit_one_by_one, few, steps, fast.rates().tolist()))
            found["baseline"].add_round(len(few), partial(fit_one_by_one, few, slow.steps, slow.rates().tolist()))
    jax_fits = prepare_jax(options.jax_batches, steps, fast.rates().numpy(), starts, targets.numpy())
    for _ in range(options.rounds):
        found["fast"].add_round(len(pixels), partial(ours, pixels, "fast"))
        found["fast, fixed steps"].add_round(len(pixels), partial(ours, pixels, fixed))
        found["default"].add_round(len(half), partial(ours, half, "default"))
        for size, jax_fit in jax_fits.items():
            count = max(size, min(128, len(starts)) // size * size)
            found["jax vmap"].add_round(count, partial(run_jax, jax_fit, size, count, starts, targets.numpy(), steps))
    if not jax_fits:
        del found["jax vmap"]
    table = Table("contender", "fits/s", "times slower than fast", "PSNR min", "median", "mean steps")
    rows = {
        "fast": "ours, fast: each stops at 40 dB",
        "fast, fixed steps": "ours, the mean number of steps for all",
        "default": "ours, default",
        "jax vmap": "JAX vmap, the mean number of steps",
        "same loop": "one at a time, the mean number of steps",
        "baseline": "one at a time, 1,000 steps at 5e-4",
    }
    rates = {name: contender.fits_per_second for name, contender in found.items()}
    for name, contender in found.items():
        table.add_row(
            rows[name],
            f"{contender.fits_per_second:.2f}",
            f"{rates['fast'] / contender.fits_per_second:.1f}",
            f"{contender.psnr_db.min():.1f}",
            f"{contender.psnr_db.median():.1f}",
            f"{contender.mean_steps:.0f}",
        )
    Console().print(table)
    result = {
        "benchmark": "fit_throughput",
        "images": options.images,
        "count": len(pixels),
        "threads": options.threads,
        "machine": platform.machine(),
        "engine": engine,
        "fits_per_second": {name: round(rate, 2) for name, rate in rates.items()},
        "fast_psnr_db_min": round(found["fast"].psnr_db.min().item(), 3),
        "default_psnr_db_median": round(found["default"].psnr_db.median().item(), 3),
        "fast_mean_steps": steps,
        "times_the_baseline": round(rates["fast"] / rates["baseline"], 1),
        "times_the_same_loop": round(rates["fast"] / rates["same loop"], 1),
        "times_jax_vmap": round(rates["fast"] / rates["jax vmap"], 2) if jax_fits else None,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
