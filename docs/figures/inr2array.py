"""How Inr2Array turns the weights of a network into an array, and that into a picture.

python docs/figures/inr2array.py docs/pictures/idea_inr2array.png
"""

import itertools
import sys

import matplotlib.pyplot as plt
import numpy as np
import torch
from colours import GREY, INK, QUERY, arrow, blank, card
from matplotlib.axes import Axes

import neuralfunctionals as nf

PATCHES = 4
TITLE = {"weight": "bold", "fontsize": 12}
NOTE = {"fontsize": 9, "color": GREY}


def picture(axes: Axes, values: np.ndarray, x: float, y: float, width: float, height: float, **style) -> None:
    """An array on the sheet."""
    axes.imshow(values, extent=(x, x + width, y, y + height), interpolation="nearest", zorder=3, **style)


def say(axes: Axes, x: float, y: float, text: str, **style) -> None:
    axes.text(x, y, text, **({"ha": "center", "va": "center", "linespacing": 1.35, "zorder": 6} | style))


def draw_weights(axes: Axes, network: nf.WeightSpaceFeatures, image: np.ndarray) -> None:
    card(axes, 0.1, 6.15, 4.6, 4.1)
    say(axes, 2.4, 9.9, "the weights of a network", **TITLE)
    first, second, third = (w[0, ..., 0].numpy() for w in network.weights)
    colours = {"cmap": "RdBu"}
    picture(axes, third, 0.35, 8.55, 1.9, 0.14, vmin=-0.2, vmax=0.2, **colours)
    picture(axes, second, 0.35, 6.55, 1.9, 1.9, vmin=-0.2, vmax=0.2, **colours)
    picture(axes, first, 2.33, 6.55, 0.22, 1.9, vmin=-1.2, vmax=1.2, **colours)
    say(axes, 1.5, 9.0, "the encoder sees", **NOTE)
    picture(axes, image, 2.95, 6.85, 1.5, 1.5, cmap="gray", vmin=-1, vmax=1)
    say(axes, 3.7, 6.6, "what it draws", **NOTE)


def draw_blocks(axes: Axes) -> None:
    card(axes, 5.75, 6.15, 3.5, 4.1)
    say(axes, 7.5, 9.9, "equivariant blocks", **TITLE)
    for n, name in enumerate(("Fourier features, encodings", "self-attention, MLP", "self-attention, MLP", "…")):
        card(axes, 6.0, 8.85 - 0.68 * n, 3.0, 0.5, facecolor="#d0ebff" if n else "#e5dbff", edgecolor="none")
        say(axes, 7.5, 9.1 - 0.68 * n, name, fontsize=8.5)
    say(axes, 7.5, 6.5, "shuffled neurons in,\nshuffled features out", **NOTE)


def draw_cross_attention(axes: Axes) -> None:
    card(axes, 10.3, 6.15, 3.9, 4.1)
    say(axes, 12.25, 9.9, "cross-attention", **TITLE)
    rng = np.random.default_rng(0)
    xs, ys = np.meshgrid(np.linspace(10.75, 13.75, 13), np.linspace(8.6, 9.4, 4))
    axes.scatter(xs, ys, s=16, c=rng.normal(size=xs.size), cmap="RdBu", edgecolors=GREY, linewidths=0.3, zorder=3)
    for n in range(4):
        x = 10.95 + 0.87 * n
        for target in rng.choice(13, 4, replace=False):
            axes.plot([x, xs[0, target]], [7.45, 8.5], color=QUERY, alpha=0.35, linewidth=1.0)
        axes.plot(x, 7.4, "s", color=QUERY, markersize=11, zorder=4)
        say(axes, x, 7.4, f"$e_{{{(n + 1) if n < 3 else 'M'}}}$", color="white", fontsize=8)
    say(axes, 12.25, 6.65, "$M$ queries ask all the weights:\nthe order of neurons is lost", **NOTE)


