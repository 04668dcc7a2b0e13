"""Fits sine networks to a few embedded images and draws each fit below its image.

python examples/fit_and_render.py fits.png
"""

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import neuralfunctionals as nf


def main(out: str) -> None:
    sets = ["mnist-sample", "fashion-sample", "shapes-sample"]
    columns = 5
    figure, axes = plt.subplots(2 * len(sets), columns, figsize=(1.5 * columns, 3.5 * len(sets)), layout="constrained")
    for row, name in enumerate(sets):
        images = nf.data.open_images(name)
        chosen = images.select(columns)
        pixels = images.read(chosen)
        fitted = nf.inr.fit(pixels)
        rendered = nf.inr.render_images(fitted.features, *images.shape[:2])
        shown = ((rendered.clamp(-1, 1) + 1) * 127.5).round().numpy().astype(np.uint8)
        for column in range(columns):
            above, below = axes[2 * row, column], axes[2 * row + 1, column]
            above.imshow(pixels[column].squeeze(), cmap="gray", vmin=0, vmax=255)
            below.imshow(shown[column].squeeze(), cmap="gray", vmin=0, vmax=255)
            below.set_xlabel(f"{fitted.psnr_db[column]:.1f} dB", fontsize=9)
            for axis in (above, below):
                axis.set_xticks([])
                axis.set_yticks([])
        axes[2 * row, 0].set_ylabel(f"{name}\nimage", fontsize=9)
        axes[2 * row + 1, 0].set_ylabel("rendered\nnetwork", fontsize=9)
    figure.savefig(out, dpi=80)
    print(f"{out}: {len(sets) * columns} fits")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "fits.png")
