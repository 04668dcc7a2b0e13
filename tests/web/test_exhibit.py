"""The page without the page: fits, edits, readings and symmetries."""

import numpy as np
import pytest
import torch

from neuralfunctionals.inr import SirenForm, image_grid, image_values, psnr, render
from neuralfunctionals.tasks import ClassifyTask, EditTask
from neuralfunctionals.web import cards
from neuralfunctionals.web.digits import samples
from neuralfunctionals.web.exhibit import Exhibit, Models
from neuralfunctionals.weight_space import NetworkSpec


@pytest.fixture(scope="module")
def exhibit():
    return Exhibit.fit(samples()[3])


def test_a_fit_shows_the_digit_and_its_film_gets_better(exhibit):
    assert exhibit.psnr_db >= 38
    shown = psnr(exhibit.image[None], image_values(exhibit.digit[None])[..., 0])
    assert float(shown) == pytest.approx(exhibit.psnr_db, abs=0.1)
    steps = [frame.steps for frame in exhibit.film]
    assert steps == sorted(set(steps))
    target = torch.from_numpy(exhibit.digit / 127.5 - 1)
    errors = [float((frame.image - target).square().mean()) for frame in exhibit.film]
    assert errors == sorted(errors, reverse=True)


def test_the_same_digit_gives_the_same_network_and_others_other_first_weights(exhibit):
    assert torch.equal(Exhibit.fit(samples()[3]).network.tensor, exhibit.network.tensor)
    assert not torch.equal(Exhibit.fit(samples()[4]).film[0].image, exhibit.film[0].image)


@pytest.mark.parametrize("move", [Exhibit.shuffled, Exhibit.flipped])
def test_symmetries_change_the_weights_and_nothing_else(models, exhibit, move):
    before = exhibit.read(models)
    after = move(before, seed=5).read(models)
    changes = after.changes(before)
    assert changes.weights > 0.1
    assert changes.same_answers, changes
    assert changes.image < 1e-3
    card = cards.changes_card(before, after, changes)
    assert card.count("unchanged") == 2 * 3
    assert "scrambled" in card
    assert cards.network_card(before) != cards.network_card(after)


def test_what_is_no_symmetry_is_called_a_change(models, exhibit):
    before = exhibit.read(models)
    after = exhibit.edited(models, "dilate").read(models)
    changes = after.changes(before)
    assert changes.image > 1 / 255
    assert not changes.same_answers
    assert "One of the predictions changed" in cards.changes_card(before, after, changes)


class Shown(torch.nn.Module):
    """Answers with what networks of a form show at ten points."""

    spec = NetworkSpec.siren([2, 32, 32, 1], 20.0, "dws")

    def forward(self, networks):
        return render(networks, image_grid(2, 5))[..., 0]


class Doubled(torch.nn.Module):
    """Doubles what networks show."""

    spec = Shown.spec

    def forward(self, networks):
        change = torch.zeros_like(networks.tensor)
        change[:, networks.spec.groups[-2].start :] = networks.tensor[:, networks.spec.groups[-2].start :]
        return networks.with_tensor(change)


def test_models_of_another_form_read_and_edit_the_networks_of_the_page(models, exhibit):
    other = Models({"double": EditTask(Doubled(), edit="dilate")}, ClassifyTask(Shown()), models.autoencoder)
    assert other.classifier.form == SirenForm(20.0, "dws")
    expected = render(exhibit.network, image_grid(2, 5))[0, :, 0].softmax(-1)
    torch.testing.assert_close(exhibit.read(other).reading.probabilities, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(exhibit.edited(other, "double").image, 2 * exhibit.image, atol=1e-3, rtol=1e-3)


def test_edits_are_the_editors_and_can_be_taken_back(models, exhibit):
    edited = exhibit.edited(models, "erode").edited(models, "dilate")
    expected = models.editors["dilate"].edit(models.editors["erode"].edit(exhibit.network))
    assert torch.equal(edited.network.tensor, expected.tensor)
    assert edited.steps == ("erode", "dilate")
    assert "thinner, thicker" in cards.edit_card(edited)
    assert torch.equal(edited.restored().network.tensor, exhibit.network.tensor)
    with pytest.raises(ValueError, match="one of \\['dilate', 'erode', 'gradient'\\], but got 'melt'"):
        exhibit.edited(models, "melt")


def test_shuffling_commutes_with_editing(models, exhibit):
    first = exhibit.shuffled(seed=1).edited(models, "dilate")
    second = exhibit.edited(models, "dilate").shuffled(seed=1)
    torch.testing.assert_close(first.network.tensor, second.network.tensor, atol=1e-4, rtol=1e-4)


def test_a_reading_is_what_the_models_say(models, exhibit):
    reading = exhibit.read(models).reading
    assert reading.probabilities.shape == (10,)
    assert float(reading.probabilities.sum()) == pytest.approx(1)
    assert int(reading.probabilities.argmax()) == int(models.classifier.classify(exhibit.network))
    assert torch.equal(reading.latents, models.autoencoder.encode(exhibit.network)[0])
    card = cards.reading_card(exhibit.read(models))
    assert f'id="nf-class">{int(reading.probabilities.argmax())}</b>' in card


def test_refuses_changes_of_what_was_not_read(exhibit):
    with pytest.raises(ValueError, match="read"):
        exhibit.changes(exhibit)


def test_refuses_models_of_other_networks(models):
    from neuralfunctionals.models import NFN
    from neuralfunctionals.tasks import EditTask

    other = EditTask(NFN(NetworkSpec.mlp([2, 8, 1]), channels=(2,)), edit="dilate")
    with pytest.raises(ValueError, match="takes networks"):
        Models({"dilate": other}, models.classifier, models.autoencoder)


def test_pictures_show_what_they_are_made_of():
    import base64

    import cv2

    from neuralfunctionals.web.pictures import grey_url, signed_url

    def decode(url):
        content = np.frombuffer(base64.b64decode(url.partition(",")[2]), np.uint8)
        return cv2.imdecode(content, cv2.IMREAD_UNCHANGED)

    assert (decode(grey_url(samples()[2])) == samples()[2]).all()
    blue, white, orange = decode(signed_url(torch.tensor([[-9.0, 0.0, 9.0]]), 1.0))[0].tolist()
    assert blue[0] > blue[2]  # OpenCV's order: blue, green, red
    assert min(white) > 240
    assert orange[2] > orange[0]
