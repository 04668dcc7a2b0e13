"""A network, the same with shuffled neurons, and a shuffle that is no symmetry.

python docs/figures/symmetry.py docs/pictures/idea_symmetry.png
"""

import sys

import matplotlib.pyplot as plt
import torch
from colours import BAD, GOOD, GREY, INK, NEURONS

import neuralfunctionals as nf

torch.manual_seed(4)
siren = nf.inr.Siren([2, 6, 6, 1], omega=5.0)
network = nf.WeightSpaceFeatures.from_modules([siren])
ORDER = [3, 0, 4, 2, 5, 1]  # neuron ORDER[p] comes to place p
PLACES = torch.tensor(ORDER).argsort()
shuffled = nf.NeuronPermutation(network.spec, (torch.arange(2), PLACES, torch.arange(6), torch.arange(1)))(network)
rows_only = nf.WeightSpaceFeatures.from_tensors(
    network.spec, [shuffled.weights[0], *network.weights[1:]], [shuffled.biases[0], *network.biases[1:]]
)


def draw_neurons(axis, order: list[int], *, side: str) -> None:
    """The neurons of the first hidden layer beside the rows, or above the columns, of a matrix."""
    for place, neuron in enumerate(order):
        x, y = (-1.1, place) if side == "left" else (place, -1.1)
        axis.plot(x, y, "o", color=NEURONS[neuron], markersize=12, clip_on=False)
        axis.text(x, y, str(neuron + 1), color="white", ha="center", va="center_baseline", fontsize=8, weight="bold")


def draw_matrix(axis, weights: torch.Tensor, limit: float) -> None:
    axis.imshow(weights, cmap="RdBu", vmin=-limit, vmax=limit)
    axis.set(xticks=[], yticks=[], autoscale_on=False)


def draw_row(axes, x: nf.WeightSpaceFeatures, rows: list[int], columns: list[int]) -> None:
    first, second, third = (w[0, ..., 0] for w in x.weights)
    draw_matrix(axes[0], first, 0.6)
    draw_matrix(axes[1], second, 0.25)
    draw_matrix(axes[2], third, 0.25)
    draw_neurons(axes[0], rows, side="left")
    draw_neurons(axes[1], columns, side="top")
    axes[3].imshow(nf.inr.render_images(x, 96, 96)[0, ..., 0], cmap="viridis", vmin=-0.3, vmax=0.75)
    axes[3].set(xticks=[], yticks=[])


@torch.no_grad()
def main(out: str) -> None:
    straight = list(range(6))
    figure = plt.figure(figsize=(11, 6.6))
    rows = [
        (
            "A network",
            "each hidden neuron owns a row\nof $W^{(1)}$ and a column of $W^{(2)}$",
            INK,
            network,
            straight,
            straight,
        ),
        (
            "Neurons shuffled",
            "rows and columns move together:\nother weights, the same function",
            GOOD,
            shuffled,
            ORDER,
            ORDER,
        ),
        ("A false symmetry", "the rows move, the columns stay:\nanother function", BAD, rows_only, ORDER, straight),
    ]
    for n, (title, text, colour, x, row_order, column_order) in enumerate(rows):
        bottom, height = 0.67 - 0.315 * n, 0.22
        axes = [
            figure.add_axes((left, bottom, width, height))
            for left, width in ((0.36, 0.05), (0.49, 0.15), (0.68, 0.12), (0.83, 0.15))
        ]
        draw_row(axes, x, row_order, column_order)
        figure.text(0.02, bottom + 0.125, title, fontsize=16, weight="bold", color=colour)
        figure.text(0.02, bottom + 0.045, text, fontsize=11.5, linespacing=1.35)
        if n == 0:
            for axis, label in zip(axes, ("$W^{(1)}$", "$W^{(2)}$", "$W^{(3)}$", "what it computes"), strict=True):
                box = axis.get_position()
                figure.text(box.x0 + box.width / 2, 0.955, label, ha="center", fontsize=15 if "$" in label else 12)
        else:
            figure.text(
                0.99, bottom + height / 2, "✓" if n == 1 else "✗", fontsize=22, color=colour, ha="left", va="center"
            )
            figure.add_artist(plt.Line2D([0.02, 1.01], [bottom + 0.275] * 2, color=GREY, linewidth=0.6, alpha=0.5))
    figure.savefig(out, dpi=130, bbox_inches="tight", pad_inches=0.12)


if __name__ == "__main__":
    main(sys.argv[1])
