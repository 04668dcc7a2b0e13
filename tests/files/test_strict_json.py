"""JSON that is damaged, hostile or of another kind: a value of the right type, or one line."""

import json
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import pytest

from neuralfunctionals.files.strict_json import MAX_DEPTH, JsonError, conform, parse_json, read_json, require_arguments


@dataclass(frozen=True)
class Part:
    size: int
    rate: float = 0.5
    names: tuple[str, ...] = ()

    def __post_init__(self):
        if self.size < 1:
            raise ValueError(f"Expected a size of at least 1, but got {self.size}.")


class Whole(TypedDict, total=False):
    part: Part
    kind: Literal["a", "b"] | None
    anything: Any


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe\xfa", "not valid JSON"),
        (b"[NaN]", "contains NaN"),
        (b"[-Infinity]", "contains -Infinity"),
        (b"[1e999]", "too large for a float"),
        (b"[123456789012345678901234567890]", "at most 64 bits"),
        (b"[" + b"1" * 5000 + b"]", "not valid JSON"),
        (b'{"a": 1, "a": 2}', 'name "a" occurs twice'),
        (b'["\\ud800"]', "surrogates"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[" * 500 + b"]" * 500, "nested too deeply"),
        (b'{"a":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1), "nested too deeply"),
    ],
)
def test_refuses_texts_in_one_line(tmp_path, text, reason):
    (tmp_path / "x.json").write_bytes(text)
    with pytest.raises(JsonError, match=reason) as caught:
        read_json(tmp_path / "x.json")
    assert str(tmp_path / "x.json") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_ordinary_texts_stay_as_they_are():
    value = {"a": [1, 2.5, None, True, "ü"], "b": {"c": -(2**63 - 1)}}
    assert parse_json(json.dumps(value), "x") == value
    deep = 1
    for _ in range(MAX_DEPTH):
        deep = [deep]
    assert parse_json(json.dumps(deep), "x") == deep
    assert parse_json("[NaN]", "x", allow_nan=True)[0] != 0


def test_files_that_are_missing_or_too_large_are_named(tmp_path):
    with pytest.raises(JsonError, match=r"Cannot read .*none\.json: No such file"):
        read_json(tmp_path / "none.json")
    with open(tmp_path / "big.json", "wb") as file:
        file.truncate(2**30)  # sparse: no disk is used, and nothing may read it
    with pytest.raises(JsonError, match=r"big\.json is too large"):
        read_json(tmp_path / "big.json")


def test_objects_become_what_was_asked_for():
    value = {"part": {"size": 2, "names": ["x"]}, "kind": "b", "anything": [{}]}
    assert conform(value, Whole, "x") == {"part": Part(2, names=("x",)), "kind": "b", "anything": [{}]}
    assert conform({"kind": None}, Whole, "x") == {"kind": None}
    assert conform(1, float, "x") == 1
    assert conform({"a": 1, "b": 2}, dict[str, int], "x") == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "x.json: expected an object, but got [].".replace("[", r"\[")),
        ({"other": 1}, 'x.json: expected the names anything, kind, part, but got "other".'),
        ({"part": {}}, "x.json: part: expected the name size, but it is missing."),
        ({"part": {"size": "2"}}, 'x.json: part.size: expected an integer, but got "2".'),
        ({"part": {"size": True}}, "x.json: part.size: expected an integer, but got true."),
        ({"part": {"size": 2.0}}, "x.json: part.size: expected an integer, but got 2.0."),
        ({"part": {"size": 0}}, "x.json: part: Expected a size of at least 1, but got 0."),
        ({"part": {"size": 1, "rate": None}}, "x.json: part.rate: expected a number, but got null."),
        ({"part": {"size": 1, "names": ["a", 1]}}, "x.json: part.names.1: expected a string, but got 1."),
        ({"part": {"size": 1, "names": "ab"}}, 'x.json: part.names: expected a list, but got "ab".'),
        ({"kind": "c"}, 'x.json: kind: expected one of "a", "b" or null, but got "c".'),
        ({"kind": ["a" * 1000]}, r"x.json: kind: expected one of .* but got \[\"a{40}"),
    ],
)
def test_refuses_other_types_by_their_place(value, message):
    with pytest.raises(JsonError, match=message) as caught:
        conform(value, Whole, "x.json")
    assert len(str(caught.value)) < 300


def test_refuses_arguments_that_a_constructor_does_not_take():
    require_arguments(Part, {"size": 1}, "x.json")
    for arguments, message in [
        ({"size": 1, "colour": 2}, 'expected the names names, rate, size, but got "colour"'),
        ({}, "expected the name size"),
        ({"size": [1]}, "size: expected an integer"),
    ]:
        with pytest.raises(JsonError, match=message):
            require_arguments(Part, arguments, "x.json")
