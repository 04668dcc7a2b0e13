"""The page's own scripts: `script`."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent


def script(name: str, max_bytes: int) -> str:
    """One script, behind the functions that all share.

    Args:
        name: Its file.
        max_bytes: The largest file that it sends.
    """
    return (_HERE / "files.js").read_text() + (_HERE / name).read_text().replace("MAX_BYTES", str(max_bytes))
