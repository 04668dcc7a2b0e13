"""Files that are damaged, lie about their sizes, or hold something else than data."""

import os
import struct
import tracemalloc
import zipfile
from collections import OrderedDict
from contextlib import suppress

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from neuralfunctionals.data.formats.network_files import read_networks, read_state_dict
from neuralfunctionals.files.budget import MAX_MEMORY
from neuralfunctionals.files.untrusted import map_npy, read_npz, read_tensors, require_file, shard_size_for

WEIGHT = torch.arange(6.0).reshape(2, 3)


def repack(file, change=lambda name, data: data, compress=zipfile.ZIP_STORED):
    """Writes an archive anew, its records changed."""
    with zipfile.ZipFile(file) as archive:
        records = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(file, "w", compress) as archive:
        for name, data in records.items():
            archive.writestr(name, change(name, data))


def save_pickle(file, data):
    """A torch file of one weight with another pickle in it."""
    torch.save({"0.weight": WEIGHT}, file)
    repack(file, lambda name, old: data(old) if name.endswith("data.pkl") else old)


# torch


def test_parameters_that_require_gradients_are_read(tmp_path):
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    torch.save(dict(net.named_parameters()), tmp_path / "a.pth")
    features = read_networks(tmp_path / "a.pth")
    assert not features.tensor.requires_grad
    assert torch.equal(features.to_vectors()[0], nn.utils.parameters_to_vector(net.parameters()).detach())


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_every_usual_way_of_saving_is_read(tmp_path, legacy, dtype):
    state = OrderedDict({"0.weight": WEIGHT.to(dtype), "0.bias": torch.ones(2, dtype=dtype)})
    content = {"state_dict": state, "epoch": 3, "rates": [0.1, 0.2]}
    torch.save(content, tmp_path / "a.pth", _use_new_zipfile_serialization=not legacy)
    found = read_state_dict(tmp_path / "a.pth")
    assert torch.equal(found["0.weight"], WEIGHT)
    assert found["0.bias"].dtype == torch.float32


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"K\x06N", b"J\xff\xff\xff\x7fN", "claims to hold 2147483647 numbers"),
        (b"X\x07\x00\x00\x00storage", b"X\xff\xff\xff\x7fstorage", "2147483647 bytes in a unicodestring4"),
    ],
    ids=["values of a tensor", "length of a text"],
)
def test_legacy_files_that_lie_about_sizes_are_refused_before_they_take_memory(tmp_path, old, new, message):
    torch.save({"0.weight": WEIGHT}, tmp_path / "a.pth", _use_new_zipfile_serialization=False)
    data = (tmp_path / "a.pth").read_bytes()
    assert data.count(old) == 1
    (tmp_path / "a.pth").write_bytes(data.replace(old, new))
    tracemalloc.start()
    with pytest.raises(ValueError, match=message):
        read_tensors(tmp_path / "a.pth")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_a_legacy_file_cannot_hide_a_large_claim_behind_a_small_one_for_the_same_storage(tmp_path):
    torch.save({"0.weight": WEIGHT, "1.weight": WEIGHT[:1]}, tmp_path / "a.pth", _use_new_zipfile_serialization=False)
    data = (tmp_path / "a.pth").read_bytes()
    assert data.count(b"K\x06N") == 2
    (tmp_path / "a.pth").write_bytes(data.replace(b"K\x06N", b"J\xff\xff\xff\x7fN", 1))
    with pytest.raises(ValueError, match="claims to hold 2147483647 numbers"):
        read_tensors(tmp_path / "a.pth")


def test_files_saved_without_checksums_and_recompressed_ones_are_read(tmp_path):
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"0.weight": WEIGHT}, tmp_path / "a.pth")
    finally:
        torch.serialization.set_crc32_options(True)
    torch.save({"0.weight": WEIGHT}, tmp_path / "b.pth")
    repack(tmp_path / "b.pth", compress=zipfile.ZIP_DEFLATED)
    for file in (tmp_path / "a.pth", tmp_path / "b.pth"):
        assert torch.equal(read_state_dict(file)["0.weight"], WEIGHT)


def test_a_flipped_bit_in_a_weight_is_found(tmp_path):
    torch.save({"0.weight": WEIGHT}, tmp_path / "a.pth")
    data = bytearray((tmp_path / "a.pth").read_bytes())
    data[data.find(struct.pack("<f", 5.0)) + 3] ^= 1
    (tmp_path / "a.pth").write_bytes(data)
    assert torch.load(tmp_path / "a.pth", weights_only=True)["0.weight"][1, 2] != 5  # torch does not notice
    with pytest.raises(ValueError, match=r"Refused .*a\.pth: Bad CRC-32"):
        read_state_dict(tmp_path / "a.pth")


def expand(file):
    torch.save({"0.weight": torch.zeros(1).expand(20_000, 20_000)}, file)


