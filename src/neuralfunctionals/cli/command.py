"""One command of `nf`: `Command`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Run = Callable[[Any], dict[str, Any]]
"""Does what a command is for, and returns what `--json` prints."""


@dataclass(frozen=True)
class Command:
    """What a command takes and does."""

    summary: str
    example: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Run
    show: Callable[[dict[str, Any]], None] | None = None
    """Shows the result to people, where a plain list does not do."""
    bind: Callable[[argparse.ArgumentParser, Sequence[str]], tuple[list[str], Run]] | None = None
    """Adds arguments that depend on the words given; returns the words left to read and what to run."""
