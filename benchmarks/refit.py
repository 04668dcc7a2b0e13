"""Measures editing by refitting, a bound for editors: render the network, edit the picture, fit from the old weights.

Fits networks to test images of each editing task, applies the published edit with `nf.inr.refit`, and compares the
pictures of the new networks with the edited images. Prints a table and, last, one line of JSON.

    python benchmarks/refit.py --count 256
    python benchmarks/refit.py --samples --count 16 --threads 1
"""

import argparse
import json
import platform
import time

import numpy as np
import torch

from neuralfunctionals.data import EDITS, SPLITS, open_images
from neuralfunctionals.inr import fit, image_values, refit, render_images

TASKS = {
    "mnist-erode": ("mnist", "mnist-sample"),
    "mnist-dilate": ("mnist", "mnist-sample"),
    "mnist-gradient": ("mnist", "mnist-sample"),
    "fashion-gradient": ("fashion", "fashion-sample"),
    "cifar10-contrast": ("cifar10", "shapes-sample"),
}
"""The image set of each task, and the embedded set used with `--samples`."""


def measure(task: str, images: str, count: int, threads: int) -> dict[str, float]:
    image_set = open_images(images)
    tests = np.flatnonzero(image_set.splits == SPLITS.index("test"))[:count]
    pixels = image_set.read(tests)
    height, width = pixels.shape[1:3]
    edit = EDITS[task.partition("-")[2]]
    target = image_values(edit(pixels))
    networks = fit(pixels, num_threads=threads).features
    start = time.perf_counter()
    edited = refit(networks, edit, height=height, width=width, num_threads=threads).features
    seconds = time.perf_counter() - start
    errors = [(render_images(n, height, width) - target).square().mean().item() for n in (networks, edited)]
    return {"no_edit": errors[0], "mse": errors[1], "milliseconds": 1e3 * seconds / len(tests), "networks": len(tests)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=256, help="networks of each task")
    parser.add_argument("--samples", action="store_true", help="embedded images instead of the full sets")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    rows = {}
    print(f"{'edit':20}{'networks':>10}{'no edit':>10}{'refit':>10}{'per network':>13}")
    for task, images in TASKS.items():
        row = rows[task] = measure(task, images[arguments.samples], arguments.count, arguments.threads)
        print(f"{task:20}{row['networks']:10}{row['no_edit']:10.4f}{row['mse']:10.4f}{row['milliseconds']:10.1f} ms")
    print(
        json.dumps(
            {
                "benchmark": "refit",
                "threads": arguments.threads,
                "edits": rows,
                "torch": torch.__version__,
                "machine": platform.machine(),
            }
        )
    )


if __name__ == "__main__":
    main()
