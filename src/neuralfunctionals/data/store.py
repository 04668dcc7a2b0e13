"""Weights on disk: shards of named tensors, each with an index; checksums cover every byte.

A store is a directory:

    store.jsonl             the header: version, spec, number of items, provenance
    00000.safetensors       the first items: named tensors whose first axis counts items
    00000.jsonl             their index: one line per item, then one with the size and checksum of the tensors and
                            the checksum of store.jsonl
    00001.safetensors ...

The last line of each `.jsonl` is the checksum of the lines above it.

A shard holds a fixed range of items and is written completely or not at all; it is finished once its index exists.
Files are never appended to, so that a killed run leaves complete shards and perhaps a temporary file.

Each process checks a shard before it reads it for the first time. Indexes of older releases do not record which
store they belong to, and are accepted.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from safetensors.numpy import save

from neuralfunctionals.data.store_header import StoreError, StoreHeader, seal, unseal
from neuralfunctionals.errors import UserError
from neuralfunctionals.files.checksums import sha256_of
from neuralfunctionals.files.strict_json import JsonError, conform, parse_json
from neuralfunctionals.files.writing import is_temporary, remove_abandoned, write_new, write_whole
from neuralfunctionals.images.splits import SPLITS
from neuralfunctionals.machine import num_cores

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
_intact: set[tuple[Any, ...]] = set()
"""Files that this process has checked, with their status at that time."""


class _Checks(TypedDict, total=False):
    """The last line of an index: size and checksum of the tensors, and the store that they belong to."""

    file: str
    bytes: int
    sha256: str
    store: str


class Store:
    """A store, opened to read it or to add shards.

    Args:
        path: Its directory.

    Raises:
        StoreError: If there is no store, it has another version, or its header is damaged.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        file = self.path / _HEADER
        if self.path.is_file():
            raise StoreError(
                f"Expected the directory of a store, but {self.path} is a file. Pass a file of networks with "
                "--weights, or import several into a store with nf data import."
            )
        if not file.is_file():
            raise StoreError(
                f"Expected a store at {self.path}, but there is no {_HEADER}. Make one with nf fit, or import a folder "
                "of networks with nf data import."
            )
        data = file.read_bytes()
        self.header = StoreHeader.from_bytes(data, file)
        self.digest = hashlib.sha256(data).hexdigest()
        """The checksum of `store.jsonl`, which is also in every shard's index."""

    @staticmethod
    def is_at(path: str | os.PathLike[str]) -> bool:
        """Whether there is a store, complete or not."""
        return (Path(path) / _HEADER).is_file()

    @classmethod
    def create(cls, path: str | os.PathLike[str], header: StoreHeader) -> Store:
        """Creates a store, or opens one with the same header; temporary files of killed runs are removed.

        Several writers with the same header may do this at the same time.
        """
        path = Path(path)
        if path.exists() and not path.is_dir():
            raise StoreError(f"Expected a directory for the store, but {path} is a file.")
        path.mkdir(parents=True, exist_ok=True)
        # The header is written first: a directory with other files but no header is not a store.
        if any(not is_temporary(p) for p in path.iterdir()) and not cls.is_at(path):
            raise StoreError(
                f"Expected an empty directory or a store at {path}, but it holds other files. Choose another directory."
            )
        if not cls.is_at(path):
            write_new(path / _HEADER, header.to_bytes())
        store = cls(path)  # this one, or that of another writer that was faster
        store._require_same(header)
        remove_abandoned(path)
        return store

    def _require_same(self, header: StoreHeader) -> None:
        there, asked = (dict(_flatten(json.loads(h.to_bytes().partition(b"\n")[0]))) for h in (self.header, header))
        different = sorted(key for key in {*there, *asked} if there.get(key) != asked.get(key))
        if not different:
            return
        shown = [key for key in different if key not in ("images_sha256", "num_items")] or different  # these follow
        raise StoreError(
            f"The store at {self.path} was made differently ("
            + "; ".join(f"{key}: {there.get(key)!r} in the store, {asked.get(key)!r} requested" for key in shown)
            + "). Repeat the command that made it to continue, or choose another directory."
        )

    # Shards.

    def file(self, shard: int, ending: str) -> Path:
        """The path of a shard's tensors (`safetensors`) or index (`jsonl`)."""
        return self.path / f"{shard:05d}.{ending}"

    def has_shard(self, shard: int) -> bool:
        """Whether the shard is finished."""
        return self.file(shard, "jsonl").is_file() and self.file(shard, "safetensors").is_file()

    @cached_property
    def shards(self) -> list[int]:
        """The finished shards; listed once and cached."""
        # From the files, not from the header: a damaged header may claim any number of shards.
        endings: dict[int, int] = {}
        for name in os.listdir(self.path):
            shard = self._number(name)
            if shard is not None:
                endings[shard] = endings.get(shard, 0) + 1
        return sorted(shard for shard, count in endings.items() if count == 2 and self.has_shard(shard))

    def _number(self, name: str) -> int | None:
        """The shard that a file belongs to; None if it is not part of the store."""
        found = _SHARD.fullmatch(name)
        shard = int(found[1]) if found else -1
        is_ours = found and 0 <= shard < self.header.num_shards and name == self.file(shard, found[2]).name
        return shard if is_ours else None

    def write_shard(self, shard: int, tensors: Mapping[str, np.ndarray], metadata: Sequence[Mapping[str, Any]]) -> None:
        """Writes a shard, completely or not at all.

        Args:
            shard: Its number.
            tensors: Named arrays whose first axis counts the items of the shard.
            metadata: Plain JSON for each item.
        """
        count = len(self.header.items_of(shard))
        lengths = {"metadata": len(metadata), **{name: len(array) for name, array in tensors.items()}}
        if not count or any(length != count for length in lengths.values()):
            raise UserError(f"Expected {count} items for shard {shard}, but got {lengths}.")
        data = save({name: np.ascontiguousarray(tensors[name]) for name in sorted(tensors)})
        lines = [json.dumps(dict(item), sort_keys=True) for item in metadata]
        tensors_file = self.file(shard, "safetensors")
        checks = {"file": tensors_file.name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        checks["store"] = self.digest
        index = seal("\n".join([*lines, json.dumps(checks, sort_keys=True)]).encode())
        write_whole(tensors_file, data)
        write_whole(self.file(shard, "jsonl"), index)
        self.__dict__.pop("shards", None)

    def read_index(self, shard: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """The metadata of a shard's items, and the size and checksum of its tensors."""
        lines, checks = self._read_index_lines(shard)
        file = self.file(shard, "jsonl")
        try:
            named = [(line, f"line {number} of {file}") for number, line in enumerate(lines, start=1)]
            # A network may have diverged: its metrics need not be finite.
            return [conform(parse_json(line, where, allow_nan=True), dict, where) for line, where in named], checks
        except JsonError as error:
            raise StoreError(f"{error} {_REPAIR}") from error

    def _read_index_lines(self, shard: int) -> tuple[list[bytes], dict[str, Any]]:
        file = self.file(shard, "jsonl")
        body = unseal(file.read_bytes())
        if body is None:
            raise StoreError(f"{file} is damaged: its checksum does not match. {_REPAIR}")
        *lines, last = body.split(b"\n")
        try:
            checks = conform(parse_json(last, f"the last line of {file}"), _Checks, f"the last line of {file}")
        except JsonError as error:
            raise StoreError(f"{error} {_REPAIR}") from error
        expected = len(self.header.items_of(shard))
        if checks.get("file") != self.file(shard, "safetensors").name or len(lines) != expected:
            raise StoreError(
                f"{file} is the index of {len(lines)} items of {checks.get('file')}: it belongs to another shard. "
                f"{_REPAIR}"
            )
        if checks.get("store", self.digest) != self.digest:
            raise StoreError(
                f"{file} belongs to another store than {self.path / _HEADER}: one of the two was replaced. Restore "
                "the original, or delete this index and repeat the command that made the store."
            )
        return lines, checks

    def map_tensors(self, shard: int) -> dict[str, np.ndarray]:
        """Memory maps of a shard's tensors; all bytes are checked first, once per process."""
        checks = self._require_intact(shard)
        file, count = self.file(shard, "safetensors"), len(self.header.items_of(shard))
        size = checks["bytes"]
        try:
            with open(file, "rb") as stream:
                length = int.from_bytes(stream.read(8), "little")
                entries = parse_json(stream.read(length) if length <= size else b"", str(file))
            # Copy-on-write: torch expects writable arrays, but the file must never change.
            whole = np.asarray(np.memmap(file, np.uint8, "c"))
            tensors = {}
            for name, entry in entries.items():
                if name != "__metadata__":
                    start, stop = (8 + length + offset for offset in entry["data_offsets"])
                    if not 8 + length <= start <= stop <= size or entry["shape"][0] != count:
                        raise UserError(f"{name} has different sizes")
                    tensors[name] = whole[start:stop].view(_DTYPES[entry["dtype"]]).reshape(entry["shape"])
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise StoreError(f"{file} is damaged: its header cannot be read. {_REPAIR}") from error
        return tensors

    # Checks.

    def problems(self) -> Iterator[tuple[Path, str]]:
        """Every file that is damaged, missing or not part of the store, with a message; reads all bytes."""
        files = sorted(self.path.iterdir())
        numbers = {file: self._number(file.name) for file in files}
        indexed = sorted(shard for file, shard in numbers.items() if shard is not None and file.suffix == ".jsonl")
        for before, shard in pairwise([-1, *indexed, self.header.num_shards]):
            if shard > before + 1:  # a gap: one line for any number of missing shards
                items = range(self.header.items_of(before + 1).start, self.header.items_of(shard - 1).stop)
                where = f"items {items.start} to {items.stop - 1}"
                missing = self.file(before + 1, "jsonl")
                yield missing, f"missing: {where} are not in the store. Repeat the command that makes it."
            if shard < self.header.num_shards:
                tensors, index = self.file(shard, "safetensors"), self.file(shard, "jsonl")
                try:
                    _, checks = self.read_index(shard)
                except StoreError as error:
                    yield index, str(error)
                    continue
                if not tensors.is_file():
                    yield tensors, f"missing. {_REPAIR}"
                elif sha256_of(tensors) != checks.get("sha256"):
                    yield tensors, f"{tensors} is damaged: its checksum does not match. {_REPAIR}"
        for file in files:
            if numbers[file] is None and file.name != _HEADER:
                yield file, f"{file} is not part of the store. Remove it."

    def map_shards(self) -> dict[int, dict[str, np.ndarray]]:
        """Memory maps of the tensors of all finished shards, by shard number.

        Raises:
            StoreError: If there are no shards, one is damaged, or they hold different kinds of tensors.
        """
        finished = self.shards
        if not finished:
            raise StoreError(f"The store at {self.path} has no finished shard yet. Repeat the command that makes it.")
        self.require_intact(finished)
        shards = {shard: self.map_tensors(shard) for shard in finished}
        shapes = None
        for shard, tensors in shards.items():
            here = {name: (array.dtype, array.shape[1:]) for name, array in tensors.items()}
            shapes = shapes or here
            self._require_fitting(self.file(shard, "safetensors"), tensors, is_alike=here == shapes)
        return shards

    @staticmethod
    def join_columns(shards: Mapping[int, Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """The tensors that have one number per item, joined over shards."""
        first = next(iter(shards.values()))
        names = [name for name in first if first[name].ndim == 1]
        return {name: np.concatenate([tensors[name] for tensors in shards.values()]) for name in names}

    def _require_fitting(self, file: Path, tensors: Mapping[str, np.ndarray], *, is_alike: bool) -> None:
        """Raises unless tensors are of the same kind in all shards and agree with the spec and the splits."""
        if not is_alike:
            raise StoreError(f"{file} holds other tensors than the shards before it. Make the store again.")
        spec, weights, splits = self.header.spec, tensors.get("weights"), tensors.get("split")
        if spec is not None and weights is not None and weights.shape[1:] != (spec.num_entries,):
            raise StoreError(
                f"{file} holds weights of shape {weights.shape[1:]}, which do not fit {spec}. Make the store again."
            )
        if splits is not None and (splits.ndim != 1 or splits.min() < 0 or splits.max() >= len(SPLITS)):
            raise StoreError(f"{file} holds splits other than {list(SPLITS)}. Make the store again.")

    def require_intact(self, shards: Sequence[int]) -> None:
        """Raises if one of these finished shards is damaged; each process checks a shard once."""
        with ThreadPoolExecutor(num_cores()) as pool:  # hashing releases the interpreter's lock
            for _ in pool.map(self._require_intact, shards):
                pass

    def _require_intact(self, shard: int) -> dict[str, Any]:
        """Checks a shard, unless this process has done so since it was written; returns the last line of its index."""
        _, checks = self._read_index_lines(shard)
        file = self.file(shard, "safetensors")
        status = file.stat()
        state = (os.path.realpath(file), status.st_ino, status.st_size, status.st_mtime_ns, checks.get("sha256"))
        if state in _intact:
            return checks
        if status.st_size != checks.get("bytes"):
            raise StoreError(
                f"{file} is damaged: it has {status.st_size} bytes instead of {checks.get('bytes')}. {_REPAIR}"
            )
        if sha256_of(file) != checks.get("sha256"):
            raise StoreError(f"{file} is damaged: its checksum does not match. {_REPAIR}")
        _intact.add(state)
        return checks


_REPAIR = "Delete this file and repeat the command that made the store: it makes that shard again."


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The fields of a header; nested ones are named like `recipe.steps`."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, "" if name == "provenance" else f"{prefix}{name}.")
        else:
            yield prefix + name, value