def draw_latents(axes: Axes, latents: np.ndarray) -> None:
    card(axes, 9.9, 0.3, 4.3, 4.5)
    say(axes, 12.05, 4.4, "the latent array $z$", **TITLE)
    for m, latent in enumerate(latents):
        row, column = divmod(m, PATCHES)
        x, y = 10.55 + 0.79 * column, 3.35 - 0.66 * row
        picture(axes, latent.reshape(3, 4), x, y, 0.64, 0.5, cmap="PuOr", vmin=-1.5, vmax=1.5)
    say(axes, 12.05, 0.72, "one vector for each patch,\nthe same for every order of neurons", **NOTE)


def draw_decoded(axes: Axes) -> None:
    card(axes, 5.2, 0.3, 3.7, 4.5)
    say(axes, 7.05, 4.4, "patch networks", **TITLE)
    rng = np.random.default_rng(1)
    for m in range(PATCHES**2):
        row, column = divmod(m, PATCHES)
        x, y = 5.6 + 0.77 * column, 3.35 - 0.66 * row
        layers = [
            [(x + 0.08 + 0.22 * i, y + 0.25 + 0.14 * (j - (n - 1) / 2)) for j in range(n)]
            for i, n in enumerate((2, 4, 1))
        ]
        for near, far in itertools.pairwise(layers):
            for a in near:
                for b in far:
                    colour = "#c92a2a" if rng.random() < 0.5 else "#1971c2"
                    axes.plot(*zip(a, b, strict=True), color=colour, linewidth=0.5, alpha=0.7)
        for point in itertools.chain.from_iterable(layers):
            axes.plot(*point, "o", color=INK, markersize=2.4)
    say(axes, 7.05, 0.72, "the decoder writes a small sine\nnetwork from each vector", **NOTE)


def draw_picture(axes: Axes, image: np.ndarray) -> None:
    card(axes, 0.1, 0.3, 4.1, 4.5)
    say(axes, 2.15, 4.4, "the picture again", **TITLE)
    size, side = len(image) // PATCHES, 0.66
    for m in range(PATCHES**2):
        row, column = divmod(m, PATCHES)
        part = image[row * size : (row + 1) * size, column * size : (column + 1) * size]
        picture(axes, part, 0.72 + 0.72 * column, 3.37 - 0.72 * row, side, side, cmap="gray", vmin=-1, vmax=1)
    say(axes, 2.15, 0.72, "each network draws its patch;\ntogether: what the input draws", **NOTE)


@torch.no_grad()
def main(out: str) -> None:
    images = nf.data.open_images("mnist-sample")
    network = nf.inr.fit(images.read([int((images.labels == 5).nonzero()[0][0])])).features
    image = nf.inr.render_images(network, 28, 28)[0, ..., 0].numpy()
    torch.manual_seed(0)
    model = nf.models.Inr2Array(network.spec, latent_channels=12, channels=32, hidden_channels=32, num_blocks=2).eval()
    latents = model.encode(network)[0]
    latents = ((latents - latents.mean(0)) / latents.std(0)).numpy()  # what tells the patches apart

    figure, axes = plt.subplots(figsize=(11, 8.2))
    blank(axes, 14.3, 10.4)
    draw_weights(axes, network, image)
    draw_blocks(axes)
    draw_cross_attention(axes)
    draw_latents(axes, latents)
    draw_decoded(axes)
    draw_picture(axes, image)
    for start, stop in [((4.8, 8.2), (5.65, 8.2)), ((9.35, 8.2), (10.2, 8.2)), ((12.1, 6.05), (12.1, 4.9))]:
        arrow(axes, start, stop, linewidth=2.2, mutation_scale=18)
    for start, stop in [((9.8, 2.5), (9.0, 2.5)), ((5.1, 2.5), (4.3, 2.5))]:
        arrow(axes, start, stop, linewidth=2.2, mutation_scale=18)
    arrow(axes, (2.3, 4.9), (2.3, 6.05), linewidth=1.2, linestyle="--", arrowstyle="<|-|>", color=GREY)
    say(axes, 3.5, 5.5, "as alike as possible", **NOTE)
    axes.set(xlim=(0, 14.3), ylim=(0.1, 10.4))
    figure.savefig(out, dpi=120, bbox_inches="tight", pad_inches=0.08)


if __name__ == "__main__":
    main(sys.argv[1])
