"""A command of `nf`: `Command`; and how commands print messages and tables: `say`, `print_table`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from neuralfunctionals.errors import UserError

Add = Callable[..., Any]
"""Adds an argument to a command, as `ArgumentParser.add_argument` does."""
Run = Callable[..., dict[str, Any]]
"""Runs a command with its arguments by name, and returns the result that `--json` prints."""


@dataclass(frozen=True)
class Command:
    """A command: its help, its arguments, and the function that runs it."""

    summary: str
    example: str
    add_arguments: Callable[[Add], None]
    run: Run
    show: Callable[[dict[str, Any]], None] | None = None
    """Prints the result for people. Defaults to a list of names and values."""
    bind: Callable[[argparse.ArgumentParser, Sequence[str]], tuple[list[str], Run]] | None = None
    """Adds arguments that depend on the words given; returns the words left to parse and the function to run."""


def say(text: str) -> None:
    """Prints one line to standard error."""
    print(f"nf: {text}", file=sys.stderr)


def print_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints a table to standard output; if that is not a terminal, nothing is cut or wrapped."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*names, box=None, header_style="bold", show_header=bool(names))
    for row in rows:
        # As plain text: file names may contain what rich would read as markup.
        table.add_row(*(Text(printable(cell), overflow="fold") for cell in row))
    console = Console(highlight=False)
    (console if console.is_terminal else Console(highlight=False, width=100_000)).print(table)


def parse_size(text: str | None) -> tuple[int, int] | None:
    """Height and width, from `28` or `28x32`."""
    if text is None:
        return None
    parts = str(text).split("x")
    if len(parts) > 2 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UserError(f"Expected --image-size as 28 or 28x32 (height x width), but got '{text}'.")
    return int(parts[0]), int(parts[-1])


def printable(text: str) -> str:
    r"""Escapes control characters and undecodable bytes of file names, so that the text is safe to print.

    Example:
        >>> printable("a\x1b[31m b")
        'a\\x1b[31m b'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
