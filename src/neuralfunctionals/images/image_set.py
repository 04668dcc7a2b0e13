"""Image sets by name or path: embedded samples, the publishers' files, a folder, an array file."""

from __future__ import annotations

import functools
import hashlib
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt8

from neuralfunctionals.errors import UserError, nearest
from neuralfunctionals.files.budget import require_memory
from neuralfunctionals.files.untrusted import map_npy, read_npz, require_file
from neuralfunctionals.files.writing import readable_name
from neuralfunctionals.images.download import Source, download, missing_files
from neuralfunctionals.images.picture_size import picture_size
from neuralfunctionals.images.shapes import NUM_PICTURES, draw_shapes, shape_labels
from neuralfunctionals.images.splits import SPLITS, own_splits
from neuralfunctionals.machine import cache_directory

# Axes: B images, H rows, W columns, C colours.

EMBEDDED_SETS = ("mnist-sample", "fashion-sample", "shapes-sample", "mnist-unseen")
"""Small sets inside the package. The last is for testing only: no recipe trains on its digits."""
FULL_SETS = ("mnist", "fashion", "cifar10", "svhn-grey")
"""The publishers' sets, under a data root or downloaded."""
_IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
_SAMPLES = Path(__file__).parent / "samples"
_BYTES_A_VALUE = 10
"""Memory per value of a picture while it is decoded and fitted: bytes, a float, its share of the coordinates."""


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Byte images with labels and splits; images are read on demand.

    The label of an image without a class is -1. `splits` holds the index of each image's split in `SPLITS`.

    Example:
        >>> images = open_images("mnist-sample")
        >>> len(images), images.shape, images.read([0, 1]).shape
        (3000, (28, 28, 1), (2, 28, 28, 1))
    """

    name: str
    shape: tuple[int, int, int]
    labels: Int[np.ndarray, "B"]
    splits: UInt8[np.ndarray, "B"]
    reader: Callable[[np.ndarray], np.ndarray]

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, indices: Sequence[int] | np.ndarray) -> UInt8[np.ndarray, "_B H W C"]:
        """Reads these images, in this order."""
        size = len(indices) * math.prod(self.shape)
        require_memory(size, f"{len(indices)} images of {self.shape[0]}x{self.shape[1]} at a time")
        images = np.asarray(self.reader(np.asarray(indices, dtype=np.int64)))
        return images.reshape(len(indices), *self.shape)

    def select(self, limit: int | None = None) -> Int[np.ndarray, "_B"]:
        """Sorted source indices: all, or a fixed random choice of `limit` of them, in proportion from each split.

        The choice is always the same, and a smaller choice from a split is a subset of a larger one.
        """
        if limit is None or limit >= len(self):
            return np.arange(len(self))
        if limit < 1:
            raise UserError(f"Expected a limit of at least 1 image, but got {limit}.")
        members = [np.flatnonzero(self.splits == code) for code in range(len(SPLITS))]
        exact = [limit * len(m) / len(self) for m in members]
        counts = [int(x) for x in exact]
        # Images left over by rounding down go to the splits with the largest remainders.
        for code in sorted(range(len(SPLITS)), key=lambda c: counts[c] - exact[c])[: limit - sum(counts)]:
            counts[code] += 1
        # Not every k-th image: sets are often sorted by class, or their classes alternate.
        orders = [np.argsort(np.random.Philox(key=[0, code]).random_raw(len(m))) for code, m in enumerate(members)]
        chosen = [m[order[:n]] for m, order, n in zip(members, orders, counts, strict=True)]
        return np.sort(np.concatenate(chosen))

    def digest(self, indices: Sequence[int] | np.ndarray) -> str:
        """SHA-256 over these images, labels and splits."""
        indices = np.asarray(indices, dtype=np.int64)
        digest = hashlib.sha256(repr(self.shape).encode())
        few = max(1, (64 << 20) // math.prod(self.shape))  # large images a few at a time; the digest stays the same
        for start in range(0, len(indices), 1024):
            part = indices[start : start + 1024]
            for first in range(0, len(part), few):
                digest.update(np.ascontiguousarray(self.read(part[first : first + few])).tobytes())
            digest.update(self.labels[part].astype("<i8").tobytes() + self.splits[part].tobytes())
        return digest.hexdigest()


def open_images(
    name_or_path: str | os.PathLike[str],
    *,
    data_root: str | os.PathLike[str] | None = None,
    image_size: int | None = None,
    mirror: str | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> ImageSet:
    """Opens an image set.

    Args:
        name_or_path: `mnist-sample`, `fashion-sample`, `shapes-sample`, `mnist-unseen` (embedded), `mnist`, `fashion`,
            `cifar10`, `svhn-grey` (publishers' files), a folder of images (its sub-folders are the classes), or an
            array file (`.npy`, or `.npz` with `images` and optionally `labels`).
        data_root: Directory of the publishers' files. Defaults to `NF_DATA_ROOT`, or a folder in the cache.
        image_size: Resize the images of a folder to this height and width.
        mirror: Another URL to download from. Defaults to `NF_MIRROR`; see `download`.
        progress: Called during a download with the file, the bytes so far and the total bytes.
    """
    name = os.fspath(name_or_path)
    root = Path(data_root or os.environ.get("NF_DATA_ROOT") or cache_directory() / "images")
    if name in ("mnist-sample", "fashion-sample"):
        return _open_embedded(name, name.removesuffix("-sample"), _split_at(2400, 2700, 3000))
    if name == "mnist-unseen":
        return _open_embedded(name, "mnist_unseen", _split_at(0, 0, 1000))
    if name == "shapes-sample":
        return ImageSet(name, (32, 32, 3), shape_labels(), own_splits(NUM_PICTURES), draw_shapes)
    if name == "svhn-grey":
        return _open_svhn(root)
    if name in _SOURCES:
        source = _SOURCES[name]
        if missing_files(source, root):
            download(name, source, root, mirror=mirror or os.environ.get("NF_MIRROR"), progress=progress)
        return _open_cifar10(root / source.folder) if name == "cifar10" else _open_idx(name, root / source.folder)
    path = Path(name)
    if path.is_dir():
        return _open_folder(path, image_size)
    if path.suffix in (".npy", ".npz") and path.is_file():
        return _open_array(path)
    raise UserError(
        f"Expected an image set ({', '.join((*EMBEDDED_SETS, *FULL_SETS))}), a folder of images or an array file "
        f"(.npy, .npz), but got '{name}', which is none of these."
        f"{nearest(name, (*EMBEDDED_SETS, *FULL_SETS))}"
    )


def _from_arrays(name: str, images: np.ndarray, labels: np.ndarray, splits: np.ndarray) -> ImageSet:
    images = images if images.ndim == 4 else images[..., None]
    return ImageSet(name, images.shape[1:], labels.astype(np.int64), splits, lambda indices: images[indices])


def _split_at(*ends: int) -> np.ndarray:
    return np.repeat(np.arange(len(ends), dtype=np.uint8), np.diff((0, *ends)))


def _open_embedded(name: str, file: str, splits: np.ndarray) -> ImageSet:
    return _from_arrays(name, *_read_embedded(file), splits)


@functools.cache
def _read_embedded(file: str) -> tuple[np.ndarray, np.ndarray]:
    with np.load(_SAMPLES / f"{file}.npz", allow_pickle=False) as arrays:
        return arrays["images"], arrays["labels"]


_IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_CIFAR_FILES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")


def _idx_source(folder: str, url: str, *sha256: str) -> Source:
    """The four files of MNIST and of sets in its format, each compressed separately."""
    return Source(folder, url, {f"{f}.gz": (f,) for f in _IDX_FILES}, dict(zip(_IDX_FILES, sha256, strict=True)))


_CIFAR_SHA256 = (
    "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
)
_SOURCES = {
    "mnist": _idx_source(
        "MNIST/raw",
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    "fashion": _idx_source(
        "FashionMNIST/raw",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    "cifar10": Source(
        "cifar-10-batches-bin",
        "https://www.cs.toronto.edu/~kriz",
        {"cifar-10-binary.tar.gz": _CIFAR_FILES},
        dict(zip(_CIFAR_FILES, _CIFAR_SHA256, strict=True)),
    ),
}
_REPAIR = "Delete it to download it again."
# Ends of train, val and test, counted over the publisher's training set followed by its test set. As published for
# weight spaces, all MNIST networks come from the training set: the publisher's test set is not used.
_IDX_SPLITS = {"mnist": (45_000, 50_000, 60_000), "fashion": (55_000, 60_000, 70_000)}


def _map_bytes(path: Path, offset: int, shape: tuple[int, ...]) -> np.ndarray:
    """A memory map of a publisher's file, whose length must be right."""
    expected = offset + math.prod(shape)
    if path.stat().st_size != expected:
        raise UserError(f"Expected {path} to hold {expected} bytes, but it has {path.stat().st_size}. {_REPAIR}")
    return np.memmap(path, np.uint8, "r", offset, shape)


def _open_idx(name: str, folder: Path) -> ImageSet:
    parts, labels = [], []
    for images, kinds in (_IDX_FILES[:2], _IDX_FILES[2:]):
        header = np.fromfile(folder / images, ">i4", 3, offset=4).tolist()
        size, height, width = header if len(header) == 3 else (0, 0, 0)
        if min(size, height, width) < 1:
            raise UserError(f"Expected {folder / images} to hold images, but its header says {header}. {_REPAIR}")
        parts.append(_map_bytes(folder / images, 16, (size, height, width)))
        labels.append(np.asarray(_map_bytes(folder / kinds, 8, (size,))))
    ends = _IDX_SPLITS[name]
    if sum(map(len, parts)) < ends[-1] or parts[0].shape[1:] != parts[1].shape[1:]:
        raise UserError(f"Expected at least {ends[-1]} images of one size in {folder}, but got others. {_REPAIR}")
    return _from_parts(name, parts, np.concatenate(labels)[: ends[-1]], _split_at(*ends))


def _open_cifar10(folder: Path) -> ImageSet:
    records = [_map_bytes(folder / file, 0, ((folder / file).stat().st_size // 3073, 3073)) for file in _CIFAR_FILES]
    labels = np.concatenate([r[:, 0] for r in records])
    if len(labels) <= 50_000:
        raise UserError(f"Expected more than 50000 images in {folder}, but got {len(labels)}. {_REPAIR}")
    return ImageSet(
        "cifar10",
        (32, 32, 3),
        labels.astype(np.int64),
        _split_at(45_000, 50_000, len(labels)),
        lambda indices: _gather(records, indices)[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1),
    )


def _from_parts(name: str, parts: list[np.ndarray], labels: np.ndarray, splits: np.ndarray) -> ImageSet:
    shape = (*parts[0].shape[1:3], 1)
    return ImageSet(name, shape, labels.astype(np.int64), splits, lambda indices: _gather(parts, indices))


def _gather(parts: list[np.ndarray], indices: np.ndarray) -> np.ndarray:
    starts = np.cumsum([0, *map(len, parts)])
    part = np.searchsorted(starts, indices, side="right") - 1
    rows = np.empty((len(indices), *parts[0].shape[1:]), dtype=np.uint8)
    for p in np.unique(part):
        rows[part == p] = parts[p][indices[part == p] - starts[p]]
    return rows


def _open_svhn(root: Path) -> ImageSet:
    path = root / "svhn_grayscale_recropped.npz"
    if not path.is_file():
        raise UserError(
            f"Expected the grey, re-cropped SVHN images at {path}, but there is no such file. There is no download for "
            "it: make the file (train_images, train_labels, test_images, test_labels; bytes, 32x32), put it there, "
            "or set another data root (--data-root, NF_DATA_ROOT)."
        )
    names = ("train_images", "train_labels", "test_images", "test_labels")
    arrays = read_npz(path, names, optional=())
    train, train_labels, test, test_labels = (arrays[name] for name in names)
    for images, labels in ((train, train_labels), (test, test_labels)):
        if images.shape[1:] != (32, 32) or images.dtype != np.uint8 or labels.shape != images.shape[:1]:
            raise UserError(
                f"Expected {', '.join(names)} in {path}, bytes of 32x32 and a label for each, but got others."
            )
    labels = _require_labels(path, np.concatenate([train_labels, test_labels]), len(train) + len(test))
    splits = _split_at(len(train) * 7 // 8, len(train), len(train) + len(test))
    return _from_parts("svhn-grey", [train, test], labels, splits)


def _open_array(path: Path) -> ImageSet:
    labels = None
    if path.suffix == ".npz":
        arrays = read_npz(path, ["images"], optional=["labels"])
        images, labels = arrays["images"], arrays.get("labels")
    else:
        images = map_npy(path)
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or 0 in images.shape:
        raise UserError(
            f"Expected bytes (uint8) of shape (number, height, width) or (number, height, width, channels) in {path}, "
            f"but got {images.dtype} of shape {images.shape}."
        )
    require_memory(17 * len(images), f"The labels of {len(images)} images in {path}")
    labels = np.full(len(images), -1) if labels is None else _require_labels(path, labels, len(images))
    _require_fitting(path, *images.shape[1:])
    return _from_arrays(readable_name(path), images, labels, own_splits(len(images)))


def _require_labels(path: Path, labels: np.ndarray, count: int) -> np.ndarray:
    if labels.shape != (count,) or labels.dtype.kind not in "iu":
        raise UserError(
            f"Expected {count} whole numbers as labels in {path}, but got {labels.dtype} of shape {labels.shape}."
        )
    if labels.dtype == np.uint64 and count and int(labels.max()) > np.iinfo(np.int64).max:
        raise UserError(f"Expected labels of at most 63 bits in {path}, but got {labels.max()}.")
    return labels


def _require_fitting(path: Path, height: int, width: int, channels: int = 3, *, stored: int | None = None) -> None:
    """Raises if a picture is too large to be decoded and fitted."""
    size = _BYTES_A_VALUE * height * width * max(channels, 3)
    require_memory(size, f"A picture of {height}x{width} in {path}", stored=stored)


def _open_folder(folder: Path, image_size: int | None) -> ImageSet:
    try:
        files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in _IMAGE_ENDINGS and p.is_file())
    except OSError as error:
        raise UserError(f"Cannot read the image folder {folder}: {error}.") from error
    if not files:
        raise UserError(f"Expected images ({', '.join(_IMAGE_ENDINGS)}) in the folder {folder}, but found none.")
    classes = sorted({p.relative_to(folder).parts[0] for p in files if p.parent != folder})
    labels = np.array([classes.index(p.relative_to(folder).parts[0]) if p.parent != folder else -1 for p in files])
    if image_size is not None:
        if image_size < 1:
            raise UserError(f"Expected an image size of at least 1, but got {image_size}.")
        _require_fitting(folder, image_size, image_size)
    # All files are read once at the start, so that a bad one is found before hours of work.
    first: tuple[int, int] | None = None
    is_grey = True
    for file in files:
        picture = _read_picture(file, image_size)
        first = first or picture.shape[:2]
        is_grey &= picture.ndim == 2
        if picture.shape[:2] != first:
            raise UserError(
                f"Expected images of one size, {first[0]}x{first[1]} as in {files[0]}, but {file} has "
                f"{picture.shape[0]}x{picture.shape[1]}. Give --image-size to resize all of them."
            )
    assert first is not None
    channels = 1 if is_grey else 3

    def read(indices: np.ndarray) -> np.ndarray:
        pictures = np.empty((len(indices), *first, channels), dtype=np.uint8)
        for place, index in enumerate(indices):
            picture = _read_picture(files[index], image_size)
            pictures[place] = picture if picture.ndim == 3 else picture[..., None]
        return pictures

    return ImageSet(readable_name(folder.resolve()), (*first, channels), labels, own_splits(len(files)), read)


def _read_picture(file: Path, image_size: int | None) -> np.ndarray:
    """Grey `(H, W)` or colour `(H, W, 3)`, in the order red, green, blue; transparency is dropped."""
    import cv2

    require_file(file, "image")
    stored = file.stat().st_size
    require_memory(stored, f"The image {file}")
    data = file.read_bytes()
    size = picture_size(data)
    if size is None:
        raise UserError(f"Expected an image with 8 bits per colour in {file}, but found no image.")
    _require_fitting(file, *size, stored=stored)
    level = cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    try:
        picture = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error as error:
        raise UserError(f"Cannot read the image {file}: {error}.") from error
    finally:
        cv2.utils.logging.setLogLevel(level)
    if picture is None or picture.dtype != np.uint8:
        kind = "a damaged one" if picture is None else f"{picture.dtype}"
        raise UserError(f"Expected an image with 8 bits per colour in {file}, but found {kind}.")
    if picture.ndim == 3 and picture.shape[2] not in (3, 4):
        raise UserError(
            f"Expected a grey image or one of three colours in {file}, but found {picture.shape[2]} channels."
        )
    if picture.ndim == 3:
        picture = np.ascontiguousarray(picture[..., 2::-1])
    return (
        picture if image_size is None else cv2.resize(picture, (image_size, image_size), interpolation=cv2.INTER_AREA)
    )
