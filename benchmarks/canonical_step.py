"""What canonicalising costs: its share of a training step, for readers of weights.

Steps of the raw and of the canonical classifier of the small recipes (forward, loss, backward, Adam) take turns in one
process with the two parts of canonicalising: networks are brought to their canonical form as they are read, some
hundred at a time, and a model finds in each step that this is done. The share is that of both parts for one batch,
alone, which is steadier than the difference of two steps. Prints a table of medians and, last, one line of JSON.

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

READERS = [Planned("classify/mnist", model) for model in ("nft", "nft-states", "neuron-graph", "nfn-hnp")]


def make_step(model: nn.Module, networks: WeightSpaceFeatures, labels: torch.Tensor) -> Callable[[], None]:
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def step() -> None:
        F.cross_entropy(model(networks), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def measure(reader: Planned, repeats: int) -> dict[str, float]:
    """Medians in milliseconds: a raw step, a canonical one, and what its batch costs as it is read, and as found."""
    run = reader.at("small")
    networks = WeightSpaceFeatures.from_modules([Siren() for _ in range(run.training.batch_size)])
    labels = torch.randint(10, (len(networks),))
    output = find_task(run.recipe).output
    options = {**run.model, "out_channels": 10}
    many = WeightSpaceFeatures.from_modules([Siren() for _ in range(READ_AHEAD)])
    raw, networks = networks, canonicalize(networks)[0]
    actions: dict[str, Callable[[], object]] = {
        "reading": lambda: canonicalize(many),
        "finding": lambda: canonicalize(networks),
    }
    for form in ("none", "sine"):
        model = build_model(
            run.model_name,
            networks.spec,
            options,
            seed=0,
            compiled=False,
            output=output,
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
    print(f"{'reader':28}{'raw step':>12}{'canonical':>12}{'as read':>12}{'as found':>12}{'share':>9}")
    for reader in READERS:
        name = " ".join([reader.model, *(f"{field.partition('.')[2]}={value}" for field, value in reader.changes)])
        ms = measure(reader, arguments.repeats)
        shares[name] = round((ms["reading"] + ms["finding"]) / ms["sine"], 5)
        columns = (f"{ms[part]:9.2f} ms" for part in ("none", "sine", "reading", "finding"))
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
