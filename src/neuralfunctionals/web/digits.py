"""Converts drawings and uploads to digits like those of MNIST: `read_source`, `read_picture`, `center_digit`."""

from __future__ import annotations

import functools
import io
import warnings

import cv2
import numpy as np
from jaxtyping import Float, UInt8

from neuralfunctionals.data import open_images
from neuralfunctionals.errors import UserError
from neuralfunctionals.web.uploads import MAX_BYTES, decode_url

# Axes: H rows, W columns.

SIZE = 28
MAX_PIXELS = 16_000_000
"""Maximum number of pixels of a picture."""
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
_BOX = 20  # MNIST digits fill a square of this size, before they are centred by their centre of mass


@functools.cache
def samples() -> UInt8[np.ndarray, "10 28 28"]:
    """One embedded digit of each class, from the test split."""
    images = open_images("mnist-sample")
    tests = np.flatnonzero(images.splits == 2)
    chosen = np.array([tests[images.labels[tests] == label][3] for label in range(10)])
    return images.read(chosen)[..., 0]


def read_source(source: str) -> UInt8[np.ndarray, "28 28"]:
    """Reads the digit that the page sends: `sample:3`, or a file as a data URL.

    The format is detected from the bytes; the name and type that came with them are ignored.
    """
    if not source:
        raise UserError("There is nothing to read yet. Draw a digit, pick a sample or upload a picture.")
    kind, _, rest = source.partition(":")
    if kind == "sample":
        if rest not in tuple("0123456789"):
            raise UserError(f"Expected a sample from 0 to 9, but got '{rest[:20]}'.")
        return samples()[int(rest)]
    return center_digit(read_picture(decode_url(source, "picture")))


def read_picture(content: bytes) -> Float[np.ndarray, "H W"]:
    """Reads a PNG, JPEG, WebP, GIF or BMP as grey values in [0, 1]; checks size and format before decoding."""
    from PIL import Image, ImageOps

    if not content:
        raise UserError("The file is empty (0 bytes). Upload a picture: PNG, JPEG, WebP, GIF or BMP.")
    if len(content) > MAX_BYTES:
        raise UserError(f"The file is too large: expected at most {MAX_BYTES // 2**20} MB. Upload a smaller one.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about sizes, which are checked below
        try:
            image = Image.open(io.BytesIO(content), formats=_FORMATS)
        except Image.DecompressionBombError as error:
            raise UserError(_too_many_pixels("far") + " Upload a smaller one.") from error
        except Exception as error:  # a decoder may raise anything for bytes that are not a picture
            raise UserError("This is not a picture that can be read: expected PNG, JPEG, WebP, GIF or BMP.") from error
        width, height = image.size
        if width * height > MAX_PIXELS:
            raise UserError(_too_many_pixels(f"{width * height / 1e6:.0f} megapixels,") + " Upload a smaller one.")
        if min(width, height) < 4:
            raise UserError(f"The picture is too small: {width} x {height} pixels. Upload one of at least 4 x 4.")
        if getattr(image, "n_frames", 1) > 1:
            raise UserError("This is an animation: expected a single picture. Upload one of its frames.")
        try:
            image.draft("L", (512, 512))  # lets JPEG decode at a smaller size
            image = ImageOps.exif_transpose(image)
            image.thumbnail((512, 512))
            return _grey(np.asarray(image.convert("RGBA"), dtype=np.float32) / 255)
        except Exception as error:  # a decoder may raise anything for a truncated or damaged file
            raise UserError("The picture is damaged or cut off. Upload another one.") from error


def _too_many_pixels(found: str) -> str:
    return f"The picture has {found} too many pixels: expected at most {MAX_PIXELS / 1e6:.0f} megapixels."


def _grey(colours: Float[np.ndarray, "H W 4"]) -> Float[np.ndarray, "H W"]:
    """Grey values on a background that makes opaque parts visible: black for light colours, white for dark ones."""
    grey, alpha = colours[..., :3] @ np.array([0.299, 0.587, 0.114], np.float32), colours[..., 3]
    mean = (grey * alpha).sum() / max(float(alpha.sum()), 1.0)
    return grey * alpha + (1 - alpha) * (0.0 if mean > 0.5 else 1.0)


def center_digit(grey: Float[np.ndarray, "H W"]) -> UInt8[np.ndarray, "28 28"]:
    """Normalizes a digit as in MNIST: light on dark, 20 pixels long, its centre of mass in the middle of 28x28."""
    edge = np.concatenate([grey[0], grey[-1], grey[:, 0], grey[:, -1]])
    background = float(np.median(edge))
    ink = grey - background if background < 0.5 else background - grey
    peak = float(np.quantile(ink, 0.999))
    if peak < 0.1:
        raise UserError("The picture is blank: expected strokes that stand out from their background.")
    # In a photograph, paper and shadows stay below a third of the strokes' brightness.
    floor = 0.35 if float(edge.std()) > 0.01 else 0.0
    ink = np.clip((ink / peak - floor) / (1 - floor), 0, 1).astype(np.float32)
    rows, columns = np.flatnonzero(ink.max(1) > 0.1), np.flatnonzero(ink.max(0) > 0.1)
    ink = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    scale = _BOX / max(ink.shape)
    height, width = (max(1, round(n * scale)) for n in ink.shape)
    ink = cv2.resize(ink, (width, height), interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)
    mass = max(float(ink.sum()), 1e-6)
    middle_row = float(ink.sum(1) @ np.arange(height)) / mass
    middle_column = float(ink.sum(0) @ np.arange(width)) / mass
    top = int(np.clip(round(SIZE / 2 - middle_row), 0, SIZE - height))
    left = int(np.clip(round(SIZE / 2 - middle_column), 0, SIZE - width))
    digit = np.zeros((SIZE, SIZE), np.float32)
    digit[top : top + height, left : left + width] = ink
    return np.round(255 * digit / max(float(digit.max()), 1e-6)).astype(np.uint8)
