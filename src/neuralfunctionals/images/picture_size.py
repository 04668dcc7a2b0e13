"""The size of a picture from its header alone, before anything is decoded: `picture_size`."""

from __future__ import annotations

import re
import struct

from neuralfunctionals.errors import UserError

_JPEG_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_TIFF_TYPES = {1: "B", 3: "H", 4: "I", 16: "Q"}
_TIFF_WIDTH, _TIFF_HEIGHT, _TIFF_TILE_WIDTH, _TIFF_TILE_HEIGHT = 256, 257, 322, 323


def picture_size(data: bytes) -> tuple[int, int] | None:
    """Height and width of a PNG, JPEG, BMP, WebP, TIFF or PNM picture; None for anything else, or if it is damaged.

    The format is detected from the content, not from the file's name. A tiled TIFF is as large as its largest tile.

    Example:
        >>> picture_size(b"P5 # made by hand" + bytes([10]) + b"3 2 255" + bytes([10]) + bytes(6))
        (2, 3)
    """
    for start, read in _READERS:
        if re.match(start, data, re.DOTALL):
            try:
                height, width = read(data)
            except (struct.error, ValueError, IndexError, KeyError):
                return None
            return (height, width) if height > 0 and width > 0 else None
    return None


def _png(data: bytes) -> tuple[int, int]:
    width, height = struct.unpack_from(">II", data, 16)
    return height, width


def _jpeg(data: bytes) -> tuple[int, int]:
    at = 2
    while True:
        if data[at] != 0xFF:
            raise UserError("Expected a marker.")
        marker = data[at + 1]
        if marker == 0xFF:  # markers may be padded
            at += 1
        elif marker in _JPEG_FRAMES:
            return struct.unpack_from(">HH", data, at + 5)
        elif marker == 0x01 or 0xD0 <= marker <= 0xD8:  # markers without content
            at += 2
        else:
            (length,) = struct.unpack_from(">H", data, at + 2)
            at += 2 + length


def _bmp(data: bytes) -> tuple[int, int]:
    (length,) = struct.unpack_from("<I", data, 14)
    width, height = struct.unpack_from("<HH" if length == 12 else "<ii", data, 18)
    return abs(height), width  # a negative height means that the rows begin at the top


def _webp(data: bytes) -> tuple[int, int]:
    kind = data[12:16]
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return height & 0x3FFF, width & 0x3FFF
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1
    if kind == b"VP8X":
        (width,), (height,) = (struct.unpack("<I", data[at : at + 3] + b"\0") for at in (24, 27))
        return height + 1, width + 1
    raise UserError("Expected a picture.")


def _tiff(data: bytes) -> tuple[int, int]:
    order = "<" if data[:2] == b"II" else ">"
    is_big = struct.unpack_from(f"{order}H", data, 2)[0] == 43
    (at,) = struct.unpack_from(f"{order}Q" if is_big else f"{order}I", data, 8 if is_big else 4)
    (count,) = struct.unpack_from(f"{order}Q" if is_big else f"{order}H", data, at)
    at += 8 if is_big else 2
    sizes: dict[int, int] = {}
    for place in range(at, at + min(count, 1000) * (20 if is_big else 12), 20 if is_big else 12):
        tag, kind = struct.unpack_from(f"{order}HH", data, place)
        if tag in (_TIFF_WIDTH, _TIFF_HEIGHT, _TIFF_TILE_WIDTH, _TIFF_TILE_HEIGHT):
            (sizes[tag],) = struct.unpack_from(order + _TIFF_TYPES[kind], data, place + (12 if is_big else 8))
    height, width = sizes[_TIFF_HEIGHT], sizes[_TIFF_WIDTH]
    return max(height, sizes.get(_TIFF_TILE_HEIGHT, 0)), max(width, sizes.get(_TIFF_TILE_WIDTH, 0))


def _pnm(data: bytes) -> tuple[int, int]:
    found = re.match(rb"P[1-6](?:\s+|#[^\n]*\n)+([0-9]{1,9})(?:\s+|#[^\n]*\n)+([0-9]{1,9})\s", data[:4096])
    if found is None:
        raise UserError("Expected width and height.")
    return int(found[2]), int(found[1])


_READERS = (
    (rb"\x89PNG\r\n\x1a\n....IHDR", _png),
    (rb"\xff\xd8\xff", _jpeg),
    (rb"BM", _bmp),
    (rb"RIFF....WEBP", _webp),
    (rb"II[\x2a\x2b]\0|MM\0[\x2a\x2b]", _tiff),
    (rb"P[1-6]\s", _pnm),
)
