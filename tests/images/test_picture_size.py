import struct
import zlib

import cv2
import numpy as np
import pytest

from neuralfunctionals.data import open_images
from neuralfunctionals.images.picture_size import picture_size

KINDS = [(".png", 1), (".png", 3), (".png", 4), (".jpg", 1), (".jpg", 3), (".bmp", 1), (".bmp", 3), (".webp", 3)]
KINDS += [(".webp", 4), (".tif", 1), (".tif", 3), (".tif", 4), (".ppm", 3), (".pgm", 1), (".pbm", 1)]


def encode(ending, channels, height=31, width=300, *options):
    shape = (height, width) if channels == 1 else (height, width, channels)
    picture = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    is_right, data = cv2.imencode(ending, picture, options)
    assert is_right
    return data.tobytes()


@pytest.mark.parametrize(("ending", "channels"), KINDS)
def test_headers_say_the_size_that_decoding_gives(ending, channels):
    for height, width in ((31, 300), (1, 7), (5, 1)):
        data = encode(ending, channels, height, width)
        assert picture_size(data) == (height, width)
        assert cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED).shape[:2] == (height, width)


def test_rarer_forms():
    assert picture_size(encode(".jpg", 3, 31, 300, cv2.IMWRITE_JPEG_PROGRESSIVE, 1)) == (31, 300)
    assert picture_size(encode(".webp", 3, 31, 300, cv2.IMWRITE_WEBP_QUALITY, 101)) == (31, 300)  # lossless
    assert picture_size(encode(".webp", 4, 31, 300, cv2.IMWRITE_WEBP_QUALITY, 50)) == (31, 300)
    assert picture_size(b"P2\n# a remark\n3\t2\n255\n1 2 3 4 5 6") == (2, 3)
    top_down = bytearray(encode(".bmp", 3))
    top_down[22:26] = struct.pack("<i", -31)
    assert picture_size(bytes(top_down)) == (31, 300)


@pytest.mark.parametrize(("ending", "channels"), KINDS)
def test_cut_headers_and_other_content_give_nothing(ending, channels):
    data = encode(ending, channels)
    for length in range(200):
        size = picture_size(data[:length])
        assert size in (None, (31, 300)) or ending in (".ppm", ".pgm", ".pbm")
    assert picture_size(b"") is None
    assert picture_size(b"GIF89a" + bytes(100)) is None


def claim(width, height):
    """A PNG of few bytes that claims to be large: one that decoders would allocate memory for."""
    data = bytearray(encode(".png", 3, 8, 8))
    data[16:24] = struct.pack(">II", width, height)
    data[29:33] = struct.pack(">I", zlib.crc32(bytes(data[12:29])))
    return bytes(data)


def test_large_pictures_are_refused_before_they_are_decoded(tmp_path):
    (tmp_path / "a.png").write_bytes(claim(20_000, 20_000))
    with pytest.raises(
        ValueError, match=r"A picture of 20000x20000 in .*a\.png would take 11\.2 GiB .*--max-memory 12G"
    ):
        open_images(tmp_path)
    (tmp_path / "a.png").write_bytes(claim(6000, 6000))
    with pytest.raises(ValueError, match=r"6000x6000 in .*a\.png would take 1\.01 GiB .* times its size on disk"):
        open_images(tmp_path)


def test_real_pictures_made_of_one_colour_are_refused_too(tmp_path):
    cv2.imwrite(str(tmp_path / "a.png"), np.zeros((9000, 9000), np.uint8))
    assert (tmp_path / "a.png").stat().st_size < 200_000
    with pytest.raises(ValueError, match="A picture of 9000x9000 .* would take 2.26 GiB"):
        open_images(tmp_path)


def test_a_larger_limit_lets_them_in(tmp_path, monkeypatch):
    cv2.imwrite(str(tmp_path / "a.png"), np.zeros((500, 500), np.uint8))
    monkeypatch.setenv("NF_MAX_MEMORY", "1M")
    with pytest.raises(ValueError, match="--max-memory 1G"):
        open_images(tmp_path)
    monkeypatch.setenv("NF_MAX_MEMORY", "1G")
    assert open_images(tmp_path).shape == (500, 500, 1)


@pytest.mark.parametrize("size", [1_000_000, 100_000_000_000])
def test_sizes_asked_for_count_as_well(tmp_path, size):
    cv2.imwrite(str(tmp_path / "a.png"), np.zeros((5, 5), np.uint8))
    with pytest.raises(ValueError, match=f"A picture of {size}x{size} in .* would take"):
        open_images(tmp_path, image_size=size)
    with pytest.raises(ValueError, match="image size of at least 1, but got -3"):
        open_images(tmp_path, image_size=-3)
    images = open_images(tmp_path, image_size=9)
    with pytest.raises(ValueError, match="100000000 images of 9x9 at a time would take"):
        images.read(np.zeros(100_000_000, np.int8))
