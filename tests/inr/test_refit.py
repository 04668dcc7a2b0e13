import numpy as np
import pytest
import torch

from neuralfunctionals.data import EDITS, open_images
from neuralfunctionals.inr import fit, refit, render_images

IMAGES = open_images("mnist-sample").read(range(6))


def test_refitted_networks_show_the_edited_picture_and_stay_near_the_old_ones():
    networks = fit(IMAGES).features
    dilated = refit(networks, EDITS["dilate"])
    target = torch.from_numpy(EDITS["dilate"](IMAGES).astype(np.float32)) / 127.5 - 1
    before = (render_images(networks, 28, 28) - target).square().mean()
    after = (render_images(dilated.features, 28, 28) - target).square().mean()
    assert before > 0.2
    assert after < 0.02
    fresh = fit(EDITS["dilate"](IMAGES), seed=1).features
    moved, apart = ((x.tensor - networks.tensor).norm() for x in (dilated.features, fresh))
    assert moved < 0.5 * apart


@pytest.mark.parametrize("convention", ["paper", "dws"])
def test_any_function_of_pictures_will_do(convention):
    networks = fit(IMAGES[:2], convention=convention).features
    inverted = refit(networks, lambda pictures: 255 - pictures).features
    shown, before = (render_images(x, 28, 28) for x in (inverted, networks))
    assert (shown + before).square().mean() < 0.02


def test_an_edit_that_changes_the_shape_is_refused():
    networks = fit(IMAGES[:2], recipe="fast").features
    with pytest.raises(ValueError, match=r"shape \(2, 28, 28, 1\), but got \(2, 14, 14, 1\)"):
        refit(networks, lambda pictures: pictures[:, ::2, ::2])
