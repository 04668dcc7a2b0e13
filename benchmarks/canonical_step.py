"""Measures the cost of canonicalization as a share of a training step of classifiers.

Canonicalization has two parts: networks are canonicalized when they are read, a few hundred at a time, and in each step
the model checks that this has been done. Both parts take turns in one process with training steps (forward, loss,
backward, Adam) of the raw and the canonical classifiers of the small recipes. The share is the time of both parts for
one batch, measured directly because this is steadier than the difference of two steps. Prints a table of medians and,
last, one line of JSON.

    python benchmarks/canonical_step.py --threads 1 --repeats 15
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from neuralfunctionals import WeightSpaceFeatures, canonicalize
from neuralfunctionals.inr import Siren
from neuralfunctionals.registry import find_task
from neuralfunctionals.runs import build_model
from neuralfunctionals.studies.tables import Planned
from neuralfunctionals.tasks.batches import READ_AHEAD

CLASSIFIERS = [Planned("classify/mnist", model) for model in ("nft", "nft-states", "neuron-graph", "nfn-hnp")]


def make_step(model: nn.Module, networks: WeightSpaceFeatures, labels: torch.Tensor) -> Callable[[], None]:
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def step() -> None:
        F.cross_entropy(model(networks)[:, :10], labels).backward()  # further outputs are pixels of a picture
        optimizer.step()
        optimizer.zero_grad()

    return step


def measure(classifier: Planned, repeats: int) -> dict[str, float]:
    """Medians in milliseconds: a raw step, a canonical step, canonicalizing its batch, and checking its batch."""
    run = classifier.at("small")
    networks = WeightSpaceFeatures.from_modules([Siren() for _ in range(run.training.batch_size)])
    labels = torch.randint(10, (len(networks),))
    task = find_task(run.recipe)
    assert task.out_channels is not None
    options = {**run.model, "out_channels": task.out_channels(run.task, networks.spec)}
    many = WeightSpaceFeatures.from_modules([Siren() for _ in range(READ_AHEAD)])
    raw, networks = networks, canonicalize(networks)[0]
    actions: dict[str, Callable[[], object]] = {
        "reading": lambda: canonicalize(many),
        "checking": lambda: canonicalize(networks),
    }
    for form in ("none", "sine"):
        model = build_model(
            run.model_name,
            networks.spec,
            options,
            seed=0,
            compiled=False,
            output=task.output,
            canonical=None if form == "none" else networks.spec.symmetry,
        )
        actions[form] = make_step(model.train(), raw if form == "none" else networks, labels)
    times: dict[str, list[float]] = {action: [] for action in actions}
    for repeat in range(repeats + 2):
        for action, act in actions.items():
            start = time.perf_counter()
            act()
            if repeat >= 2:
                times[action].append(1e3 * (time.perf_counter() - start))
    medians = {action: statistics.median(values) for action, values in times.items()}
    medians["reading"] *= len(networks) / READ_AHEAD
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)

    shares = {}
    print(f"{'classifier':28}{'raw step':>12}{'canonical':>12}{'reading':>12}{'checking':>12}{'share':>9}")
    for classifier in CLASSIFIERS:
        name = " ".join(
            [classifier.model, *(f"{field.partition('.')[2]}={value}" for field, value in classifier.changes)]
        )
        ms = measure(classifier, arguments.repeats)
        shares[name] = round((ms["reading"] + ms["checking"]) / ms["sine"], 5)
        columns = (f"{ms[part]:9.2f} ms" for part in ("none", "sine", "reading", "checking"))
        print(f"{name:28}{''.join(columns)}{shares[name]:9.2%}")
    print(
        json.dumps(
            {
                "benchmark": "canonical_step",
                "threads": arguments.threads,
                "share": shares,
                "torch": torch.__version__,
                "machine": platform.machine(),
            }
        )
    )


if __name__ == "__main__":
    main()
