import pytest
import torch

from neuralfunctionals.inr import Siren, render_images, turn_images, turn_networks
from neuralfunctionals.weight_space import WeightSpaceFeatures

TURNS = torch.arange(8)


@pytest.mark.parametrize("convention", ["paper", "dws"])
def test_turned_networks_show_the_turned_pictures(convention):
    networks = WeightSpaceFeatures.from_modules([Siren([2, 6, 6, 3]).double() for _ in range(8)])
    before = render_images(networks, 9, 9, convention=convention)
    after = render_images(turn_networks(networks, TURNS, convention=convention), 9, 9, convention=convention)
    torch.testing.assert_close(after, turn_images(before, TURNS))


def test_the_turns_are_the_eight_of_the_square():
    picture = torch.arange(9.0).view(1, 3, 3, 1)
    turned = {tuple(p.flatten().tolist()) for p in turn_images(picture.expand(8, -1, -1, -1), TURNS)}
    rotated = [torch.rot90(p, k, (1, 2)) for k in range(4) for p in (picture, picture.flip(1))]
    assert turned == {tuple(p.flatten().tolist()) for p in rotated}


def test_refuses_networks_of_three_coordinates():
    networks = WeightSpaceFeatures.from_modules([Siren([3, 4, 1])])
    with pytest.raises(ValueError, match="Expected networks of two coordinates, but these have 3"):
        turn_networks(networks, torch.zeros(1, dtype=torch.long))
