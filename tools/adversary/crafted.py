"""Files made to harm whoever reads them: `CRAFTED`, by the importer that they are for.

Each maker gets a folder with good material and puts something else in its place. Some run code if they are unpickled;
they would write a file named `canary` into the working directory.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import safetensors.torch
import torch

CANARY = "canary"
Maker = Callable[[Path], object]


class Evil:
    """Runs code once it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {CANARY}",)


def repack(file: Path, change: Callable[[str, bytes], bytes], compress: int = zipfile.ZIP_STORED) -> None:
    """Writes an archive anew with changed records; their checksums fit."""
    with zipfile.ZipFile(file) as archive:
        records = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(file, "w", compress, compresslevel=1) as archive:
        for name, data in records.items():
            archive.writestr(name, change(name, data))


# torch: the material is one network in net1.pth.


def _saved(make: Callable[[], object]) -> Maker:
    def write(folder: Path) -> None:
        torch.save(make(), _network(folder))

    return write


def _network(folder: Path) -> Path:
    return next(p for p in sorted(folder.rglob("*")) if p.suffix in (".pth", ".pt", ".safetensors"))


def _pickled(data: bytes | Callable[[bytes], bytes]) -> Maker:
    def change(name: str, old: bytes) -> bytes:
        if not name.endswith("data.pkl"):
            return old
        return data if isinstance(data, bytes) else data(old)

    def write(folder: Path) -> None:
        file = _network(folder)
        torch.save({"0.weight": torch.ones(2, 3)}, file)
        repack(file, change)

    return write


def _bytes(data: bytes) -> Maker:
    def write(folder: Path) -> None:
        _network(folder).write_bytes(data)

    return write


def _deflated(folder: Path) -> None:
    torch.save({"0.weight": torch.zeros(10_000, 8_000)}, _network(folder))
    repack(_network(folder), lambda name, data: data, zipfile.ZIP_DEFLATED)


def _unnumbered(count: int) -> Callable[[], object]:
    return lambda: {f"layer_{chr(97 + n)}.weight": torch.zeros(4, 4) for n in range(count)}


_ONES = torch.ones(2, 3)
STATE_DICTS: dict[str, Maker] = {
    "code in a pickle": _bytes(pickle.dumps({"0.weight": Evil()})),
    "code in an archive": _pickled(pickle.dumps({"0.weight": Evil()}, protocol=2)),
    "code by protocol 4": _pickled(pickle.dumps(Evil(), protocol=4)),
    "expanded tensor": _saved(lambda: {"0.weight": torch.zeros(1).expand(20_000, 20_000)}),
    "shared tensor": _saved(lambda: {f"{n}.weight": torch.zeros(1000, 1000).expand(2, 1000, 1000) for n in range(4)}),
    "deflated zeros": _deflated,
    "sparse": _saved(lambda: {"0.weight": _ONES.to_sparse()}),
    "sparse rows": _saved(lambda: {"0.weight": _ONES.to_sparse_csr()}),
    "meta": _saved(lambda: {"0.weight": torch.empty(20_000, 20_000, device="meta")}),
    "quantized": _saved(lambda: {"0.weight": torch.quantize_per_tensor(_ONES, 0.1, 0, torch.qint8)}),
    "nested": _saved(lambda: {"0.weight": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])}),
    "complex": _saved(lambda: {"0.weight": _ONES.to(torch.complex64)}),
    "float8": _saved(lambda: {"0.weight": _ONES.to(torch.float8_e4m3fn)}),
    "whole numbers": _saved(lambda: {"0.weight": _ONES.to(torch.int64)}),
    "truth values": _saved(lambda: {"0.weight": _ONES > 0}),
    "not finite": _saved(lambda: {"0.weight": _ONES / 0}),
    "too large for float32": _saved(lambda: {"0.weight": _ONES.double() * 1e300}),
    "no axes": _saved(lambda: {"0.weight": torch.tensor(1.0)}),
    "many axes": _saved(lambda: {"0.weight": torch.ones([1] * 60)}),
    "empty tensor": _saved(lambda: {"0.weight": torch.ones(0, 3)}),
    "empty": _saved(dict),
    "a list": _saved(lambda: [_ONES]),
    "a module": _saved(lambda: torch.nn.Linear(2, 1)),
    "numbers as names": _saved(lambda: {1: _ONES}),
    "names with escapes": _saved(lambda: {"\x1b[31m.weight": _ONES, "[bold]\n.weight": torch.ones(1, 2)}),
    "a name of a megabyte": _saved(lambda: {"x" * 1_000_000 + ".weight": _ONES}),
    "nine unnumbered layers": _saved(_unnumbered(9)),
    "26 unnumbered layers": _saved(_unnumbered(26)),
    "2000 layers": _saved(lambda: {f"l{n}x{n}.weight": torch.ones(1, 1) for n in range(2000)}),
    "bytearray of 2 GB": _pickled(b"\x80\x02c__builtin__\nbytearray\nJ" + struct.pack("<i", 2**31 - 1) + b"\x85R."),
    "tensor without values": _pickled(
        b"\x80\x02}X\x08\x00\x00\x000.weightctorch\nTensor\nJ" + struct.pack("<i", 10**9) + b"K\x03\x86Rs."
    ),
    "deep pickle": _pickled(b"\x80\x02" + b"(" * 500_000 + b"." * 2),
    "lists in lists": _pickled(b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b"."),
    "long pickle": _pickled(lambda old: b"\x80\x02" + b"N0" * 2_000_001 + old[2:]),
    "huge number": _pickled(b"\x80\x02\x8b" + struct.pack("<i", 1_000_000) + b"\x7f" * 1_000_000 + b"."),
    "huge memo": _pickled(b"\x80\x02Nr" + struct.pack("<I", 2**32 - 1) + b"."),
    "no archive": _bytes(b"PK\x03\x04" + bytes(100)),
    "nothing": _bytes(b""),
    "text": _bytes(b"hello"),
}


