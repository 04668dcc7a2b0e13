"""Reads arrays and tensors from untrusted files, as data only; large files are refused before they take memory.

Every function raises a `ValueError` that names the file if it is damaged, too large or holds code. Nothing is run.
"""

from __future__ import annotations

import io
import math
import mmap
import pickle
import pickletools
import stat
import warnings
import zipfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from neuralfunctionals.errors import UserError
from neuralfunctionals.files.budget import is_out_of_memory, require_memory

_ZIP_START = b"PK\x03\x04"
_MAX_OPERATIONS = 2_000_000
"""Operations of a pickle; a `state_dict` takes about twenty per tensor."""
_LEGACY_PICKLES = 5
"""Pickles at the start of files of old torch releases: magic number, version, machine, object, keys."""
_SHARD_BYTES = 256 << 20


def shard_size_for(num_entries: int) -> int:
    """Networks per shard of an import: 512, or fewer if they are large."""
    return max(1, min(512, _SHARD_BYTES // (4 * num_entries)))


def require_file(file: Path, what: str) -> Path:
    """Raises unless there is a regular file: opening a pipe or a device could block forever."""
    try:
        mode = file.stat().st_mode
    except FileNotFoundError as error:
        raise UserError(f"Expected the {what} {file}, but there is no such file.") from error
    except (OSError, ValueError) as error:
        raise UserError(f"Cannot read the {what} {file}: {error}.") from error
    if not stat.S_ISREG(mode):
        raise UserError(f"Cannot read the {what} {file}: expected a regular file.")
    return file


@contextmanager
def refusing(file: Path, expected: str) -> Iterator[None]:
    """Turns any error caused by a malicious or damaged file into a `ValueError` that names it."""
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            reason = ["there is not enough memory for it"]
        else:
            reason = str(error).strip().splitlines() or [type(error).__name__]
        message = reason[0][:300].rstrip(".")
        raise UserError(f"Refused {file}: {message}. Expected {expected}; nothing in it was run.") from error


# numpy


def read_npz(
    file: Path, required: Sequence[str] = (), *, optional: Collection[str] | None = None
) -> dict[str, np.ndarray]:
    """Arrays of an `.npz` file by name.

    Args:
        file: The file.
        required: Arrays that must be there.
        optional: Other arrays to read if they exist. Defaults to all.
    """
    require_file(file, "npz file")
    with refusing(file, "an npz file of plain arrays, without objects"), zipfile.ZipFile(file) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        if any(name not in members for name in required):
            raise UserError(f"it should hold arrays named {', '.join(required)}, but they are named {sorted(members)}")
        chosen = [name for name in members if optional is None or name in required or name in optional]
        _require_room(file, archive, [members[name] for name in chosen])
        return {name: _read_array(archive, members[name]) for name in chosen}


def _require_room(file: Path, archive: zipfile.ZipFile, members: list[zipfile.ZipInfo]) -> None:
    """Raises unless an archive is plain and its claimed contents fit into memory."""
    names = [info.filename for info in archive.infolist()]
    if len(set(names)) < len(names):
        raise UserError("it holds several records of one name")
    for info in archive.infolist():
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
            raise UserError(f"its record '{info.filename}' is encrypted or compressed in an unusual way")
    require_memory(sum(info.file_size for info in members), "it", stored=file.stat().st_size)


def _read_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    stream: Any
    with archive.open(info) as stream:
        shape, is_fortran, dtype = _read_npy_header(stream)
        size = info.file_size - stream.tell()
        if dtype.itemsize * math.prod(shape) != size:
            raise UserError(f"'{info.filename}' claims to hold {dtype} of shape {shape}, but has {size} bytes of data")
        data = bytearray(size)
        view, filled = memoryview(data), 0
        while filled < size and (count := stream.readinto(view[filled:])):
            filled += count
        # zipfile only compares the checksum when it reads past the end.
        if filled < size or stream.read(1):
            raise UserError(f"'{info.filename}' ends early")
    return np.ndarray(shape, dtype, data, order="F" if is_fortran else "C")


def map_npy(file: Path) -> np.ndarray:
    """A memory map of an `.npy` file, whose length must be what its header says."""
    require_file(file, "npy file")
    with refusing(file, "an npy file of a plain array, without objects"):
        with open(file, "rb") as stream:
            shape, is_fortran, dtype = _read_npy_header(stream)
            start = stream.tell()
        size = file.stat().st_size - start
        if dtype.itemsize * math.prod(shape) != size:
            raise UserError(f"it claims to hold {dtype} of shape {shape}, but has {size} bytes of data")
        if not size:
            return np.empty(shape, dtype)
        return np.memmap(file, dtype, "r", start, shape, order="F" if is_fortran else "C")


def _read_npy_header(stream: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(stream)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise UserError(f"its format version {version} is not that of plain arrays")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # headers of Python 2
        shape, is_fortran, dtype = readers[version](stream)
    if dtype.hasobject or dtype.names or dtype.subdtype or not dtype.itemsize:
        raise UserError(f"it holds {dtype} instead of plain numbers")
    if any(n < 0 for n in shape):
        raise UserError(f"its shape {shape} is impossible")
    return shape, is_fortran, dtype


# torch


def read_tensors(file: Path) -> Any:
    """Reads a `.pth`, `.pt` or `.safetensors` file: tensors in dictionaries and lists, and plain values."""
    require_file(file, "file of weights")
    with refusing(file, "a state_dict, from torch.save(module.state_dict(), file)"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about pickles that it then refuses
        stored = file.stat().st_size
        require_memory(stored, "it")
        if file.suffix == ".safetensors":
            return safetensors.torch.load_file(file)
        with open(file, "rb") as stream:
            is_archive = stream.read(len(_ZIP_START)) == _ZIP_START
        unpacked = _check_archive(file) if is_archive else _check_legacy(file)
        try:
            content = torch.load(file, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:  # its message advises running the file's code
            raise UserError("it holds more than tensors, or is damaged") from error
        # A pickle can also request tensors without values, which would expose uninitialised memory.
        if sum(_storages(content).values()) > unpacked:
            raise UserError("it holds tensors without their values")
        return content


def _check_archive(file: Path) -> int:
    """Checks sizes, checksums and the pickle of an archive, which torch does not; returns its unpacked bytes."""
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        _require_room(file, archive, members)
        for info in members:
            if not info.CRC:  # none to compare: written with torch.serialization.set_crc32_options(False)
                del info.CRC
            with archive.open(info) as stream:
                if info.filename.endswith("data.pkl"):
                    _check_pickle(io.BytesIO(stream.read()))
                while stream.read(1 << 20):
                    pass
        return sum(info.file_size for info in members)


def _check_legacy(file: Path) -> int:
    """Checks the pickles of a file of an old release of torch, and the sizes of its tensors; returns its bytes."""
    size = file.stat().st_size
    if not size:
        raise UserError("it is empty")
    # A memory map, because a stream allocates any length that a pickle claims before it reads.
    with open(file, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as pickles:
        starts = []
        for _ in range(_LEGACY_PICKLES):
            starts.append(pickles.tell())
            _check_pickle(pickles)
        claims = _Claims(io.BytesIO(pickles[starts[3] : starts[4]]))
    claims.load()
    if (claimed := sum(claims.num_values.values())) > size:
        raise UserError(f"it claims to hold {claimed} numbers, but has {size} bytes")
    return size


class _Inert(dict[Any, Any]):
    """Replaces any object of a pickle."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]

    def __setstate__(self, _: Any) -> None:
        pass


class _Claims(pickle._Unpickler):  # pyright: ignore  # the one in C allocates memory for any memo index
    """Reads a pickle of torch without its classes and tensors, and records how many values each storage claims."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream)
        self.num_values: dict[Any, int] = {}

    def find_class(self, module: str, name: str) -> type[_Inert]:
        return _Inert

    def persistent_load(self, pid: Any) -> _Inert:
        _, _, key, _, num_values, *_ = pid
        # The largest claim counts: torch allocates the first one, and a pickle may repeat a key with a smaller one.
        self.num_values[key] = max(self.num_values.get(key, 0), abs(int(num_values)))
        return _Inert()


def _check_pickle(stream: io.BufferedIOBase | mmap.mmap) -> None:
    """Checks a pickle, without running it, for operations that torch allows but that can exhaust memory or time."""
    for number, (operation, argument, _) in enumerate(pickletools.genops(stream)):  # pyright: ignore[reportArgumentType]
        # Classes are refused: saved tensors are rebuilt by functions, which use the values in the file.
        if operation.name == "GLOBAL" and str(argument).endswith(("bytearray", "Tensor")):
            raise UserError(f"it holds more than tensors: {argument}")
        if number > _MAX_OPERATIONS:
            raise UserError(f"it is a pickle of more than {_MAX_OPERATIONS} operations")


def _storages(content: Any) -> dict[int, int]:
    """The size in bytes of each storage that tensors share, by address."""
    found: dict[int, int] = {}
    waiting, seen = [content], set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            if value.device.type == "cpu" and value.layout == torch.strided and not value.is_nested:
                storage = value.untyped_storage()
                found[storage.data_ptr()] = storage.nbytes()
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, (list, tuple, set)):
            waiting += value
    return found
