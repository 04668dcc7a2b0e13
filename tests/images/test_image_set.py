import hashlib
import os
from pathlib import Path

import cv2
import numpy as np
import pytest

from neuralfunctionals.data import SPLITS, open_images
from neuralfunctionals.images.shapes import SHAPES, draw_shapes, shape_labels

needs_full_sets = pytest.mark.skipif(
    not os.environ.get("NF_DATA_ROOT"), reason="needs the publishers' files: set NF_DATA_ROOT to their directory"
)


@pytest.mark.parametrize("name", ["mnist-sample", "fashion-sample", "shapes-sample"])
def test_embedded_sets_are_balanced_and_split(name):
    images = open_images(name)
    assert len(images) >= 2000
    assert images.shape == ((32, 32, 3) if name == "shapes-sample" else (28, 28, 1))
    for code, share in enumerate((0.8, 0.1, 0.1)):
        labels = images.labels[images.splits == code]
        assert len(labels) == share * len(images)
        assert np.bincount(labels, minlength=10).tolist() == [len(labels) // 10] * 10
    picture = images.read([0, 17, 3])
    assert picture.dtype == np.uint8
    assert picture.shape == (3, *images.shape)
    assert len(np.unique(images.read(np.arange(100)).reshape(100, -1), axis=0)) == 100


def test_the_embedded_samples_are_small():
    folder = Path(__file__).parents[2] / "src/neuralfunctionals/images/samples"
    assert sum(f.stat().st_size for f in folder.iterdir()) < 2.2e6
    assert "Attribution-ShareAlike" in (folder / "LICENSES.md").read_text()


def test_shapes_come_from_their_seed():
    first = draw_shapes(range(30), seed=1)
    assert np.array_equal(first[[17, 3]], draw_shapes([17, 3], seed=1))
    assert not np.array_equal(first, draw_shapes(range(30), seed=2))
    assert set(shape_labels(10).tolist()) == set(range(len(SHAPES)))
    assert first.reshape(30, -1).std(axis=1).min() > 5  # every picture shows something


def test_limits_are_spread_over_the_splits_in_proportion():
    images = open_images("mnist-sample")
    chosen = images.select(64)
    assert len(chosen) == len(set(chosen.tolist())) == 64
    assert (np.diff(chosen) > 0).all()
    counts = np.bincount(images.splits[chosen], minlength=3)
    assert counts.sum() == 64
    assert np.abs(counts - np.array([51.2, 6.4, 6.4])).max() < 1
    for limit in (240, 300, 1000):  # no rhythm of the classes shows
        share = np.bincount(images.labels[images.select(limit)], minlength=10) / limit
        assert 0.03 < share.min() <= share.max() < 0.2
    assert set(images.select(30)[images.splits[images.select(30)] == 0]) <= set(images.select(300))
    assert len(images.select(5000)) == len(images.select()) == 3000
    with pytest.raises(ValueError, match="at least 1 image"):
        images.select(0)


def test_digests_notice_every_change():
    images = open_images("mnist-sample")
    assert images.digest([0, 1]) == images.digest([0, 1])
    assert len({images.digest([0, 1]), images.digest([1, 0]), images.digest([0, 2])}) == 3


def save(path: Path, picture: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), picture)


def test_a_folder_of_images(tmp_path):
    colour = np.zeros((6, 5, 3), np.uint8)
    colour[..., 2] = 200  # OpenCV writes blue, green, red
    save(tmp_path / "dogs" / "a.png", colour)
    save(tmp_path / "cats" / "b.png", np.full((6, 5), 7, np.uint8))
    images = open_images(tmp_path)
    assert images.shape == (6, 5, 3)
    assert images.labels.tolist() == [0, 1]
    cat, dog = images.read([0, 1])
    assert (cat == 7).all()
    assert dog[0, 0].tolist() == [200, 0, 0]


def test_a_flat_grey_folder_has_no_labels(tmp_path):
    for i in range(20):
        save(tmp_path / f"{i:02d}.png", np.full((4, 4), i, np.uint8))
    images = open_images(tmp_path)
    assert images.shape == (4, 4, 1)
    assert set(images.labels.tolist()) == {-1}
    assert images.read([13])[0, 0, 0, 0] == 13
    assert [int((images.splits == code).sum()) for code in range(len(SPLITS))] == [16, 2, 2]


def test_wrong_sizes_are_named_and_may_be_resized(tmp_path):
    save(tmp_path / "a.png", np.zeros((4, 4), np.uint8))
    save(tmp_path / "b.png", np.zeros((4, 5), np.uint8))
    with pytest.raises(ValueError, match=r"one size, 4x4 as in .*a\.png, but .*b\.png has 4x5.*--image-size"):
        open_images(tmp_path)
    assert open_images(tmp_path, image_size=8).read([0, 1]).shape == (2, 8, 8, 1)


def test_bad_folders_are_explained(tmp_path):
    with pytest.raises(ValueError, match="but found none"):
        open_images(tmp_path)
    (tmp_path / "broken.png").write_bytes(b"not a picture")
    with pytest.raises(ValueError, match=r"8 bits per colour in .*broken\.png, but found no image"):
        open_images(tmp_path)
    save(tmp_path / "broken.png", np.zeros((4, 4), np.uint16))
    with pytest.raises(ValueError, match="but found uint16"):
        open_images(tmp_path)


