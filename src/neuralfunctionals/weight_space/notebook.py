"""Features in a notebook: a small picture of the first networks, `draw_networks`, and a table of their entries."""

from __future__ import annotations

import base64
import html
import struct
import zlib
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import interpolate

if TYPE_CHECKING:
    from neuralfunctionals.weight_space.features import WeightSpaceFeatures

_SHOWN_NETWORKS, _SHOWN_GROUPS = 4, 12
_TILE = 40
"""Pixels on each side of the picture of one tensor."""
_GAP = 4


def draw_networks(features: WeightSpaceFeatures) -> bytes:
    """A PNG of the first networks, one per row, and their tensors, one per tile: red is positive, blue negative.

    Tiles of one tensor share a scale. Only the first channel is shown.
    """
    shown = features.tensor[:_SHOWN_NETWORKS, :, 0].detach().to("cpu", torch.float32)
    groups = features.spec.groups[:_SHOWN_GROUPS]
    side = _TILE + _GAP
    canvas = torch.full((max(1, len(shown)) * side, len(groups) * side, 3), 255, dtype=torch.uint8)
    for column, group in enumerate(groups):
        values = shown[:, group.start : group.stop].nan_to_num()
        values = values / values.abs().amax().clamp_min(1e-12) if values.numel() else values
        for row, entries in enumerate(values):
            tile = entries.reshape(group.shape[0] if group.shape else 1, -1)
            tile = interpolate(tile[None, None], size=(_TILE, _TILE), mode="nearest")[0, 0]
            canvas[row * side :, column * side :][:_TILE, :_TILE] = _colours(tile)
    return _png(canvas)


def describe_networks(features: WeightSpaceFeatures) -> str:
    """HTML for a notebook: the repr, the picture, and a legend of its columns."""
    rows = []
    for group in features.spec.groups[:_SHOWN_GROUPS]:
        values = features.tensor[:, group.start : group.stop].detach().float()
        spread = f"{values.mean().item():.3g} ± {values.std(correction=0).item():.3g}" if values.numel() else ""
        rows.append(f"<tr><td>{html.escape(str(group))}</td><td>{tuple(group.shape)}</td><td>{spread}</td></tr>")
    picture = base64.b64encode(draw_networks(features)).decode()
    left_out = len(features.spec.groups) - len(rows)
    more = f"<p>{left_out} more tensors</p>" if left_out > 0 else ""
    return (
        f"<p><code>{html.escape(repr(features))}</code></p>"
        f'<img alt="weights of the first networks, a row each" src="data:image/png;base64,{picture}">'
        "<table><tr><th>tensor</th><th>shape</th><th>mean ± std</th></tr>" + "".join(rows) + f"</table>{more}"
    )


def _colours(values: Tensor) -> Tensor:
    """From -1 to 1: blue, white, red."""
    fade = 1 - values.abs()
    red, blue = torch.where(values >= 0, 1.0, fade), torch.where(values >= 0, fade, 1.0)
    return (torch.stack([red, fade, blue], dim=-1) * 255).round().to(torch.uint8)


def _png(pixels: Tensor) -> bytes:
    """Encodes RGB bytes as a PNG file, so that this package needs no image library."""
    height, width, _ = pixels.shape
    rows = torch.cat([torch.zeros(height, 1, dtype=torch.uint8), pixels.reshape(height, -1)], dim=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(rows.flatten().tolist()))), (b"IEND", b""))
    chunks = (struct.pack(">I", len(x)) + kind + x + struct.pack(">I", zlib.crc32(kind + x)) for kind, x in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