def _header(text: str | bytes, claim: int | None = None) -> Maker:
    def write(folder: Path) -> None:
        data = text.encode() if isinstance(text, str) else text
        _network(folder).write_bytes(struct.pack("<Q", len(data) if claim is None else claim) + data + bytes(64))

    return write


def _entry(dtype: str, shape: list[int], offsets: list[int]) -> str:
    return json.dumps({"0.weight": {"dtype": dtype, "shape": shape, "data_offsets": offsets}})


SAFETENSORS: dict[str, Maker] = {
    "header of 8 EB": _header(b"{}", 2**63 - 1),
    "shape of 1e18": _header(_entry("F32", [10**9, 10**9], [0, 64])),
    "shape that overflows": _header(_entry("F32", [2**62, 4], [0, 64])),
    "offsets outside": _header(_entry("F32", [4, 4], [10**12, 10**12 + 64])),
    "offsets reversed": _header(_entry("F32", [4, 4], [64, 0])),
    "no type": _header(_entry("Q7", [4, 4], [0, 64])),
    "deep header": _header("[" * 100_000),
    "header is a list": _header("[]"),
    "no tensors": _header("{}"),
    "whole numbers": lambda folder: safetensors.torch.save_file(
        {"0.weight": torch.ones(2, 2, dtype=torch.int32)}, _network(folder)
    ),
    "not finite": lambda folder: safetensors.torch.save_file({"0.weight": torch.ones(2, 2) / 0}, _network(folder)),
}


# numpy: the material is a.npz with weights and spec, or images.


def _npy(shape: str, descr: str = "<f4", data: bytes = b"", version: int = 1) -> bytes:
    head = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    head += b" " * (63 - len(head) % 64) + b"\n"
    size = struct.pack("<H" if version == 1 else "<I", len(head) % 65536 if version == 1 else len(head))
    return b"\x93NUMPY" + bytes([version, 0]) + size + head + data


def _object_array() -> bytes:
    data = io.BytesIO()
    array = np.empty(1, dtype=object)
    array[0] = Evil()
    np.save(data, array, allow_pickle=True)
    return data.getvalue()


def _member(name: str, data: bytes | Callable[[], bytes]) -> Maker:
    def write(folder: Path) -> None:
        made = data if isinstance(data, bytes) else data()
        repack(folder / "a.npz", lambda member, old: made if member == f"{name}.npy" else old)

    return write


