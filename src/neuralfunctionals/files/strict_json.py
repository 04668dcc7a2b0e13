"""JSON from files that may be damaged, old, or written by others: `read_json`, `parse_json`, `conform`.

The library reads all JSON with these functions: for any content of a file, the result is a value of the expected type
or an error of one line that names the file and the field.
"""

from __future__ import annotations

import inspect
import json
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from neuralfunctionals.errors import UserError

MAX_BYTES = 64 * 2**20
"""Largest JSON file that is read."""
MAX_DEPTH = 32
"""Deepest nesting of lists and objects."""
MAX_INTEGER = 2**63 - 1
"""Largest absolute value of an integer: arrays cannot hold larger ones."""

_PLAIN = (int, float, str, bool, list, tuple, dict, type(None))


class JsonError(UserError):
    """JSON cannot be read, or does not have the expected content."""


def read_json(file: Path) -> Any:
    """Reads a JSON file."""
    try:
        if file.stat().st_size > MAX_BYTES:
            raise JsonError(f"{file} is too large: expected at most {MAX_BYTES // 2**20} MB of JSON.")
        data = file.read_bytes()
    except OSError as error:
        raise JsonError(f"Cannot read {file}: {error.strerror or error}.") from error
    return parse_json(data, str(file))


def parse_json(data: bytes | str, where: str, *, allow_nan: bool = False) -> Any:
    """Parses a JSON text; refuses numbers of more than 64 bits, repeated names and too deep nesting.

    Args:
        data: The text.
        where: Where it comes from, for messages.
        allow_nan: Whether numbers may be NaN or infinite.
    """
    try:
        constant = None if allow_nan else _refuse_constant
        value = json.loads(data, parse_constant=constant, object_pairs_hook=_unique)
        _require_plain(value, allow_nan=allow_nan)
    except RecursionError as error:
        raise JsonError(f"{where} is nested too deeply: expected at most {MAX_DEPTH} levels.") from error
    except (UnicodeDecodeError, ValueError) as error:
        raise JsonError(f"{where} is not valid JSON: {str(error).rstrip('.')}.") from error
    return value


