"""Compares our training of CNN zoos with training one network at a time with torch's modules and optimizers.

All contenders do the same work with the same number of threads: the same networks (hyperparameters, batch size, epochs,
number of images, evaluation at the same checkpoints) on 32x32 grey images. Rounds are interleaved, and medians count.
Rates are training images per second, summed over networks. Arithmetic limits our rate, so it is also compared with that
of a large float32 matrix product in the same process.

    python benchmarks/zoo_throughput.py --threads 2
"""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import nn

from neuralfunctionals.cnn.settings import CnnDraws, build_cnn
from neuralfunctionals.cnn.training import CnnImages, checkpoint_epochs, choose_engine, num_batches, train_cnns

POSITIONS = (15 * 15, 7 * 7, 3 * 3)
FORWARD = 2 * (POSITIONS[0] * 9 * 16 + (POSITIONS[1] + POSITIONS[2]) * 144 * 16 + 160)
"""Multiplications and additions for one image."""
# Forward, weight gradients, and input gradients of all but the first layer.
TRAINING = 3 * FORWARD - 2 * POSITIONS[0] * 9 * 16


def train_ours(images: CnnImages, items: range, epochs: int, batch_size: int, threads: int, engine: str) -> None:
    """Trains as nf zoo does: each thread takes its own networks."""
    torch.set_num_threads(1)
    parts = [list(items[start::threads]) for start in range(threads)]
    run = partial(train_cnns, images, epochs=epochs, batch_size=batch_size, engine=engine)
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(run, parts))


def train_plain(
    images: CnnImages, items: range, epochs: int, batch_size: int, threads: int, with_dropout: bool, layout: str
) -> None:
    """Trains one network after the other in a plain loop."""
    torch.set_num_threads(threads)
    memory_format = getattr(torch, layout)
    pixels = torch.from_numpy(images.pixels).movedim(3, 1).contiguous(memory_format=memory_format)
    labels = torch.from_numpy(images.labels).long()
    for item in items:
        draws = CnnDraws(0, item)
        settings = draws.settings
        dropout = settings.dropout if with_dropout else 0.0
        module: nn.Module = build_cnn(activation=settings.activation, dropout=dropout)
        module = module.to(memory_format=memory_format)  # pyright: ignore[reportCallIssue]
        groups = [
            {"params": [p for p in module.parameters() if p.ndim > 1], "weight_decay": 2 * settings.l2reg},
            {"params": [p for p in module.parameters() if p.ndim == 1]},
        ]
        kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}[settings.optimizer]
        optimizer = kind(groups, lr=settings.learning_rate)
        subset = images.train[draws.subset(len(images.train))]
        steps, size = num_batches(len(subset), batch_size)
        for epoch in range(epochs + 1):
            if epoch in checkpoint_epochs(epochs):
                module.eval()
                with torch.no_grad():
                    for which in (subset, images.test):
                        for part in torch.from_numpy(which).split(512):
                            logits = module(pixels[part])
                            _ = F.cross_entropy(logits, labels[part]).item()
                            _ = (logits.argmax(1) == labels[part]).sum().item()
            if epoch == epochs:
                break
            module.train()
            order = torch.from_numpy(draws.order(subset, epoch))
            for step in range(steps):
                batch = order[step * size : (step + 1) * size]
                optimizer.zero_grad()
                F.cross_entropy(module(pixels[batch]), labels[batch]).backward()
                optimizer.step()


def time_product(threads: int) -> float:
    """Multiplications and additions per second of a matrix product."""
    torch.set_num_threads(threads)
    a = torch.randn(1024, 1024)
    torch.mm(a, a)
    started = time.perf_counter()
    for _ in range(5):
        torch.mm(a, a)
    return 5 * 2 * 1024**3 / (time.perf_counter() - started)


def count_images(images: CnnImages, items: range, epochs: int, batch_size: int) -> tuple[int, int]:
    """Images seen in training and in evaluation, over all networks."""
    training = evaluation = 0
    for item in items:
        count = len(CnnDraws(0, item).subset(len(images.train)))
        steps, size = num_batches(count, batch_size)
        training += epochs * steps * size
        evaluation += len(checkpoint_epochs(epochs)) * (count + len(images.test))
    return training, evaluation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--networks", type=int, default=4)
    parser.add_argument("--images", type=int, default=1024, help="training images")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    generator = np.random.default_rng(0)
    count = options.images + options.images // 5
    images = CnnImages(
        generator.uniform(-1, 1, (count, 32, 32, 1)).astype(np.float32),
        generator.integers(0, 10, count).astype(np.int32),
        np.arange(options.images),
        np.arange(options.images, count),
        10,
    )
    items = range(options.networks)
    common = (images, items, options.epochs, options.batch_size, options.threads)
    engine = choose_engine("auto", 1)
    contenders: dict[str, Callable[[], None]] = {
        f"ours, {engine}": partial(train_ours, *common, engine),
        "ours, torch engine": partial(train_ours, *common, "torch"),
        "one at a time": partial(train_plain, *common, True, "contiguous_format"),
        "one at a time, channels last": partial(train_plain, *common, True, "channels_last"),
        "one at a time, no dropout": partial(train_plain, *common, False, "contiguous_format"),
        "one at a time, no dropout, channels last": partial(train_plain, *common, False, "channels_last"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    products = []
    for number in range(options.rounds + 1):
        for name, run in contenders.items():
            started = time.perf_counter()
            run()
            if number:  # the first round is a warm-up
                seconds[name].append(time.perf_counter() - started)
        products.append(time_product(options.threads))
        print(f"round {number} of {options.rounds}", file=sys.stderr, flush=True)
    training, evaluation = count_images(images, items, options.epochs, options.batch_size)
    rates = {name: training / statistics.median(times) for name, times in seconds.items()}
    ours = next(iter(contenders))
    # Ratios are relative to the best plain loop.
    with_dropout = max(rates["one at a time"], rates["one at a time, channels last"])
    without = max(rates["one at a time, no dropout"], rates["one at a time, no dropout, channels last"])
    arithmetic = (training * TRAINING + evaluation * FORWARD) / statistics.median(seconds[ours])
    product = statistics.median(products)
    table = Table("contender", "training images/s", "us an image and thread", "ours is faster by")
    for name, rate in rates.items():
        table.add_row(name, f"{rate:,.0f}", f"{1e6 * options.threads / rate:.1f}", f"{rates[ours] / rate:.1f}")
    Console().print(table)
    print(
        f"{ours}: {arithmetic / 1e9:.1f} GFLOP/s, {100 * arithmetic / product:.0f}% of a 1024x1024 matrix product's "
        f"{product / 1e9:.1f} GFLOP/s"
    )
    result = {
        "benchmark": "zoo_throughput",
        "threads": options.threads,
        "networks": options.networks,
        "batch_size": options.batch_size,
        "machine": platform.machine(),
        "engine": engine,
        "images_per_second": {name: round(rate) for name, rate in rates.items()},
        "times_one_at_a_time": round(rates[ours] / with_dropout, 2),
        "times_one_at_a_time_without_dropout": round(rates[ours] / without, 2),
        "gflops": round(arithmetic / 1e9, 1),
        "fraction_of_matrix_product": round(arithmetic / product, 3),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