def _npz(name: str, make: Callable[[], np.ndarray]) -> Maker:
    def write(folder: Path) -> None:
        with np.load(folder / "a.npz") as found:
            arrays = dict(found)
        saved: dict[str, np.ndarray] = {**arrays, name: make()}
        np.savez(folder / "a.npz", **saved)  # pyright: ignore[reportArgumentType]

    return write


def _deflated_arrays(name: str) -> Maker:
    def write(folder: Path) -> None:
        np.savez_compressed(folder / "a.npz", **{name: np.zeros((300, 1024, 1024), np.uint8)})  # pyright: ignore[reportArgumentType]

    return write


def _arrays(main: str) -> dict[str, Maker]:
    return {
        "code in an object array": _member(main, _object_array),
        "shape of 1e18": _member(main, _npy("(1000000000, 1000000000)")),
        "negative shape": _member(main, _npy("(-1, 9)", data=bytes(36))),
        "shape that overflows": _member(main, _npy("(4611686018427387904, 4)", data=bytes(64))),
        "structured": _member(main, _npy("(1,)", "V8", bytes(8))),
        "code in a header": _member(main, _npy("__import__('os').system('touch canary')")),
        "deep header": _member(main, _npy("(" * 2000 + ")" * 2000, version=2)),
        "long header": _member(main, _npy("(" + "1," * 3_000_000 + ")", version=2)),
        "of no known version": _member(main, b"\x93NUMPY\x09\x09" + bytes(100)),
        "nothing": lambda folder: (folder / "a.npz").write_bytes(b""),
        "a pickle": lambda folder: (folder / "a.npz").write_bytes(pickle.dumps(Evil())),
        "deflated zeros": _deflated_arrays(main),
        "text in numbers": _npz(main, lambda: np.array([["a"]])),
        "complex": _npz(main, lambda: np.zeros((4, 9), complex)),
        "one number": _npz(main, lambda: np.array(1.0)),
        "no rows": _npz(main, lambda: np.zeros((0, 9), np.float32)),
    }


NPZ: dict[str, Maker] = {
    **_arrays("weights"),
    "deep spec": _npz("spec", lambda: np.array("[" * 100_000)),
    "spec of numbers": _npz("spec", lambda: np.zeros(3)),
    "huge spec": _npz("spec", lambda: np.array('{"layers": [{"name": "a", "out_neurons": 1e18, "in_neurons": 1e18}]}')),
    "label beyond 63 bits": _npz("label", lambda: np.full(4, 2**63, np.uint64)),
    "labels of text": _npz("label", lambda: np.array(list("abcd"))),
    "uint32": _npz("score", lambda: np.arange(4, dtype=np.uint32)),
    "date": _npz("score", lambda: np.zeros(4, "M8[s]")),
    "weights of 1e300": _npz("weights", lambda: np.full((4, 9), 1e300)),
    "odd name": _npz("../../x", lambda: np.zeros(4)),
}


# The Small CNN Zoo: weights.npy, metrics.csv.gz, layout.csv.


def _text(name: str, text: str | bytes) -> Maker:
    def write(folder: Path) -> None:
        data = text.encode() if isinstance(text, str) else text
        (folder / name).write_bytes(gzip.compress(data, 1) if name.endswith(".gz") else data)

    return write


_LAYOUT_HEAD = "varname,start_idx,end_idx,size,shape\n"
ZOO: dict[str, Maker] = {
    "layout of 1e9 entries": _text(
        "layout.csv", _LAYOUT_HEAD + 'sequential/dense/kernel:0,0,1000000000,1000000000,"(100000, 10000)"\n'
    ),
    "layout with code": _text(
        "layout.csv", _LAYOUT_HEAD + "a/kernel:0,0,9,9,\"__import__('os').system('touch canary')\"\n"
    ),
    "layout of nothing": _text("layout.csv", ""),
    "layout of bytes": _text("layout.csv", b"\xff\xfe\x00"),
    "layout with a long field": _text("layout.csv", _LAYOUT_HEAD + "x" * 1_000_000),
    "layout of many rows": _text("layout.csv", _LAYOUT_HEAD + 'a/kernel:0,0,9,9,"(3, 3)"\n' * 100_000),
    "metrics of nothing": _text("metrics.csv.gz", ""),
    "metrics of 300 MB of zeros": _text("metrics.csv.gz", bytes(300 << 20)),
    "metrics no archive": lambda folder: (folder / "metrics.csv.gz").write_bytes(b"hello"),
    "metrics with a long field": _text("metrics.csv.gz", "a,b\n" + "x" * 10_000_000),
    "weights with code": lambda folder: (folder / "weights.npy").write_bytes(_object_array()),
    "weights of 1e18": lambda folder: (folder / "weights.npy").write_bytes(_npy("(1000000000, 1000000000)")),
    "weights a pipe": lambda folder: _replace_by_pipe(folder / "weights.npy"),
}


