import cv2
import numpy as np
import pytest

from neuralfunctionals.data import EDITS

GREY = np.random.default_rng(0).integers(0, 256, (28, 28), dtype=np.uint8)
COLOUR = np.random.default_rng(1).integers(0, 256, (32, 32, 3), dtype=np.uint8)


def windows(image, size):
    """All values under a square whose anchor is OpenCV's: the middle, rounded towards the end."""
    before, after = size // 2, size - 1 - size // 2
    padded = np.pad(image.astype(float), (before, after), constant_values=np.nan)
    return np.stack([padded[i : i + 28, j : j + 28] for i in range(size) for j in range(size)])


def test_morphology_is_its_definition():
    assert np.array_equal(EDITS["dilate"](GREY), np.nanmax(windows(GREY, 3), 0))
    assert np.array_equal(EDITS["erode"](GREY), np.nanmin(windows(GREY, 2), 0))
    outline = np.nanmax(windows(GREY, 2), 0) - np.nanmin(windows(GREY, 2), 0)
    assert np.array_equal(EDITS["gradient"](GREY), outline)


def test_contrast_hands_red_for_blue_as_published():
    lab = cv2.cvtColor(COLOUR, cv2.COLOR_BGR2LAB)
    light, *rest = cv2.split(lab)
    light = cv2.createCLAHE(clipLimit=1.0, tileGridSize=(3, 3)).apply(light)
    assert np.array_equal(EDITS["contrast"](COLOUR), cv2.cvtColor(cv2.merge([light, *rest]), cv2.COLOR_LAB2BGR))
    assert not np.array_equal(EDITS["contrast"](COLOUR), COLOUR)


@pytest.mark.parametrize("name", ["dilate", "erode", "gradient", "contrast"])
def test_batches_are_their_images_one_by_one(name):
    edit = EDITS[name]
    grey = np.stack([GREY, GREY.T])
    for batch in (grey, grey[..., None], np.stack([COLOUR, COLOUR[::-1]])):
        before = batch.copy()
        edited = edit(batch)
        assert edited.shape == batch.shape
        assert edited.dtype == np.uint8
        for one, expected in zip(batch, edited, strict=True):
            assert np.array_equal(edit(one), expected)
        assert np.array_equal(batch, before)


def test_wrong_images_are_explained():
    with pytest.raises(ValueError, match="byte images"):
        EDITS["dilate"](GREY.astype(float))
    with pytest.raises(ValueError, match="one or three colours"):
        EDITS["dilate"](np.zeros((1, 4, 4, 2), np.uint8))