def _refuse_constant(name: str) -> None:
    raise UserError(f"it contains {name}, expected a finite number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"the name {_shorten(twice)} occurs twice")
    return found


def _require_plain(value: Any, *, allow_nan: bool) -> None:
    """Checks depth and numbers; a loop, because recursion would fail on deeply nested values."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for part in level:
            if isinstance(part, dict):
                below.extend(part.keys())
                below.extend(part.values())
            elif isinstance(part, list):
                below.extend(part)
            elif isinstance(part, str):
                part.encode()  # half a surrogate pair cannot be printed or written
            elif isinstance(part, int) and abs(part) > MAX_INTEGER:
                raise UserError(f"it contains {_shorten(part)}, expected a number of at most 64 bits")
            elif isinstance(part, float) and not (allow_nan or math.isfinite(part)):
                raise UserError("it contains a number that is too large for a float")
        if not below:
            return
        level = below
    raise RecursionError


def _shorten(value: Any) -> str:
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = str(type(value).__name__)
    return text if len(text) <= 60 else text[:57] + "..."


# Types.


def conform(value: Any, kind: Any, where: str, *, open_names: bool = False) -> Any:
    """Checks a JSON value against an annotated type, and converts lists to tuples and objects to dataclasses.

    Args:
        value: A value returned by `parse_json`.
        kind: `int`, `float`, `str`, `bool`, `None`, `Any`, a `Literal`, a union, `list`, `tuple`, `dict`, a `TypedDict`
            or a dataclass, whose own checks are run too.
        where: Where the value comes from, for messages: the file, then the names that lead to the value.
        open_names: Whether the outermost object may have names besides the known ones.

    Example:
        >>> conform([2, 3], tuple[int, ...], "a.json: sizes")
        (2, 3)
        >>> conform("many", int | None, "a.json: steps")
        Traceback (most recent call last):
        neuralfunctionals.files.strict_json.JsonError: a.json: steps: expected an integer or null, but got "many".
    """
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        return _conform_union(value, parts, where, kind)
    if is_dataclass(kind) and isinstance(kind, type):
        return _conform_dataclass(value, kind, where)
    if typing.is_typeddict(kind):
        return _conform_typed_dict(value, kind, where, open_names=open_names)
    if isinstance(value, dict) and (origin in (dict, Mapping) or kind is dict):
        inside = parts[1] if parts else Any
        return {name: conform(part, inside, _inside(where, name)) for name, part in value.items()}
    if isinstance(value, list) and (origin in (list, tuple, Sequence) or kind in (list, tuple)):
        items = [conform(part, parts[0] if parts else Any, _inside(where, n)) for n, part in enumerate(value)]
        return tuple(items) if origin is tuple or kind is tuple else items
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    if kind in (int, str, bool) and type(value) is kind:  # true and false are not integers
        return value
    if origin is Literal and any(value == choice and type(value) is type(choice) for choice in parts):
        return value
    if kind in (None, type(None)) and value is None:
        return None
    if isinstance(kind, type) and kind not in _PLAIN:  # another class: the caller converts it
        return value
    raise JsonError(f"{where}: expected {_describe(kind)}, but got {_shorten(value)}.")


def _conform_union(value: Any, options: tuple[Any, ...], where: str, kind: Any) -> Any:
    inner = None
    for option in options:
        try:
            return conform(value, option, where)
        except JsonError as error:
            if not str(error).startswith(f"{where}: expected"):  # the type is right, but something inside is not
                inner = error
    raise inner or JsonError(f"{where}: expected {_describe(kind)}, but got {_shorten(value)}.")


def _conform_dataclass(value: Any, kind: Any, where: str) -> Any:
    own = {field.name: field for field in fields(kind) if field.init}
    required = [name for name, f in own.items() if f.default is MISSING and f.default_factory is MISSING]
    hints = get_type_hints(kind)
    arguments = conform_names(value, {name: hints[name] for name in own}, required, where)
    try:
        return kind(**arguments)
    except JsonError:
        raise
    except ValueError as error:
        raise JsonError(f"{where}: {error}") from error


def _conform_typed_dict(value: Any, kind: Any, where: str, *, open_names: bool) -> dict[str, Any]:
    return conform_names(value, get_type_hints(kind), kind.__required_keys__, where, open_names=open_names)


def conform_names(
    value: Any, hints: Mapping[str, Any], required: Iterable[str], where: str, *, open_names: bool = False
) -> dict[str, Any]:
    """Checks and converts the parts of a JSON object, each to its type; see `conform`."""
    if not isinstance(value, dict):
        raise JsonError(f"{where}: expected an object, but got {_shorten(value)}.")
    unknown = [name for name in value if name not in hints]
    if unknown and not open_names:
        raise JsonError(f"{where}: expected the names {', '.join(sorted(hints))}, but got {_shorten(unknown[0])}.")
    missing = sorted(name for name in required if name not in value)
    if missing:
        raise JsonError(f"{where}: expected the name {missing[0]}, but it is missing.")
    return {name: conform(part, hints.get(name, Any), _inside(where, name)) for name, part in value.items()}


def require_arguments(make: Callable[..., Any], arguments: Any, where: str) -> None:
    """Checks arguments from JSON, by name and type, against the annotations of a function or a constructor.

    Args:
        make: A function or a class; parameters of types that JSON does not have are not checked.
        arguments: The arguments by name, as `parse_json` returned them.
        where: Where they come from, for messages.
    """
    function: Any = make.__init__ if isinstance(make, type) else make
    hints = get_type_hints(function)
    known = [p for p in inspect.signature(make).parameters.values() if p.kind is not p.VAR_KEYWORD]
    required = [p.name for p in known if p.default is p.empty]
    conform_names(arguments, {p.name: hints.get(p.name, Any) for p in known}, required, where)


def _inside(where: str, name: object) -> str:
    """The place of a part: `file: a.b`."""
    return f"{where}.{name}" if ": " in where else f"{where}: {name}"


def _describe(kind: Any) -> str:
    simple = {int: "an integer", float: "a number", str: "a string", bool: "true or false", type(None): "null"}
    if kind in simple:
        return simple[kind]
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return f"one of {', '.join(_shorten(choice) for choice in parts)}"
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_describe(part) for part in parts))
    if origin in (list, tuple, Sequence) or kind in (list, tuple):
        return "a list"
    return "an object"
