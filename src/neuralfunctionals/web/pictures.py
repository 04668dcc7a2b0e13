"""Converts arrays to small pictures inside the page: `grey_url`, `signed_url`, `filters_url`."""

from __future__ import annotations

import base64

import cv2
import numpy as np
from einops import rearrange
from jaxtyping import Float, UInt8
from torch import Tensor

from neuralfunctionals.inr import image_bytes

# Axes: H rows, W columns, O outgoing neurons, I incoming neurons.

_NEGATIVE, _ZERO, _POSITIVE = (np.array(c, np.float32) for c in ([29, 91, 176], [247, 246, 243], [201, 84, 20]))

_CELL, _GAP = 6, 4  # pixels per number, and between filters


def grey_url(image: Float[Tensor, "H W"] | UInt8[np.ndarray, "H W"]) -> str:
    """An image in [-1, 1], or bytes, as the URL of a PNG."""
    if isinstance(image, Tensor):
        image = image_bytes(image).numpy()
    return _png_url(image)


def signed_url(values: Float[Tensor, "H W"], limit: float) -> str:
    """Numbers as colours: blue for negative, white for zero, orange for positive, saturated at the limit."""
    return _png_url(_colours(values, limit))


def _colours(values: Float[Tensor, "H W"], limit: float) -> UInt8[np.ndarray, "H W 3"]:
    share = (values.numpy() / max(limit, 1e-9)).clip(-1, 1)[..., None]
    colours = _ZERO + np.where(share < 0, (_ZERO - _NEGATIVE) * share, (_POSITIVE - _ZERO) * share)
    return np.round(colours).astype(np.uint8)[..., ::-1].copy()  # OpenCV's order of colours


def filters_url(filters: Float[Tensor, "O I H W"], limit: float) -> str:
    """The filters of a convolution with gaps between them, one row per outgoing neuron."""
    table = rearrange(filters, "O I H W -> (O H) (I W)")
    colours = _colours(table, limit).repeat(_CELL, 0).repeat(_CELL, 1)
    opaque = np.concatenate([colours, np.full((*colours.shape[:2], 1), 255, np.uint8)], axis=-1)
    height, width = (_CELL * n for n in filters.shape[2:])
    parts = rearrange(opaque, "(O H) (I W) C -> O I H W C", H=height, W=width)
    spaced = np.pad(parts, [(0, 0), (0, 0), (0, _GAP), (0, _GAP), (0, 0)])  # transparent
    return _png_url(rearrange(spaced, "O I H W C -> (O H) (I W) C")[:-_GAP, :-_GAP])


def _png_url(image: UInt8[np.ndarray, "H W *C"]) -> str:
    _, png = cv2.imencode(".png", np.ascontiguousarray(image))
    return "data:image/png;base64," + base64.b64encode(png.tobytes()).decode()