def expand_a_little(file):
    torch.save({"0.weight": torch.zeros(1).expand(2, 3)}, file)


def share(file):
    stored = torch.zeros(100, 100)
    torch.save({f"{i}.weight": stored for i in range(400)}, file)


def deflate(file):
    torch.save({"0.weight": torch.zeros(2000, 2000)}, file)
    repack(file, compress=zipfile.ZIP_DEFLATED)


def claim_without_values(file):
    """A pickle that has torch make tensors by itself: they would hold what memory held before."""
    start = b"\x80\x02}X\x08\x00\x00\x000.weightctorch\nTensor\n"
    save_pickle(file, lambda old: start + b"J" + struct.pack("<i", 1000) + b"K\x03\x86Rs.")


def take_memory(file):
    save_pickle(file, lambda old: b"\x80\x02c__builtin__\nbytearray\nJ" + struct.pack("<i", 2**31 - 1) + b"\x85R.")


def run_long(file):
    save_pickle(file, lambda old: b"\x80\x02" + b"N0" * 2_000_000 + old[2:])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (expand, "'0.weight' repeats its values, 400000000 from 1"),
        (expand_a_little, "'0.weight' repeats its values, 6 from 1"),
        (share, "its tensors would take 15.3 MiB of memory, [0-9]+ times its size on disk"),
        (deflate, r"it would take 15.3 MiB of memory, .* times its size on disk .*--max-memory"),
        (claim_without_values, "it holds more than tensors: torch Tensor"),
        (take_memory, "it holds more than tensors: __builtin__ bytearray"),
        (run_long, "it is a pickle of more than 2000000 operations"),
    ],
)
def test_small_files_cannot_take_much_memory_or_time(tmp_path, monkeypatch, make, message):
    monkeypatch.setenv(MAX_MEMORY, "64M")
    make(tmp_path / "a.pth")
    with pytest.raises(ValueError, match=rf"Refused .*a\.pth: {message}"):
        read_state_dict(tmp_path / "a.pth")


ODD = {
    "sparse": lambda: WEIGHT.to_sparse(),
    "sparse_csr": lambda: WEIGHT.to_sparse_csr(),
    "meta": lambda: torch.empty(2, 3, device="meta"),
    "quantized": lambda: torch.quantize_per_tensor(WEIGHT, 0.1, 0, torch.qint8),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ODD)
def test_tensors_that_are_no_ordinary_arrays_are_refused(tmp_path, kind):
    torch.save({"0.weight": ODD[kind]()}, tmp_path / "a.pth")
    with pytest.raises(ValueError, match=rf"Refused .*a\.pth: expected '0.weight' to be an ordinary tensor.* {kind}"):
        read_networks(tmp_path / "a.pth")


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64, torch.int8, torch.bool, torch.uint16])
@pytest.mark.parametrize("ending", ["pth", "safetensors"])
def test_tensors_of_other_numbers_are_refused(tmp_path, dtype, ending):
    save = torch.save if ending == "pth" else save_file
    save({"0.weight": torch.ones(2, 3).to(dtype)}, tmp_path / f"a.{ending}")
    with pytest.raises(ValueError, match=rf"a\.{ending}: Expected '0.weight' to hold real numbers .* got {dtype}"):
        read_networks(tmp_path / f"a.{ending}")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({0: WEIGHT}, "not all strings"),
        ({}, "holds a dict with nothing in it"),
        ([WEIGHT], "holds Tensor"),
        ({"0.weight": [1.0]}, "holds a dict with .0.weight. of type list"),
        (WEIGHT, "holds Tensor"),
    ],
)
def test_what_is_no_state_dict_is_refused(tmp_path, content, message):
    torch.save(content, tmp_path / "a.pth")
    with pytest.raises(ValueError, match=message):
        read_state_dict(tmp_path / "a.pth")


@pytest.mark.parametrize("ending", ["pth", "pt", "safetensors"])
@pytest.mark.parametrize(
    "data", [b"", b"PK\x03\x04", b"PK\x05\x06" + bytes(18), b"\x80\x02.", b"\x80\x04N.", bytes(100), b"{" * 5000]
)
def test_files_of_nothing_sensible_are_refused(tmp_path, ending, data):
    file = tmp_path / f"a.{ending}"
    file.write_bytes(data)
    with pytest.raises(ValueError, match=rf"Refused .*a\.{ending}") as caught:
        read_tensors(file)
    assert "\n" not in str(caught.value)


class Trap:
    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return (open, (str(self.canary), "w"))


@pytest.mark.parametrize("legacy", [False, True])
def test_code_in_a_file_is_not_run(tmp_path, legacy):
    torch.save({"0.weight": Trap(tmp_path / "canary")}, tmp_path / "a.pth", _use_new_zipfile_serialization=not legacy)
    with pytest.raises(ValueError, match="nothing in it was run"):
        read_state_dict(tmp_path / "a.pth")
    assert not (tmp_path / "canary").exists()


