"""Measures time and memory of a training step at the paper's scale, and estimates the time of the whole training.

The model is the autoencoder of the recipe `inr2array/mnist --scale paper` (22 M parameters). A step has a batch of 64,
with gradient accumulation, rendering and AdamW. Prints a table and, last, one line of JSON.

    python benchmarks/paper_step.py --threads 2 --accumulate 8 --steps 2
"""

import argparse
import json
import platform
import resource
import statistics
import time

import torch

from neuralfunctionals import WeightSpaceFeatures
from neuralfunctionals.inr import Siren
from neuralfunctionals.registry import RECIPES, find_run
from neuralfunctionals.runs import build_model, build_task
from neuralfunctionals.tasks.inr2array.task import ReconstructBatch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="nft", choices=["nft", "nfn"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--accumulate", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)

    run = find_run("inr2array/mnist", scale="paper", model=arguments.model)
    batch = run.training.batch_size
    networks = WeightSpaceFeatures.from_modules([Siren() for _ in range(batch)])
    model = build_model(
        arguments.model, networks.spec, run.model, seed=0, compiled=False, output=RECIPES[run.recipe].of.output
    )
    task = build_task(run, model, {})
    optimizer = torch.optim.AdamW(model.parameters(), lr=run.optimizer.lr, weight_decay=run.optimizer.weight_decay)
    parts = torch.arange(batch).chunk(arguments.accumulate)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, processor = [], []
    for _ in range(arguments.steps):
        start, start_processor = time.perf_counter(), time.process_time()
        for part in parts:
            loss = task.loss(ReconstructBatch(networks[part], torch.zeros(len(part), 28, 28, 1)))
            (loss * len(part) / batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        wall.append(time.perf_counter() - start)
        processor.append(time.process_time() - start_processor)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = {
        "benchmark": "paper_step",
        "model": arguments.model,
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "batch": batch,
        "accumulate": arguments.accumulate,
        "threads": arguments.threads,
        "seconds": round(statistics.median(wall), 1),
        "processor_seconds": round(statistics.median(processor), 1),
        "peak_memory_gib": round(peak / 2**20, 2),
        "memory_before_gib": round(before / 2**20, 2),
        "days_for_all_steps": round(statistics.median(wall) * run.training.steps / 86_400, 1),
        "torch": torch.__version__,
        "machine": platform.machine(),
    }
    for name, value in result.items():
        print(f"{name:20}{value}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
