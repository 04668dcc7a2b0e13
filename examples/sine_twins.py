"""Draws two sine networks that show the same picture with different weights, and their common canonical form.

python examples/sine_twins.py [twins.png]
"""

import math
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch

import neuralfunctionals as nf

OMEGA = 30.0

images = nf.data.open_images("mnist-sample")
fitted = nf.inr.fit(images.read(images.select(1)))
network = fitted.features  # 2-32-32-1
twist = nf.SineSymmetry.random(network.spec, max_turns=2, generator=torch.Generator().manual_seed(0))
twin = twist(network)  # different signs and phases, the same function


def draw_row(axes, x: nf.WeightSpaceFeatures, title: str) -> None:
    canonical, _ = nf.canonicalize(x)
    axes[0].imshow(nf.inr.render_images(x, 28, 28)[0, ..., 0], cmap="gray", vmin=-1, vmax=1)
    axes[0].set_ylabel(title, fontsize=12)
    for place, shown in ((1, x), (3, canonical)):
        axes[place].imshow(OMEGA * shown.weights[1][0, :10, :10, 0], cmap="RdBu", vmin=-1, vmax=1)
        draw_biases(axes[place + 1], shown)
    for axis in axes[[0, 1, 3]]:
        axis.set(xticks=[], yticks=[])


def draw_biases(axis, x: nf.WeightSpaceFeatures) -> None:
    """Draws omega times the bias of each hidden neuron as a dot."""
    axis.axhspan(0, math.pi / 2, color="tab:green", alpha=0.25, linewidth=0)
    for bias, colour in zip(x.biases[:-1], ("tab:blue", "tab:orange"), strict=True):
        axis.plot(OMEGA * bias[0, :, 0], ".", color=colour)
    axis.set(xticks=[], xlabel="hidden neurons", ylim=(-30, 30))
    ticks = {-8 * math.pi: "-8π", -4 * math.pi: "-4π", 0: "0", 4 * math.pi: "4π", 8 * math.pi: "8π"}
    if OMEGA * max(bias.max() for bias in x.biases[:-1]) < math.pi:
        axis.set_ylim(-0.5, 2.1)
        ticks = {0: "0", math.pi / 2: "π/2"}
    axis.set_yticks(list(ticks), list(ticks.values()))


def main(out: str) -> None:
    figure, axes = plt.subplots(2, 5, figsize=(13, 5.6), layout="constrained")
    draw_row(axes[0], network, "a network")
    draw_row(axes[1], twin, "its twin")
    titles = "picture", "some weights", "omega times biases", "canonical weights", "canonical biases"
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title)
    figure.savefig(out, dpi=80)
    forms = [nf.canonicalize(x)[0].tensor for x in (network, twin)]
    pictures = [nf.inr.render_images(x, 28, 28) for x in (network, twin)]
    for name, (one, other) in {
        "weights": (network.tensor, twin.tensor),
        "pictures": pictures,
        "canonical forms": forms,
    }.items():
        print(f"{name:16} largest difference {(one - other).abs().max():.1e}")
    print(f"picture: {out}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "twins.png")
