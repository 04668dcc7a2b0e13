"""Turns error messages of the parser into plain sentences: `plain_message`."""

from __future__ import annotations

import argparse
import re
import types
from typing import Any, Literal, Union, get_args, get_origin

from neuralfunctionals.errors import nearest

_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def plain_message(message: str, parser: argparse.ArgumentParser) -> str:
    """Rewrites a message of argparse or jsonargparse: what was expected, and what was given.

    Args:
        message: The original message.
        parser: The parser that raised it.
    """
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", message).split())
    for pattern, say in _FORMS:
        if found := re.search(pattern, text):
            return say(parser, *found.groups())
    return text


def _wrong_value(parser: argparse.ArgumentParser, key: str, value: str) -> str:
    action = next((action for action in parser._actions if action.dest == key), None)
    hint = getattr(action, "_typehint", None)
    choices = [str(choice) for choice in get_args(hint)] if get_origin(hint) is Literal else []
    return f"Expected {_call(action, key)} to be {_describe(hint)}, but got '{value}'.{nearest(value, choices)}"


def _wrong_group(parser: argparse.ArgumentParser, key: str) -> str:
    fields = [option for option in _options(parser) if option.startswith(f"--{key}.")]
    return f"Expected a field after --{key}, such as {fields[0] if fields else f'--{key}.FIELD'} VALUE."


def _unknown_field(parser: argparse.ArgumentParser, group: str, field: str) -> str:
    fields = [o.removeprefix(f"--{group}.") for o in _options(parser) if o.startswith(f"--{group}.")]
    return f"{group} has no field '{field}'.{nearest(field, fields) or f' Try {parser.prog} --help.'}"


def _unknown_words(parser: argparse.ArgumentParser, words: str) -> str:
    first = words.split()[0]
    if not first.startswith("-"):
        return f"Expected no more arguments, but got '{first}'. Try {parser.prog} --help."
    option = first.partition("=")[0]
    return f"Unknown option {option}.{nearest(option, _options(parser)) or f' Try {parser.prog} --help.'}"


def _missing_words(parser: argparse.ArgumentParser, names: str) -> str:
    actions = {action.dest: action for action in parser._actions}
    called = [_call(actions.get(name), name, with_value=True) for name in names.split(", ")]
    return f"Expected {' and '.join(called)}. Try {parser.prog} --help."


_FORMS = (
    # The innermost key of a group is named last.
    (r'.*Parser key "([^"]+)": (?:Expected|Does not validate).*?(?:Got|Given) value: (.*)$', _wrong_value),
    (r'^Parser key "([^"]+)": Unable to load config', _wrong_group),
    (r"^Group '([^']+)' does not accept option '([^']+)'", _unknown_field),
    (r"^argument ([^:]+): expected one argument", lambda parser, option: f"Expected a value after {option}."),
    (r"^[Uu]nrecognized arguments: (.+)$", _unknown_words),
    (r"^the following arguments are required: (.+)$", _missing_words),
)


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return [option for action in parser._actions for option in action.option_strings]


def _call(action: argparse.Action | None, name: str, *, with_value: bool = False) -> str:
    """An argument as it is written on the command line: `--limit`, `--limit N` or `RUN`."""
    if action is None:
        return f"--{name}"
    value = str(action.metavar or action.dest.upper())
    if not action.option_strings:
        return value
    return f"{action.option_strings[0]} {value}" if with_value else action.option_strings[0]


def _describe(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return f"one of {', '.join(str(value) for value in get_args(hint))}"
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join("null" if part is type(None) else _describe(part) for part in get_args(hint))
    if get_origin(hint) in (list, tuple):
        return "a list such as [1, 2]"
    return _KINDS.get(hint, f"a {getattr(hint, '__name__', 'valid value')}")
