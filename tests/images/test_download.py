import gzip
import hashlib
import io
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from neuralfunctionals.data import open_images
from neuralfunctionals.errors import UserError
from neuralfunctionals.images import image_set as images_module
from neuralfunctionals.images.download import Source, download, missing_files


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture
def server(tmp_path):
    """Serves tmp_path/www on this machine."""
    (tmp_path / "www").mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path / "www")) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}", tmp_path / "www"
        running.shutdown()
        thread.join()


def idx(array: np.ndarray) -> bytes:
    head = np.array([0x0800 + array.ndim, *array.shape], dtype=">i4")
    return head.tobytes() + array.tobytes()


@pytest.fixture
def tiny_mnist(monkeypatch):
    """The files of a set with MNIST's layout, and their true checksums in place of the publisher's."""
    generator = np.random.default_rng(0)
    files = {
        "train-images-idx3-ubyte": idx(generator.integers(0, 256, (60_000, 2, 2), dtype=np.uint8)),
        "train-labels-idx1-ubyte": idx(generator.integers(0, 10, 60_000).astype(np.uint8)),
        "t10k-images-idx3-ubyte": idx(generator.integers(0, 256, (10_000, 2, 2), dtype=np.uint8)),
        "t10k-labels-idx1-ubyte": idx(generator.integers(0, 10, 10_000).astype(np.uint8)),
    }
    source = Source(
        "MNIST/raw",
        "http://127.0.0.1:9/none",
        {f"{name}.gz": (name,) for name in files},
        {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
    )
    monkeypatch.setitem(images_module._SOURCES, "mnist", source)
    return files


def test_a_set_is_fetched_once_and_reported(server, tiny_mnist, tmp_path):
    url, folder = server
    (folder / "mnist").mkdir()
    for name, data in tiny_mnist.items():
        (folder / "mnist" / f"{name}.gz").write_bytes(gzip.compress(data))
    seen = []
    images = open_images("mnist", data_root=tmp_path / "root", mirror=url, progress=lambda *x: seen.append(x))
    assert len(images) == 60_000
    assert images.read([1]).tobytes() == tiny_mnist["train-images-idx3-ubyte"][20:24]
    assert {file for file, _, _ in seen} == {f"{name}.gz" for name in tiny_mnist}
    file, done, total = seen[-1]
    assert done == total == (folder / "mnist" / file).stat().st_size
    assert sorted(p.name for p in (tmp_path / "root/MNIST/raw").iterdir()) == sorted(tiny_mnist)
    open_images("mnist", data_root=tmp_path / "root", mirror="http://127.0.0.1:9")  # needs no network now


@pytest.mark.parametrize("damage", ["flipped", "cut", "missing"])
def test_a_bad_download_leaves_nothing_behind(server, tiny_mnist, tmp_path, damage):
    url, folder = server
    (folder / "mnist").mkdir()
    for name, data in tiny_mnist.items():
        if damage == "flipped":
            data = bytes([data[0] ^ 1]) + data[1:]
        packed = gzip.compress(data)
        if damage != "missing":
            (folder / "mnist" / f"{name}.gz").write_bytes(packed[: len(packed) // 2] if damage == "cut" else packed)
    reason = {"flipped": "wrong checksum", "cut": "ended", "missing": "404"}[damage]
    with pytest.raises(ValueError, match=reason):
        open_images("mnist", data_root=tmp_path / "root", mirror=url)
    assert [p for p in (tmp_path / "root").rglob("*") if p.is_file()] == []


@pytest.mark.parametrize("mirror", ["http://127.0.0.1:9", "mirror.example", "http://two words", "http://[::1"])
def test_without_a_working_address_the_message_says_what_to_do(tiny_mnist, tmp_path, mirror):
    with pytest.raises(UserError, match=r"could not be downloaded.*--data-root, NF_DATA_ROOT.*mnist-sample"):
        open_images("mnist", data_root=tmp_path, mirror=mirror)


def test_files_of_the_wrong_length_are_refused(tiny_mnist, tmp_path):
    folder = tmp_path / "MNIST/raw"
    folder.mkdir(parents=True)
    for name, data in tiny_mnist.items():
        (folder / name).write_bytes(data[:-1] if name.startswith("train-images") else data)
    with pytest.raises(ValueError, match=r"train-images.*Delete it to download it again"):
        open_images("mnist", data_root=tmp_path)


def test_archives_cannot_write_elsewhere(server, tmp_path):
    url, folder = server
    good = b"batch" * 100
    (folder / "set").mkdir()
    with tarfile.open(folder / "set" / "all.tar.gz", "w:gz") as archive:
        for name in ("../../outside.bin", "inside/batch.bin"):
            info = tarfile.TarInfo(name)
            info.size = len(good)
            archive.addfile(info, io.BytesIO(good))
    sums = {"batch.bin": hashlib.sha256(good).hexdigest()}
    source = Source("set", "http://127.0.0.1:9", {"all.tar.gz": ("batch.bin",)}, sums)
    download("set", source, tmp_path / "root", mirror=url)
    assert missing_files(source, tmp_path / "root") == []
    assert [p.name for p in (tmp_path / "root").rglob("*") if p.is_file()] == ["batch.bin"]
    assert not list(tmp_path.rglob("outside.bin"))
