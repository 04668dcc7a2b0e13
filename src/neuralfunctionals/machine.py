"""The cache directory and the number of cores: `cache_directory`, `num_cores`."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """Directory for files that can be recreated: `NF_CACHE`, or `~/.cache/neuralfunctionals`."""
    return Path(os.environ.get("NF_CACHE") or Path.home() / ".cache" / "neuralfunctionals")


def num_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
