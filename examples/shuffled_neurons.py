"""Shuffles the neurons of a network: its weights change, but its function and the output of an NFT stay the same.

python examples/shuffled_neurons.py [--picture shuffled.png]
"""

import argparse

import torch
from torch import nn

import neuralfunctionals as nf

# Any chain of layers works. This network maps coordinates to values, which we show as a picture.
torch.manual_seed(0)
network = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
for parameter in network.parameters():
    parameter.data.mul_(3)

features = nf.WeightSpaceFeatures.from_modules([network])
shuffle = nf.NeuronPermutation.random(features.spec, generator=torch.Generator().manual_seed(1))
shuffled = shuffle(features)

classifier = nf.models.NFT(features.spec, channels=64, num_heads=4, pooling="HNP", out_channels=3).eval()
editor = nf.models.NFT(features.spec, channels=64, num_heads=4).eval()
linear = nn.Sequential(nn.Flatten(), nn.Linear(features.spec.num_entries, 3))  # takes the weights as one vector


def picture(module: nn.Module) -> torch.Tensor:
    """The network's output on a grid of 64 x 64 points."""
    axis = torch.linspace(-1, 1, 64)
    return module(torch.cartesian_prod(axis, axis)).view(64, 64)


def draw(path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 4, figsize=(10, 5), width_ratios=[0.35, 1, 1, 1.1], layout="constrained")
    for row, title, x in zip(axes, ("a network", "neurons shuffled"), (features, shuffled), strict=True):
        (module,) = x.to_modules(network)
        row[0].imshow(x.weights[0][0, ..., 0], cmap="RdBu", vmin=-3, vmax=3)
        row[1].imshow(x.weights[1][0, ..., 0], cmap="RdBu", vmin=-1, vmax=1)
        row[2].imshow(picture(module), cmap="viridis")
        row[3].bar(range(3), classifier(x)[0], color="tab:orange")
        row[3].axhline(0, color="black", linewidth=0.8)
        row[3].set_ylim(-0.3, 0.3)
        row[0].set_ylabel(title, fontsize=12)
        for axis in row:
            axis.set(xticks=[], yticks=[])
    for axis, title in zip(axes[0], ("weights 1", "weights 2", "its function", "output of an NFT"), strict=True):
        axis.set_title(title)
    figure.savefig(path, dpi=120)
    print(f"picture: {path}")


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", metavar="PNG", help="also draw weights, function and output")
    arguments = parser.parse_args()
    edited = shuffle(features + editor(features)), shuffled + editor(shuffled)
    for name, before, after in [
        ("weights", features.tensor, shuffled.tensor),
        ("function of the network", picture(network), picture(shuffled.to_modules(network)[0])),
        ("output of a linear model", linear(features.tensor), linear(shuffled.tensor)),
        ("output of the NFT", classifier(features), classifier(shuffled)),
        ("edit then shuffle, or shuffle then edit", edited[0].tensor, edited[1].tensor),
    ]:
        print(f"{name:40} largest change after shuffling: {(before - after).abs().max():.1e}")
    if arguments.picture:
        draw(arguments.picture)


if __name__ == "__main__":
    main()
