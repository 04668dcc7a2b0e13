"""What the page says about a digit: right for its samples, how sure, and in good English."""

import re

import pytest
import torch

from neuralfunctionals.cli.serve import open_models
from neuralfunctionals.web import cards
from neuralfunctionals.web.digits import samples
from neuralfunctionals.web.exhibit import Exhibit, Reading


def test_the_shipped_models_read_at_least_nine_of_ten_samples():
    models = open_models(None)
    read = [int(Exhibit.fit(digit).read(models).reading.probabilities.argmax()) for digit in samples()]
    assert sum(found == label for label, found in enumerate(read)) >= 9, read


def said(probabilities):
    """The words of the card."""
    image = torch.zeros(28, 28)
    network = Exhibit.fit(samples()[0]).network
    reading = Reading(image, torch.tensor(probabilities), torch.ones(2, 3), image)
    card = cards.reading_card(Exhibit(network, network, reading=reading))
    return re.sub(r"<[^>]+>", "", re.sub(r"</p>", " ", card.split('<div class="nf-bars"')[0])).strip()


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ({8: 0.97, 3: 0.03}, "It reads an 8, 97% sure. No other digit comes close."),
        ({1: 0.9999}, "It reads a 1, more than 99% sure. No other digit comes close."),
        ({3: 0.75, 8: 0.25}, "It reads a 3, 75% sure. It is fairly sure, but it could also be an 8 (25%)."),
        ({3: 0.5, 2: 0.37}, "It reads a 3, 50% sure. It is not sure: it could also be a 2 (37%)."),
        ({0: 0.3, 6: 0.2}, "It reads a 0, 30% sure. It is guessing: it could also be a 6 (20%)."),
        ({11: 0.6, 18: 0.4}, "It reads an 11, 60% sure. It is not sure: it could also be an 18 (40%)."),
    ],
)
def test_how_sure_it_is_stands_in_words_and_numbers(shares, words):
    probabilities = [0.0] * 20
    for label, share in shares.items():
        probabilities[label] = share
    assert said(probabilities) == words
