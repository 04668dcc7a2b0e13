import pytest
import torch

from neuralfunctionals.inr import (
    AffineMaps,
    Siren,
    SirenForm,
    image_grid,
    move_networks,
    render,
    render_images,
    turn_images,
    turn_networks,
)
from neuralfunctionals.weight_space import WeightSpaceFeatures

TURNS = torch.arange(8)


@pytest.mark.parametrize("convention", ["paper", "dws"])
def test_turned_networks_show_the_turned_pictures(convention):
    networks = WeightSpaceFeatures.from_modules([Siren([2, 6, 6, 3]).double() for _ in range(8)])
    networks = SirenForm(30.0, convention).label(networks)
    before = render_images(networks, 9, 9)
    after = render_images(turn_networks(networks, TURNS), 9, 9)
    torch.testing.assert_close(after, turn_images(before, TURNS))


def test_the_turns_are_the_eight_of_the_square():
    picture = torch.arange(9.0).view(1, 3, 3, 1)
    turned = {tuple(p.flatten().tolist()) for p in turn_images(picture.expand(8, -1, -1, -1), TURNS)}
    rotated = [torch.rot90(p, k, (1, 2)) for k in range(4) for p in (picture, picture.flip(1))]
    assert turned == {tuple(p.flatten().tolist()) for p in rotated}


def test_refuses_networks_of_three_coordinates():
    networks = WeightSpaceFeatures.from_modules([Siren([3, 4, 1])])
    with pytest.raises(ValueError, match="networks of two coordinates with biases, but got 3->4"):
        turn_networks(networks, torch.zeros(1, dtype=torch.long))


@pytest.mark.parametrize("convention", ["paper", "dws"])
@pytest.mark.parametrize("mirror", [False, True])
def test_moved_networks_show_at_a_point_what_they_showed_where_the_map_takes_it(convention, mirror):
    networks = WeightSpaceFeatures.from_modules([Siren([2, 6, 6, 3]).double() for _ in range(5)])
    networks = SirenForm(30.0, convention).label(networks)
    torch.manual_seed(0)
    matrix, shift = AffineMaps(mirror=mirror).sample(5)
    points = image_grid(7, 5, dtype=torch.float64)
    moved = render(move_networks(networks, matrix, shift), points)
    mapped = points @ matrix.double().mT + shift.double()[:, None]
    torch.testing.assert_close(moved, render(networks, mapped))


def test_affine_maps_are_mild_and_mirror_every_second_network():
    torch.manual_seed(0)
    maps = AffineMaps()
    matrix, shift = maps.sample(1000)
    assert (matrix - torch.eye(2)).abs().max() < 0.3
    assert shift.abs().max() <= maps.shift
    determinants = torch.linalg.det(AffineMaps(mirror=True).sample(1000)[0])
    assert 400 < (determinants < 0).sum() < 600
    assert (torch.linalg.det(matrix) > 0).all()
