"""Editing sine networks by any image operation: render, edit the picture, fit again from the old weights: `refit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8

from neuralfunctionals.errors import UserError
from neuralfunctionals.inr.fit import FitResult, fit, image_bytes
from neuralfunctionals.inr.recipe import FitRecipe
from neuralfunctionals.inr.render import render_images
from neuralfunctionals.weight_space import WeightSpaceFeatures

# Axes: B input networks, H rows, W columns, C colours.


def refit(
    features: WeightSpaceFeatures,
    edit: Callable[[UInt8[np.ndarray, "B H W C"]], Any],
    *,
    height: int = 28,
    width: int = 28,
    recipe: str | FitRecipe = "refit",
    num_threads: int | None = None,
) -> FitResult:
    """Edits sine networks: renders them, edits the pictures, and fits again from the old weights.

    It works for any function of images. It runs the networks at every pixel, so its error is a lower bound for
    models that edit weights directly.

    Args:
        features: Sine networks, one channel.
        edit: From pictures as bytes, `(B, H, W, C)`, to pictures of the same shape: one of `nf.data.EDITS`, or
            your own function.
        height: Rows of the pictures.
        width: Columns of the pictures.
        recipe: How the networks are trained; see `fit`.
        num_threads: Threads of the native engine. Defaults to all cores.

    Example:
        >>> from neuralfunctionals.inr import Siren
        >>> sirens = WeightSpaceFeatures.from_modules([Siren([2, 16, 1]), Siren([2, 16, 1])])
        >>> inverted = refit(sirens, lambda pictures: 255 - pictures, height=8, width=8)
        >>> len(inverted.features), inverted.features.spec == sirens.spec
        (2, True)
    """
    with torch.no_grad():
        shown = render_images(features, height, width)
    pictures = image_bytes(shown).cpu().numpy()
    edited = np.ascontiguousarray(edit(pictures))
    if edited.shape != pictures.shape:
        raise UserError(
            f"Expected the edit to return pictures of shape {pictures.shape}, but got {edited.shape}. "
            "It takes and returns a batch of pictures with the colours last."
        )
    return fit(edited, recipe=recipe, start=features, num_threads=num_threads)
