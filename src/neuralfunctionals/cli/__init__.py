"""The `nf` command: a table from command to function."""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

import jsonargparse

from neuralfunctionals import __version__
from neuralfunctionals.cli import build, data, demo, latents, make, networks, report, serve, sweep, train
from neuralfunctionals.cli.command import Command, print_table, printable, say
from neuralfunctionals.cli.mistakes import plain_message
from neuralfunctionals.errors import UserError, nearest
from neuralfunctionals.files.budget import MAX_MEMORY, is_out_of_memory, memory_limit, parse_size

COMMANDS: dict[str, Command] = {
    name: command
    for part in (demo, networks, make, data, train, latents, sweep, report, serve, build)
    for name, command in part.COMMANDS.items()
}
"""All commands by name."""


_MAX_MESSAGE = 2000


class _Parser(jsonargparse.ArgumentParser):
    """Reports errors in one line."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Exits with code 2."""
        _fail(plain_message(message, self))


def _fail(message: object) -> NoReturn:
    text = printable(" ".join(str(message).split()))
    print(f"nf: {text if len(text) <= _MAX_MESSAGE else text[:_MAX_MESSAGE] + ' ...'}", file=sys.stderr)
    raise SystemExit(2)


def build_parser(name: str) -> jsonargparse.ArgumentParser:
    """The parser of one command."""
    command = COMMANDS[name]
    parser = _Parser(
        prog=f"nf {name}",
        description=command.summary,
        epilog=f"example: {command.example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_arguments(parser.add_argument)
    parser.add_argument("--json", action="store_true", help="print the result as one line of JSON")
    text = f"maximum memory for the contents of a file, such as 8G (defaults to {MAX_MEMORY}, or 2G)"
    parser.add_argument("--max-memory", metavar="SIZE", help=text)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns 0. For a mistake of the user, prints one line to standard error and exits with 2.

    Any other failure prints its traceback and returns 1.
    """
    try:
        try:
            return _run(list(sys.argv[1:] if arguments is None else arguments))
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough, as in `nf recipes | head -3`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more when it exits
        return 1


def _run(words: list[str]) -> int:
    if words[:1] == ["--version"]:
        print(f"nf {__version__}")
        return 0
    name = next((" ".join(words[:count]) for count in (2, 1) if " ".join(words[:count]) in COMMANDS), None)
    if name is None:
        return _print_help(words)
    command, parser, rest = COMMANDS[name], build_parser(name), words[len(name.split()) :]
    try:
        rest, run = (rest, command.run) if command.bind is None else command.bind(parser, rest)
        options = vars(parser.parse_args(rest))
        as_json, max_memory = options.pop("json"), options.pop("max_memory")
        if max_memory is not None:
            parse_size(max_memory)
            os.environ[MAX_MEMORY] = max_memory  # for worker processes too
        memory_limit()  # reports a wrong value of the variable before the work starts
        result = run(**options)
    except (UserError, FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError) as error:
        _fail(error)
    except OSError as error:
        _fail(f"{error}. Finished work is kept: free some space or repair the disk, and repeat the command.")
    except KeyboardInterrupt:
        print("nf: interrupted. Finished work is kept: repeat the command to resume.", file=sys.stderr)
        return 130
    except Exception as error:
        if is_out_of_memory(error):
            _fail("There is not enough memory. Finished work is kept: use smaller sizes and repeat the command.")
        traceback.print_exc()
        say(f"this is a bug in neuralfunctionals. Please report the lines above, the command, and nf {__version__}.")
        return 1
    if as_json:
        print(json.dumps(result))
    else:
        (command.show or _show)(result)
    return 0


def _print_help(words: Sequence[str]) -> int:
    """Prints all commands, or those of a group; fails for any other words."""
    group = words[0] if words and not words[0].startswith("-") else ""
    found = {name: command for name, command in COMMANDS.items() if not group or name.split()[0] == group}
    rest = words[1:] if group else words
    if not found or (rest and rest[0] not in ("-h", "--help")):
        # The first of two words may be a whole command, or the first half of one.
        two = nearest(" ".join(words[:2]), COMMANDS)
        close = two if group and found else nearest(group, COMMANDS) or two
        names = ", ".join(found or COMMANDS)
        _fail(f"Expected a command ({names}), but got '{' '.join(words)}'.{close} Try nf --help.")
    print("Weight-space learning: models that take the weights of other networks as input.\n\nusage: nf COMMAND ...\n")
    for name, command in found.items():
        print(f"  nf {name:<14}{command.summary}")
    print(f"\nnf COMMAND --help explains a command.\nexample: {next(iter(found.values())).example}")
    return 0


def _show(result: dict[str, Any]) -> None:
    lines = [(name, json.dumps(v) if isinstance(v, (dict, list)) else str(v)) for name, v in result.items()]
    print_table((), lines)
