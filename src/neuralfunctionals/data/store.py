"""Weights on disk: shards of named tensors with an index beside each, every byte under a checksum.

A store is a directory:

    store.jsonl             what is in it: version, spec, number of items, provenance
    00000.safetensors       the first items: named tensors whose first axis counts items
    00000.jsonl             their index: one line for each item, then one with the size and checksum of the tensors
    00001.safetensors ...

The last line of each `.jsonl` is the checksum of the lines above it.

A shard holds a fixed range of items and is written whole or not at all; it counts once its index stands. Nothing is
ever appended to a file, so that a killed run leaves whole shards and perhaps a temporary file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from neuralfunctionals.data.files import is_abandoned, is_temporary, write_whole
from neuralfunctionals.weight_space import NetworkSpec

FORMAT = "neuralfunctionals store"
VERSION = 1
_HEADER = "store.jsonl"
_SHARD = re.compile(r"(\d{5,})\.(safetensors|jsonl)")
_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "?",
}


class StoreError(ValueError):
    """A store that is damaged, of another version, or not what was expected."""


@dataclass(frozen=True)
class StoreHeader:
    """What a store holds, known before its first item is made."""

    num_items: int
    shard_size: int
    spec: NetworkSpec | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """How the items are made, as plain JSON; a store is only continued by what has the same."""

    def __post_init__(self) -> None:
        if self.num_items < 1 or self.shard_size < 1:
            raise ValueError(f"Expected at least one item and a shard, but got {self.num_items} and {self.shard_size}.")

    @property
    def num_shards(self) -> int:
        """Shards of a complete store."""
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
        return _seal(json.dumps(content, sort_keys=True).encode())

    @classmethod
    def from_bytes(cls, data: bytes, path: Path) -> StoreHeader:
        """The inverse of `to_bytes`; the path is for messages."""
        body = _unseal(data)
        try:
            content = json.loads(data.partition(b"\n")[0] if body is None else body)
            if content["format"] != FORMAT:
                raise KeyError
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{path} is damaged, or not the description of a store.") from error
        if content.get("version") != VERSION:
            raise StoreError(
                f"{path} describes a store of version {content.get('version')}, but this release reads version "
                f"{VERSION}. Use the release that wrote it, or make the store anew. Nothing was changed."
            )
        if body is None:
            raise StoreError(f"{path} is damaged: its checksum does not fit.")
        spec = None if content["spec"] is None else NetworkSpec.from_dict(content["spec"])
        return cls(content["num_items"], content["shard_size"], spec, content["provenance"])


def _seal(body: bytes) -> bytes:
    return body + _seal_of(body)


def _seal_of(body: bytes) -> bytes:
    return b"\n" + json.dumps({"sha256": hashlib.sha256(body).hexdigest()}).encode() + b"\n"


_SEAL_LENGTH = len(_seal_of(b""))


def _unseal(data: bytes) -> bytes | None:
    """What was sealed; nothing if any byte has changed."""
    body = data[:-_SEAL_LENGTH]
    return body if _seal_of(body) == data[-_SEAL_LENGTH:] else None


class Store:
    """A store opened for reading or continued for writing.

    Args:
        path: Its directory.

    Raises:
        StoreError: If there is no store, it is of another version, or its index is damaged.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        file = self.path / _HEADER
        if not file.is_file():
            raise StoreError(
                f"Expected a store at {self.path}, but there is no {_HEADER}. Make one with 'nf fit --out {self.path}'."
            )
        self.header = StoreHeader.from_bytes(file.read_bytes(), file)

    @staticmethod
    def is_at(path: str | os.PathLike[str]) -> bool:
        """Whether there is a store, begun or complete."""
        return (Path(path) / _HEADER).is_file()

    @classmethod
    def create(cls, path: str | os.PathLike[str], header: StoreHeader) -> Store:
        """Begins a store, or continues one with the same header; temporary files of dead runs are removed."""
        path = Path(path)
        if path.exists() and not path.is_dir():
            raise StoreError(f"Expected a directory for the store, but {path} is a file.")
        if (path / _HEADER).is_file():
            store = cls(path)
            store._require_same(header)
        else:
            if path.is_dir() and any(not is_temporary(p) for p in path.iterdir()):
                raise StoreError(
                    f"Expected an empty directory or a store at {path}, but it holds other files. Name another one."
                )
            path.mkdir(parents=True, exist_ok=True)
            write_whole(path / _HEADER, header.to_bytes())
            store = cls(path)
        for leftover in path.iterdir():
            if is_abandoned(leftover):
                leftover.unlink(missing_ok=True)
        return store

    def _require_same(self, header: StoreHeader) -> None:
        ours, theirs = (json.loads(h.to_bytes().partition(b"\n")[0]) for h in (self.header, header))
        ours = {**ours.pop("provenance"), **ours}
        theirs = {**theirs.pop("provenance"), **theirs}
        differences = [
            f"{key}: {ours.get(key)!r} there, {theirs.get(key)!r} asked"
            for key in sorted({*ours, *theirs})
            if ours.get(key) != theirs.get(key)
        ]
        if differences:
            raise StoreError(
                f"The store at {self.path} was made otherwise ({'; '.join(differences)}). Repeat its own command to "
                "continue it, or name another directory."
            )

    # Shards.

    def file(self, shard: int, ending: str) -> Path:
        """Where a shard's tensors (`safetensors`) or index (`jsonl`) are kept."""
        return self.path / f"{shard:05d}.{ending}"

    def has_shard(self, shard: int) -> bool:
        """Whether the shard is finished."""
        return self.file(shard, "jsonl").is_file() and self.file(shard, "safetensors").is_file()

    @cached_property
    def shards(self) -> list[int]:
        """The finished shards, as they were when first asked for."""
        return [shard for shard in range(self.header.num_shards) if self.has_shard(shard)]

    def write_shard(self, shard: int, tensors: Mapping[str, np.ndarray], metadata: Sequence[Mapping[str, Any]]) -> None:
        """Adds a shard, whole or not at all.

        Args:
            shard: Its number.
            tensors: Named arrays whose first axis counts the items of the shard.
            metadata: Plain JSON for each item.
        """
        count = len(self.header.items_of(shard))
        lengths = {"metadata": len(metadata), **{name: len(array) for name, array in tensors.items()}}
        if not count or any(length != count for length in lengths.values()):
            raise ValueError(f"Expected {count} items for shard {shard}, but got {lengths}.")
        data = save({name: np.ascontiguousarray(tensors[name]) for name in sorted(tensors)})
        lines = [json.dumps(dict(item), sort_keys=True) for item in metadata]
        tensors_file = self.file(shard, "safetensors")
        checks = {"file": tensors_file.name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        index = _seal("\n".join([*lines, json.dumps(checks, sort_keys=True)]).encode())
        write_whole(tensors_file, data)
        write_whole(self.file(shard, "jsonl"), index)
        self.__dict__.pop("shards", None)

    def read_index(self, shard: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """The metadata of a shard's items, and the size and checksum of its tensors."""
        lines, checks = self._read_index_lines(shard)
        return [json.loads(line) for line in lines], checks

    def _read_index_lines(self, shard: int) -> tuple[list[bytes], dict[str, Any]]:
        file = self.file(shard, "jsonl")
        body = _unseal(file.read_bytes())
        if body is None:
            raise StoreError(f"{file} is damaged: its checksum does not fit. {_REPAIR}")
        *lines, last = body.split(b"\n")
        checks = json.loads(last)
        expected = len(self.header.items_of(shard))
        if checks["file"] != self.file(shard, "safetensors").name or len(lines) != expected:
            raise StoreError(
                f"{file} is the index of {len(lines)} items of {checks['file']}: it belongs to another shard. {_REPAIR}"
            )
        return lines, checks

    def map_tensors(self, shard: int) -> dict[str, np.ndarray]:
        """Memory maps of a shard's tensors, after a check of its index and its size."""
        _, checks = self._read_index_lines(shard)
        file = self.file(shard, "safetensors")
        size = file.stat().st_size
        if size != checks["bytes"]:
            raise StoreError(f"{file} is damaged: it has {size} bytes instead of {checks['bytes']}. {_REPAIR}")
        try:
            with open(file, "rb") as stream:
                length = int.from_bytes(stream.read(8), "little")
                entries = json.loads(stream.read(length) if length <= size else b"")
            # Copy-on-write: torch wants to be allowed to write into arrays it gets, yet the file never changes.
            whole = np.asarray(np.memmap(file, np.uint8, "c"))
            tensors = {}
            for name, entry in entries.items():
                if name != "__metadata__":
                    start, stop = (8 + length + offset for offset in entry["data_offsets"])
                    tensors[name] = whole[start:stop].view(_DTYPES[entry["dtype"]]).reshape(entry["shape"])
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{file} is damaged: its header cannot be read. {_REPAIR}") from error
        return tensors

    # Checks.

    def problems(self) -> Iterator[tuple[Path, str]]:
        """Every file that is damaged, missing or no part of the store, with what is wrong; reads all bytes."""
        for shard in range(self.header.num_shards):
            tensors, index = self.file(shard, "safetensors"), self.file(shard, "jsonl")
            if not index.is_file():
                items = self.header.items_of(shard)
                where = f"items {items.start} to {items.stop - 1}"
                yield index, f"missing: {where} are not in the store. Repeat the command that makes it."
                continue
            try:
                _, checks = self._read_index_lines(shard)
            except StoreError as error:
                yield index, str(error)
                continue
            if not tensors.is_file():
                yield tensors, f"missing. {_REPAIR}"
            elif _sha256(tensors) != checks["sha256"]:
                yield tensors, f"{tensors} is damaged: its checksum does not fit. {_REPAIR}"
        known = {
            self.file(s, ending).name for s in range(self.header.num_shards) for ending in ("safetensors", "jsonl")
        }
        for file in sorted(self.path.iterdir()):
            if file.name not in known and file.name != _HEADER:
                yield file, f"{file} is no part of the store. Remove it."

    def require_intact(self, shards: Sequence[int]) -> None:
        """Raises if one of these finished shards is damaged."""
        for shard in shards:
            _, checks = self._read_index_lines(shard)
            if _sha256(self.file(shard, "safetensors")) != checks["sha256"]:
                raise StoreError(f"{self.file(shard, 'safetensors')} is damaged: its checksum does not fit. {_REPAIR}")


_REPAIR = "Delete this file and repeat the command that made the store: it makes that shard again."


def _sha256(file: Path) -> str:
    with open(file, "rb") as stream:
        digest = hashlib.sha256()
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
