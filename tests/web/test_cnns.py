"""The second tab without the page: sample CNNs, visitors' own, and what is predicted."""

import io

import numpy as np
import pytest
import torch
from test_digits import url

from neuralfunctionals.cnn.settings import build_cnn
from neuralfunctionals.data import open_images
from neuralfunctionals.inr import image_values
from neuralfunctionals.web import cnn_cards
from neuralfunctionals.web.cnns import Cnn, samples, shipped_predictor
from neuralfunctionals.weight_space import WeightSpaceFeatures


@pytest.fixture(scope="module")
def predictor():
    return shipped_predictor()


def saved(module):
    file = io.BytesIO()
    torch.save(module if isinstance(module, dict) else module.state_dict(), file)
    return url(file.getvalue())


def test_the_samples_have_the_accuracies_that_are_written_beside_them():
    images = open_images("fashion-sample")
    tests = np.flatnonzero(images.splits == 2)
    pixels = image_values(images.read(tests)).permute(0, 3, 1, 2)
    labels = torch.from_numpy(images.labels[tests])
    for cnn in samples():
        found = set()
        for activation in ("relu", "tanh"):
            module = cnn.network.to_modules(build_cnn(activation=activation))[0]
            with torch.no_grad():
                found.add(round((module(pixels).argmax(1) == labels).double().mean().item(), 3))
        assert round(cnn.measured, 3) in found


def test_the_predictions_follow_the_samples(predictor):
    predicted = [cnn.read(predictor).predicted for cnn in samples()]
    measured = [cnn.measured for cnn in samples()]
    assert np.corrcoef(predicted, measured)[0, 1] > 0.9
    assert np.abs(np.subtract(predicted, measured)).mean() < 0.1


def test_shuffling_changes_the_weights_and_not_the_prediction(predictor):
    before = samples()[2].read(predictor)
    after = before.shuffled(seed=3).read(predictor)
    assert (after.network.tensor - before.network.tensor).abs().max() > 0.1
    assert after.predicted == pytest.approx(before.predicted, abs=1e-5)
    card = cnn_cards.shuffle_card(before, after)
    assert "stayed the same" in card
    assert cnn_cards.first_filters(before) != cnn_cards.first_filters(after)
    other = samples()[1].read(predictor)
    assert "The prediction changed" in cnn_cards.shuffle_card(before, other)


def test_an_own_cnn_is_read_and_its_accuracy_is_not_claimed(predictor):
    torch.manual_seed(0)
    module = build_cnn()
    own = Cnn.from_source(saved(module)).read(predictor)
    expected = WeightSpaceFeatures.from_modules([module])
    assert torch.equal(own.network.tensor, expected.tensor)
    assert own.predicted == pytest.approx(float(predictor.predict(module)), abs=1e-6)
    card = cnn_cards.prediction_card(own)
    assert "not known here" in card
    names = [f"{layer}.{part}" for layer in ("conv1", "conv2", "conv3", "fc") for part in ("weight", "bias")]
    renamed = Cnn.from_source(saved(dict(zip(names, module.state_dict().values(), strict=True))))
    assert torch.equal(renamed.network.tensor, expected.tensor)
    assert "measured" not in card
    assert "your network" in cnn_cards.weights_card(own)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("", "data URL"),
        ("sample:8", "from 0 to 7, but got '8'"),
        ("sample:x", "from 0 to 7"),
        ("/etc/passwd", "data URL"),
        (url(b"hello"), "cannot be read as a network"),
        (saved(build_cnn(3)), r"does not fit: its layers are 3->16 \(3x3\).*Expected a CNN with the layers 1->16"),
        (saved(torch.nn.Linear(2, 3)), "does not fit"),
    ],
)
def test_what_is_no_fitting_cnn_is_refused_with_a_reason(source, reason):
    with pytest.raises(ValueError, match=reason):
        Cnn.from_source(source)


@pytest.mark.parametrize(
    ("predicted", "measured", "words"),
    [
        (0.1, 0.12, ["10%", "hardly better than guessing", "off by 2 points"]),
        (0.42, 0.43, ["42%", "learned a little", "off by 1 point."]),
        (0.8, 0.8, ["80%", "one of the best", "exactly right"]),
        (0.9999, None, ["more than 99%", "not known here"]),
    ],
)
def test_predictions_are_told_in_words_and_numbers(predicted, measured, words):
    card = cnn_cards.prediction_card(Cnn(samples()[0].network, "x", measured, predicted))
    assert all(word in card for word in words), card
