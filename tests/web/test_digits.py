"""What is drawn or uploaded becomes a digit as MNIST has them, or is refused with a reason."""

import base64
import io
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from PIL import Image

from neuralfunctionals.data import open_images
from neuralfunctionals.web.digits import MAX_BYTES, center_digit, read_picture, read_source, samples


def encode(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def url(content, mime="image/png"):
    return f"data:{mime};base64,{base64.b64encode(content).decode()}"


def center_of_mass(digit):
    values = digit.astype(float)
    return [(values.sum(1 - axis) @ np.arange(28)) / values.sum() for axis in (0, 1)]


def seven(size=280, ink=255, paper=0, shift=(0, 0)):
    """A seven of thick strokes, somewhere in a picture."""
    grey = np.full((size, size), paper, np.uint8)
    top, left = size // 4 + shift[0], size // 4 + shift[1]
    width = size // 14
    grey[top : top + width, left : left + size // 3] = ink
    for step in range(size // 2 - size // 14):
        column = left + size // 3 - step // 2
        grey[top + step, column - width : column] = ink
    return Image.fromarray(grey)


def test_samples_are_one_of_each_class_in_order():
    images = open_images("mnist-sample")
    everything = images.read(range(len(images)))[..., 0]
    for label, sample in enumerate(samples()):
        found = np.flatnonzero((everything == sample).all((1, 2)))
        assert images.labels[found].tolist() == [label]
        assert images.splits[found].tolist() == [2]
    assert (read_source("sample:7") == samples()[7]).all()


@pytest.mark.parametrize("shift", [(0, 0), (-60, 40), (50, -30)])
@pytest.mark.parametrize(("ink", "paper"), [(255, 0), (0, 255), (60, 200)])
def test_digits_are_centered_light_on_dark_wherever_and_however_they_were_drawn(shift, ink, paper):
    digit = read_source(url(encode(seven(shift=shift, ink=ink, paper=paper))))
    assert (digit.dtype, digit.shape, digit.max()) == (np.uint8, (28, 28), 255)
    assert np.median(digit) == 0
    assert np.abs(np.array(center_of_mass(digit)) - 14).max() <= 0.51
    rows = np.flatnonzero(digit.max(1) > 25)
    assert 19 <= rows[-1] - rows[0] + 1 <= 20
    assert np.abs(digit.astype(int) - center_digit(read_picture(encode(seven()))).astype(int)).mean() < 4


def test_mnist_digits_stay_nearly_what_they_are():
    for digit in samples():
        again = read_source(url(encode(Image.fromarray(digit))))
        assert np.corrcoef(digit.ravel(), again.ravel())[0, 1] > 0.9


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "GIF"])
def test_every_kind_of_picture_is_read_whatever_it_is_called(kind):
    digit = read_source(url(encode(seven(), kind), mime="text/plain"))
    assert np.corrcoef(digit.ravel(), read_source(url(encode(seven()))).ravel())[0, 1] > 0.95


@pytest.mark.parametrize("colour", [0, 255])
def test_transparent_pictures_show_their_strokes(colour):
    mask = np.asarray(seven())
    layers = np.stack([np.full_like(mask, colour)] * 3 + [mask], axis=-1)
    digit = read_source(url(encode(Image.fromarray(layers, "RGBA"))))
    assert np.corrcoef(digit.ravel(), read_source(url(encode(seven()))).ravel())[0, 1] > 0.95


def huge_png(width, height):
    """A valid header of a picture that nobody should decode."""

    def chunk(kind, content):
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(bytes(width + 1) * 100)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


ANIMATION = encode(seven(), "GIF", save_all=True, append_images=[seven(shift=(9, 9))])
PICTURE = encode(seven())


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("", "nothing to read yet"),
        ("sample:10", "from 0 to 9"),
        ("sample:../../etc/passwd", "from 0 to 9"),
        ("/etc/passwd", "data URL"),
        ("file:///etc/passwd", "data URL"),
        ("http://localhost/x.png", "data URL"),
        ("data:image/png;base64", "data URL"),
        ("data:image/png;base64,***", "damaged"),
        (url(b""), "empty"),
        (url(b"hello"), "not a picture"),
        (url(b"%PDF-1.7 something"), "not a picture"),
        (url(b"<svg xmlns='http://www.w3.org/2000/svg'/>"), "not a picture"),
        (url(PICTURE[:60]), "damaged"),
        (url(PICTURE[: len(PICTURE) // 2]), "damaged"),
        (url(ANIMATION), "animation"),
        (url(huge_png(10_000, 10_000)), "100 megapixels, too many"),
        (url(huge_png(60_000, 60_000)), "too many pixels"),
        (url(encode(Image.new("L", (2, 300)))), "too small"),
        (url(encode(Image.new("RGB", (300, 300), "white"))), "blank"),
        ("data:image/png;base64," + "A" * (2 * MAX_BYTES), "too large"),
    ],
)
def test_what_is_no_picture_of_a_digit_is_refused_with_a_reason(source, reason):
    with pytest.raises(ValueError, match=reason):
        read_source(source)


def test_a_hundred_megapixels_are_refused_before_they_are_decoded():
    content = huge_png(10_000, 10_000)
    tracemalloc.start()
    with pytest.raises(ValueError, match="megapixels"):
        read_picture(content)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20