def _replace_by_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


# Pictures: a folder with a.png.


def _png(width: int, height: int) -> Maker:
    """A PNG of few bytes that claims to be large."""

    def write(folder: Path) -> None:
        data = bytearray((folder / "a.png").read_bytes())
        data[16:24] = struct.pack(">II", width, height)
        data[29:33] = struct.pack(">I", zlib.crc32(bytes(data[12:29])))
        (folder / "a.png").write_bytes(data)

    return write


def _link(name: str, target: str) -> Maker:
    return lambda folder: (folder / name).symlink_to(target)


PICTURES: dict[str, Maker] = {
    "20000 x 20000": _png(20_000, 20_000),
    "2^31 x 2^31": _png(2**31 - 1, 2**31 - 1),
    "0 x 0": _png(0, 0),
    "6000 x 6000": _png(6_000, 6_000),
    "a pipe": lambda folder: os.mkfifo(folder / "b.png"),
    "a device": _link("b.png", "/dev/zero"),
    "a loop": _link("b", "."),
    "nowhere": _link("b.png", "nowhere"),
    "text": lambda folder: (folder / "b.png").write_bytes(b"hello"),
    "nothing": lambda folder: (folder / "b.png").write_bytes(b""),
    "ppm of 1e9": lambda folder: (folder / "b.ppm").write_bytes(b"P6 1000000000 1000000000 255\n"),
    "bmp of 2^31": lambda folder: (folder / "b.bmp").write_bytes(
        b"BM" + bytes(12) + struct.pack("<IiiHH", 40, 2**31 - 1, 2**31 - 1, 1, 24) + bytes(24)
    ),
    "odd names": lambda folder: os.rename(folder / "a.png", os.fsencode(folder) + b"/[bold]\x1b[31m\xff.png"),
}


# Models: a directory with config.json and model.safetensors.


def _config(**changes: object) -> Maker:
    def write(folder: Path) -> None:
        file = next(folder.rglob("config.json"))
        content = json.loads(file.read_text())
        content |= {name: value for name, value in changes.items() if name in content or name.startswith("x_")}
        file.write_text(json.dumps(content))

    return write


def _config_text(text: str) -> Maker:
    return lambda folder: next(folder.rglob("config.json")).write_text(text)


MODELS: dict[str, Maker] = {
    "channels of 1e9": _config(channels=10**9, hidden_channels=10**9, state_channels=10**9),
    "channels of -1": _config(channels=-1, hidden_channels=-1),
    "channels of text": _config(channels="many", hidden_channels="many"),
    "channels of NaN": _config_text('{"channels": NaN}'),
    "blocks of 1e9": _config(num_blocks=10**9),
    "heads of 1e12": _config(num_heads=10**12),
    "unknown name": _config(x_unknown=1),
    "deep config": _config_text("[" * 100_000),
    "no object": _config_text("3"),
    "nothing": _config_text(""),
    "spec of 1e9": _config(
        spec={"layers": [{"name": "a", "out_neurons": 10**9, "in_neurons": 10**9, "has_bias": True}]}
    ),
    "weights of nothing": lambda folder: next(folder.rglob("*.safetensors")).write_bytes(b""),
}

CRAFTED: dict[str, dict[str, Maker]] = {
    "state-dicts": STATE_DICTS,
    "nfn-sirens": STATE_DICTS,
    "legacy": STATE_DICTS,
    "safetensors": SAFETENSORS,
    "npz": NPZ,
    "small-cnn-zoo": ZOO,
    "pictures": PICTURES,
    "image arrays": _arrays("images"),
    "edit": STATE_DICTS,
    "model": MODELS,
}
