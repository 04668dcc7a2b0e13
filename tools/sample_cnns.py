"""Takes a few CNNs of a zoo as the samples of the web page.

    nf zoo --images fashion-sample --grey --count 800 --epochs 30 --batch-size 64 --out ZOO
    python tools/sample_cnns.py ZOO

They come from the test split, which no predictor was trained on, and lie as evenly as possible between the least and
the most accurate network. They are chosen by their measured accuracy alone, not by how well it is predicted, and
shuffled, so that their order does not tell their accuracy.
"""

from __future__ import annotations

import argparse

import torch
from safetensors.torch import save_file

from neuralfunctionals.data import WeightDataset
from neuralfunctionals.web.cnns import CNN_SPEC, SAMPLES_FILE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("zoo")
    parser.add_argument("--count", type=int, default=8)
    arguments = parser.parse_args()
    dataset = WeightDataset(arguments.zoo)
    if dataset.spec != CNN_SPEC:
        raise SystemExit(f"Expected a zoo of networks {CNN_SPEC}, but {arguments.zoo} holds {dataset.spec}.")
    items = dataset[[k for k, split in enumerate(dataset[:].split) if split == "test"]]
    assert items.features is not None
    accuracies = items.tensors["test_accuracy"]
    wanted = torch.linspace(float(accuracies.min()), float(accuracies.max()), arguments.count)
    chosen = torch.tensor([int((accuracies - accuracy).abs().argmin()) for accuracy in wanted])
    chosen = chosen[torch.randperm(len(chosen), generator=torch.Generator().manual_seed(0))]
    tensors = {"weights": items.features.to_vectors()[chosen].contiguous(), "test_accuracy": accuracies[chosen]}
    save_file(tensors, SAMPLES_FILE)
    print(f"{SAMPLES_FILE}: measured {[round(float(a), 3) for a in accuracies[chosen]]}")


if __name__ == "__main__":
    main()