def test_array_files(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (12, 4, 3, 3), dtype=np.uint8)
    np.save(tmp_path / "a.npy", pixels)
    np.savez(tmp_path / "b.npz", images=pixels[..., 0], labels=np.arange(12))
    colour, grey = open_images(tmp_path / "a.npy"), open_images(tmp_path / "b.npz")
    assert np.array_equal(colour.read([5, 2]), pixels[[5, 2]])
    assert np.array_equal(grey.read([5, 2])[..., 0], pixels[[5, 2], ..., 0])
    assert set(colour.labels.tolist()) == {-1}
    assert grey.labels.tolist() == list(range(12))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"pictures": np.zeros((2, 3, 3), np.uint8)}, "named images, but they are named .*pictures"),
        ({"images": np.zeros((2, 3, 3))}, r"bytes \(uint8\).*got float64"),
        ({"images": np.zeros((3, 3), np.uint8)}, r"shape \(3, 3\)"),
        ({"images": np.zeros((2, 3, 3), np.uint8), "labels": np.zeros(3, int)}, "Expected 2 whole numbers"),
    ],
)
def test_bad_array_files_are_explained(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        open_images(tmp_path / "a.npz")


def test_array_files_with_objects_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="without objects"):
        open_images(tmp_path / "a.npy")


def test_unknown_names_list_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match=r"mnist-sample.*svhn-grey.*but got 'minst'"):
        open_images("minst")
    with pytest.raises(ValueError, match=r"svhn_grayscale_recropped\.npz.*no such file"):
        open_images("svhn-grey", data_root=tmp_path)


@needs_full_sets
@pytest.mark.parametrize(
    ("name", "shape", "ends"),
    [
        ("mnist", (28, 28, 1), (45_000, 50_000, 60_000)),
        ("fashion", (28, 28, 1), (55_000, 60_000, 70_000)),
        ("cifar10", (32, 32, 3), (45_000, 50_000, 60_000)),
    ],
)
def test_full_sets(name, shape, ends):
    images = open_images(name)
    assert images.shape == shape
    assert len(images) == ends[-1]
    assert np.flatnonzero(np.diff(images.splits)).tolist() == [ends[0] - 1, ends[1] - 1]
    assert set(images.labels.tolist()) == set(range(10))
    assert np.array_equal(images.read([3, ends[-1] - 1, 3])[0], images.read([3])[0])


@needs_full_sets
def test_the_sample_is_part_of_the_full_set():
    sample, full = open_images("mnist-sample"), open_images("mnist")
    everything = {picture.tobytes() for picture in full.read(np.arange(60_000))}
    assert all(picture.tobytes() in everything for picture in sample.read(np.arange(100)))


def test_damaged_array_files_are_refused_in_one_line(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((12, 4, 3), np.uint8))
    np.savez_compressed(tmp_path / "a.npz", images=np.zeros((12, 4, 3), np.uint8), labels=np.arange(12))
    for name in ("a.npy", "a.npz"):
        good = (tmp_path / name).read_bytes()
        for length in range(0, len(good) - 1, 7):
            (tmp_path / name).write_bytes(good[:length])
            with pytest.raises(ValueError, match=f"Refused .*{name}") as caught:
                open_images(tmp_path / name)
            assert "\n" not in str(caught.value)


def test_labels_must_be_whole_numbers_of_at_most_63_bits(tmp_path):
    images = np.zeros((2, 3, 3), np.uint8)
    np.savez(tmp_path / "a.npz", images=images, labels=np.array([1, 2**63], dtype=np.uint64))
    with pytest.raises(ValueError, match="at most 63 bits .* got 9223372036854775808"):
        open_images(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", images=images, labels=np.array([1, 2**63 - 1], dtype=np.uint64))
    assert open_images(tmp_path / "a.npz").labels.tolist() == [1, 2**63 - 1]


def test_the_digest_of_large_images_is_that_of_all_at_once(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (5, 2000, 2000, 3), dtype=np.uint8)
    np.save(tmp_path / "a.npy", pixels)
    images = open_images(tmp_path / "a.npy")
    at_once = hashlib.sha256(repr(images.shape).encode() + pixels.tobytes())
    at_once.update(images.labels.astype("<i8").tobytes() + images.splits.tobytes())
    assert images.digest(range(5)) == at_once.hexdigest()


def test_svhn_of_another_form_is_refused(tmp_path):
    file = tmp_path / "svhn_grayscale_recropped.npz"
    parts = {"train_labels": np.zeros(8, int), "test_labels": np.zeros(2, int)}
    np.savez(file, train_images=np.zeros((8, 32, 32), np.uint8), test_images=np.zeros((2, 32, 32), np.uint8), **parts)
    assert len(open_images("svhn-grey", data_root=tmp_path)) == 10
    np.savez(file, train_images=np.zeros((8, 32, 31), np.uint8), test_images=np.zeros((2, 32, 32), np.uint8), **parts)
    with pytest.raises(ValueError, match="bytes of 32x32 and a label for each"):
        open_images("svhn-grey", data_root=tmp_path)
    file.write_bytes(b"PK")
    with pytest.raises(ValueError, match="Refused .*svhn_grayscale_recropped"):
        open_images("svhn-grey", data_root=tmp_path)
