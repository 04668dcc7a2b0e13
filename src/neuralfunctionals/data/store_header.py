"""The header of a store, and the checksum line of its `.jsonl` files: `StoreHeader`, `seal`, `unseal`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from neuralfunctionals.errors import UserError
from neuralfunctionals.files.strict_json import JsonError, conform, parse_json
from neuralfunctionals.weight_space import NetworkSpec

FORMAT = "neuralfunctionals store"
VERSION = 1
MAX_ITEMS = 10**10
"""A larger number must be a mistake: even with the smallest networks, the store would take terabytes."""


class StoreError(UserError):
    """A store is damaged, has another version, or does not hold what was expected."""


class Provenance(TypedDict, total=False):
    """The keys of a provenance that the library uses; others are only displayed."""

    path: str
    kind: str
    images: str
    image_shape: list[int]
    recipe: dict[str, Any] | None
    omega: float
    convention: str
    seed: int
    checkpoint_epochs: list[int]
    step: int
    encoder: dict[str, Any]


class _Content(TypedDict):
    """The content of `store.jsonl`."""

    format: str
    version: int
    num_items: int
    shard_size: int
    spec: NetworkSpec | None
    provenance: dict[str, Any]


@dataclass(frozen=True)
class StoreHeader:
    """Description of a store, known before its first item is made."""

    num_items: int
    shard_size: int
    spec: NetworkSpec | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """How the items are made, as plain JSON; a store can only be continued with the same provenance."""

    def __post_init__(self) -> None:
        for name in ("num_items", "shard_size"):
            if not 1 <= getattr(self, name) <= MAX_ITEMS:
                raise UserError(f"Expected {name} from 1 to {MAX_ITEMS:,}, but got {getattr(self, name)}.")

    @property
    def num_shards(self) -> int:
        """Number of shards of the complete store."""
        return -(-self.num_items // self.shard_size)

    def items_of(self, shard: int) -> range:
        """The items of a shard."""
        return range(shard * self.shard_size, min((shard + 1) * self.shard_size, self.num_items))

    def to_bytes(self) -> bytes:
        """The content of `store.jsonl`."""
        content = {
            "format": FORMAT,
            "version": VERSION,
            "num_items": self.num_items,
            "shard_size": self.shard_size,
            "spec": None if self.spec is None else self.spec.to_dict(),
            "provenance": dict(self.provenance),
        }
        return seal(json.dumps(content, sort_keys=True).encode())

    @classmethod
    def from_bytes(cls, data: bytes, path: Path) -> StoreHeader:
        """The inverse of `to_bytes`; the path is for messages."""
        body = unseal(data)
        try:
            content = parse_json(data.partition(b"\n")[0] if body is None else body, str(path))
        except JsonError as error:
            raise StoreError(f"{path} is damaged, or not the description of a store.") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise StoreError(f"{path} is damaged, or not the description of a store.")
        if content.get("version") != VERSION:
            raise StoreError(
                f"{path} describes a store of version {content.get('version')}, but this release reads version "
                f"{VERSION}. Use the release that wrote it, or make the store again. Nothing was changed."
            )
        if body is None:
            raise StoreError(f"{path} is damaged: its checksum does not match.")
        try:
            read = conform(content, _Content, str(path))
            conform(read["provenance"], Provenance, f"{path}: provenance", open_names=True)
            return cls(read["num_items"], read["shard_size"], read["spec"], content["provenance"])
        except ValueError as error:
            text = str(error) if str(path) in str(error) else f"{path}: {error}"
            raise StoreError(f"{text} Make the store again.") from error


def seal(body: bytes) -> bytes:
    """Appends a line with the checksum of the lines before it."""
    return body + _seal_of(body)


def _seal_of(body: bytes) -> bytes:
    return b"\n" + json.dumps({"sha256": hashlib.sha256(body).hexdigest()}).encode() + b"\n"


_SEAL_LENGTH = len(_seal_of(b""))


def unseal(data: bytes) -> bytes | None:
    """The lines without the checksum line; None if the checksum does not match."""
    body = data[:-_SEAL_LENGTH]
    return body if _seal_of(body) == data[-_SEAL_LENGTH:] else None
