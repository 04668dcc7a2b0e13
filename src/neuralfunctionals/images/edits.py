"""The targets of the editing tasks: OpenCV on byte images, exactly as published."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np
from jaxtyping import UInt8

from neuralfunctionals.errors import UserError

# Axes: B images, H rows, W columns, C colours.

Edit = Callable[[np.ndarray], np.ndarray]


def dilate(image: UInt8[np.ndarray, "H W *C"]) -> UInt8[np.ndarray, "H W *C"]:
    """The largest value under a 3x3 square: thicker strokes."""
    return cv2.dilate(image, np.ones((3, 3), np.uint8))


def erode(image: UInt8[np.ndarray, "H W *C"]) -> UInt8[np.ndarray, "H W *C"]:
    """The smallest value under a 2x2 square: thinner strokes."""
    return cv2.erode(image, np.ones((2, 2), np.uint8))


def gradient(image: UInt8[np.ndarray, "H W *C"]) -> UInt8[np.ndarray, "H W *C"]:
    """The largest minus the smallest value under a 2x2 square: outlines."""
    return cv2.morphologyEx(image, cv2.MORPH_GRADIENT, np.ones((2, 2), np.uint8))


def contrast(image: UInt8[np.ndarray, "H W *C"]) -> UInt8[np.ndarray, "H W *C"]:
    """Contrast-limited adaptive histogram equalisation (clip limit 1, 3x3 tiles) of the lightness.

    As in the published code, red and blue are swapped in the conversion to LAB and back: RGB arrays are passed to the
    conversion from BGR. A grey image is equalised directly.
    """
    equalise = cv2.createCLAHE(clipLimit=1.0, tileGridSize=(3, 3)).apply
    if image.ndim == 2:
        return equalise(image)
    lab = cv2.cvtColor(image, cv2.COLOR_BGR2LAB)
    lab[..., 0] = equalise(np.ascontiguousarray(lab[..., 0]))
    return cv2.cvtColor(lab, cv2.COLOR_LAB2BGR)


def _for_batches(edit: Edit) -> Edit:
    """Extends an edit to one image `(H, W[, C])` or a batch `(B, H, W[, C])`, with one or three colours."""

    def edit_images(images: np.ndarray) -> np.ndarray:
        images = np.asarray(images)
        if (
            images.dtype != np.uint8
            or images.ndim not in (2, 3, 4)
            or (images.ndim == 4 and images.shape[3] not in (1, 3))
        ):
            raise UserError(
                "Expected byte images (uint8) of shape (H, W), (H, W, C), (B, H, W) or (B, H, W, C) with one or three "
                f"colours, but got {images.dtype} of shape {images.shape}."
            )
        if images.ndim == 2:
            return edit(np.ascontiguousarray(images))
        is_batch = images.ndim == 4 or images.shape[-1] not in (1, 3)
        if is_batch:
            return np.stack([edit_images(image) for image in images]) if len(images) else images
        if images.shape[-1] == 1:
            return edit(np.ascontiguousarray(images[..., 0]))[..., None]
        return edit(np.ascontiguousarray(images))

    edit_images.__name__, edit_images.__doc__ = edit.__name__, edit.__doc__
    return edit_images


EDITS: dict[str, Edit] = {edit.__name__: _for_batches(edit) for edit in (dilate, erode, gradient, contrast)}
"""The published edits by name; each takes one byte image or a batch of them."""


def blur(image: UInt8[np.ndarray, "H W *C"]) -> UInt8[np.ndarray, "H W *C"]:
    """Gaussian blur with a std of one pixel."""
    return cv2.GaussianBlur(image, (0, 0), 1.0)


def invert(image: UInt8[np.ndarray, "H W *C"]) -> UInt8[np.ndarray, "H W *C"]:
    """Inverts brightness."""
    return 255 - image


def mirror(image: UInt8[np.ndarray, "H W *C"]) -> UInt8[np.ndarray, "H W *C"]:
    """Flips left and right."""
    return image[:, ::-1]


OPERATIONS: dict[str, Edit] = dict(
    sorted({**EDITS, **{edit.__name__: _for_batches(edit) for edit in (blur, invert, mirror)}}.items())
)
"""Operations for `nf edit --operation`: the published edits and a few more."""