# numpy


def npz_with(file, header, data=b"", compress=zipfile.ZIP_STORED):
    """An archive with one array, whose header may claim anything."""
    text = header.ljust(117).encode() + b"\n"
    with zipfile.ZipFile(file, "w", compress) as archive:
        archive.writestr("a.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data)


HEADER = "{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}"


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (HEADER.format("<f4", (10**12,)), "claims to hold float32"),
        (HEADER.format("<f4", (2**63, 2**63)), "claims to hold float32"),
        (HEADER.format("<f4", (-1, 4)), "its shape .* is impossible"),
        (HEADER.format("|O", (1,)), "object instead of plain numbers"),
        (HEADER.format("<f4", (0,) * 100), "Refused"),
        ("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", "instead of plain numbers"),
        ("{" * 100, "Refused"),
        ("__import__('os').system('true')", "Refused"),
        ("", "Refused"),
    ],
)
def test_headers_of_arrays_are_only_claims(tmp_path, header, message):
    npz_with(tmp_path / "a.npz", header, bytes(16))
    with pytest.raises(ValueError, match=message):
        read_npz(tmp_path / "a.npz")
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        (tmp_path / "a.npy").write_bytes(archive.read("a.npy"))
    with pytest.raises(ValueError, match=message):
        map_npy(tmp_path / "a.npy")


@pytest.mark.parametrize(("limit", "enough"), [("30M", "1G"), ("100M", "1G")], ids=["too large", "grows too much"])
def test_an_archive_of_zeros_is_refused_before_it_is_unpacked(tmp_path, monkeypatch, limit, enough):
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros(10 << 20, dtype=np.float32))
    monkeypatch.setenv(MAX_MEMORY, limit)
    with pytest.raises(ValueError, match=rf"Refused .*a\.npz: it would take 40 MiB of memory.*--max-memory {enough}"):
        read_npz(tmp_path / "a.npz")
    monkeypatch.setenv(MAX_MEMORY, enough)
    assert read_npz(tmp_path / "a.npz")["a"].shape == (10 << 20,)


def save_arrays(file):
    np.savez(file, images=np.arange(24, dtype=np.uint8).reshape(2, 3, 4), labels=np.arange(2))


def test_flipped_and_cut_archives_are_refused(tmp_path):
    save_arrays(tmp_path / "good.npz")
    good = (tmp_path / "good.npz").read_bytes()
    content = read_npz(tmp_path / "good.npz")
    for place in range(len(good)):
        for data in (good[:place], good[:place] + bytes([good[place] ^ 0x10]) + good[place + 1 :]):
            (tmp_path / "a.npz").write_bytes(data)
            with suppress(ValueError):  # dates and the like do not matter
                assert np.array_equal(read_npz(tmp_path / "a.npz", ["images"])["images"], content["images"])


def test_only_the_wanted_arrays_count(tmp_path, monkeypatch):
    monkeypatch.setenv(MAX_MEMORY, "64M")
    np.savez_compressed(tmp_path / "a.npz", images=np.zeros(4), other=np.zeros(40 << 20, dtype=np.uint8))
    assert list(read_npz(tmp_path / "a.npz", ["images"], optional=["labels"])) == ["images"]
    with pytest.raises(ValueError, match="times its size on disk"):
        read_npz(tmp_path / "a.npz")
    with pytest.raises(ValueError, match=r"named labels, but they are named \['images', 'other'\]"):
        read_npz(tmp_path / "a.npz", ["labels"])


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_are_what_numpy_reads(tmp_path, order):
    generator = np.random.default_rng(0)
    arrays = {
        "a": np.asarray(generator.standard_normal((3, 4)), order=order),
        "b": np.array("text"),
        "c": generator.integers(0, 9, (2, 0, 3)).astype(">i4"),
        "d": np.float64(3),
    }
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", **arrays)
        for name, array in read_npz(tmp_path / "a.npz").items():
            assert np.array_equal(array, arrays[name])
            assert array.dtype == np.asarray(arrays[name]).dtype
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
        assert np.array_equal(map_npy(tmp_path / f"{name}.npy"), array)


# what is no file


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
@pytest.mark.timeout(60)
def test_pipes_and_devices_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "a.pth")
    (tmp_path / "b.pth").symlink_to("/dev/zero")
    for read in (read_tensors, read_npz, map_npy):
        for name in ("a.pth", "b.pth"):
            with pytest.raises(ValueError, match=f"{name}: expected a regular file"):
                read(tmp_path / name)
    with pytest.raises(ValueError, match="Expected the image .* but there is no such file"):
        require_file(tmp_path / "none.png", "image")


def test_shards_of_large_networks_are_small():
    assert shard_size_for(1185) == 512
    assert shard_size_for(25_000_000) == 2
    assert shard_size_for(10**9) == 1
