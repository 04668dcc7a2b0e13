"""Arrays as small pictures inside the page: `grey_url`, `signed_url`."""

from __future__ import annotations

import base64

import cv2
import numpy as np
from jaxtyping import Float, UInt8
from torch import Tensor

from neuralfunctionals.inr import image_bytes

# Axes: H rows, W columns.

_NEGATIVE, _ZERO, _POSITIVE = (np.array(c, np.float32) for c in ([29, 91, 176], [247, 246, 243], [201, 84, 20]))


def grey_url(image: Float[Tensor, "H W"] | UInt8[np.ndarray, "H W"]) -> str:
    """An image in [-1, 1], or bytes, as the URL of a PNG."""
    if isinstance(image, Tensor):
        image = image_bytes(image).numpy()
    return _png_url(image)


def signed_url(values: Float[Tensor, "H W"], limit: float) -> str:
    """Numbers as colours: blue below zero, white at zero, orange above, full at the limit."""
    share = (values.numpy() / max(limit, 1e-9)).clip(-1, 1)[..., None]
    colours = _ZERO + np.where(share < 0, (_ZERO - _NEGATIVE) * share, (_POSITIVE - _ZERO) * share)
    return _png_url(np.round(colours).astype(np.uint8)[..., ::-1])  # OpenCV's order of colours


def _png_url(image: UInt8[np.ndarray, "H W *C"]) -> str:
    _, png = cv2.imencode(".png", np.ascontiguousarray(image))
    return "data:image/png;base64," + base64.b64encode(png.tobytes()).decode()
