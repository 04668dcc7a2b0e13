"""Compares fitting recipes: fits/s, PSNR, and the accuracy of a small classifier trained on the fitted weights.

Every recipe fits the same images from the same initial weights. The same classifier (`NeuronGraphNet` with 64 channels,
on canonical weights) is then trained on each set of weights. Use the validation accuracy to choose a recipe, and the
test accuracy to report it.

    python benchmarks/fit_recipes.py --images mnist --train 2400 --val 1000 --test 1000
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from neuralfunctionals.data import open_images
from neuralfunctionals.images.splits import SPLITS
from neuralfunctionals.inr import RECIPES, FitRecipe, fit
from neuralfunctionals.models import NeuronGraphNet
from neuralfunctionals.weight_space import WeightSpaceFeatures, canonicalize

COMPARED: dict[str, FitRecipe] = {
    "fast: 1e-2 cosine, stop at 40 dB": RECIPES["fast"],
    "sharp: 1e-2 cosine, 150 steps": RECIPES["sharp"],
    "5e-3 cosine, 300 steps, stop at 40 dB": FitRecipe(steps=300, learning_rate=5e-3, stop_psnr_db=40.0),
    "default: 3e-3 cosine, stop at 40 dB": RECIPES["default"],
    "2e-3 cosine, all 400 steps": FitRecipe(steps=400, learning_rate=2e-3),
    "2e-3 cosine, 400 steps, stop at 40 dB": FitRecipe(steps=400, learning_rate=2e-3, stop_psnr_db=40.0),
    "slow: 5e-4 constant, 1000 steps": RECIPES["slow"],
}


def classifier_accuracies(
    networks: WeightSpaceFeatures, labels: Tensor, sizes: list[int], epochs: int, seed: int
) -> list[float]:
    """Trains a classifier on the first part; returns its accuracies on the validation and test parts."""
    train, *held_out = (networks.with_tensor(part) for part in networks.tensor.split(sizes))
    labels, *held_out_labels = labels.split(sizes)
    torch.manual_seed(seed)
    classifier = NeuronGraphNet.classification(networks.spec, channels=64, head_channels=(128,))
    optimizer = torch.optim.AdamW(classifier.parameters(), lr=2e-3, weight_decay=0.05)
    batches = math.ceil(len(labels) / 64)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=batches * epochs, pct_start=0.2)
    for _ in range(epochs):
        for batch in torch.randperm(len(labels)).split(64):
            loss = nn.functional.cross_entropy(classifier(train[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        return [
            (classifier(part).argmax(1) == expected).float().mean().item()
            for part, expected in zip(held_out, held_out_labels, strict=True)
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", default="mnist-sample")
    parser.add_argument("--train", type=int, default=2400)
    parser.add_argument("--val", type=int, default=300)
    parser.add_argument("--test", type=int, default=300)
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", help="recipes whose name contains this")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    images = open_images(options.images)
    parts = []
    sizes = [options.train, options.val, options.test]
    for split, count in zip(("train", "val", "test"), sizes, strict=True):
        members = np.flatnonzero(images.splits == SPLITS.index(split))
        if count > len(members):
            parser.error(f"{options.images} has {len(members)} {split} images, fewer than {count}")
        parts.append(members[np.arange(count) * len(members) // count])
    chosen = np.concatenate(parts)
    pixels, labels = images.read(chosen), torch.from_numpy(images.labels[chosen])
    items = torch.stack([torch.from_numpy(chosen), torch.zeros(len(chosen), dtype=torch.int64)], 1)

    names = ("recipe", "fits/s per core", "PSNR min", "median", "mean steps")
    table = Table(*names, "classifier, validation", "classifier, test")
    results = []
    engine = ""
    for name, recipe in COMPARED.items():
        if options.only and options.only not in name:
            continue
        # Processor time, so that other work on the machine does not count.
        started = time.process_time()
        fitted = fit(pixels, recipe=recipe, items=items, num_threads=options.threads)
        seconds, engine = time.process_time() - started, fitted.engine
        networks, _ = canonicalize(fitted.features)
        found = [classifier_accuracies(networks, labels, sizes, options.epochs, seed) for seed in range(options.seeds)]
        validation, test = (statistics.mean(values) for values in zip(*found, strict=True))
        result = {
            "recipe": name,
            "fits_per_core_second": round(len(chosen) / seconds, 1),
            "psnr_db_min": round(fitted.psnr_db.min().item(), 1),
            "psnr_db_median": round(fitted.psnr_db.median().item(), 1),
            "mean_steps": round(fitted.steps.float().mean().item(), 1),
            "validation_accuracy": round(validation, 4),
            "test_accuracy": round(test, 4),
        }
        results.append(result)
        table.add_row(
            name,
            *(str(result[key]) for key in ("fits_per_core_second", "psnr_db_min", "psnr_db_median", "mean_steps")),
            f"{validation:.1%}",
            f"{test:.1%}",
        )
        print(json.dumps(result), flush=True)
    Console().print(table)
    print(json.dumps({"benchmark": "fit_recipes", **vars(options), "engine": engine, "results": results}))


if __name__ == "__main__":
    main()
