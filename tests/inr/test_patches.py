import pytest
import torch
from hypothesis import given, strategies as st

from neuralfunctionals.inr import Siren, SirenForm, patch_pixels, render_images, render_patches
from neuralfunctionals.weight_space import NetworkSpec, WeightSpaceFeatures

SIZES = st.integers(1, 70)
GRIDS = st.integers(1, 9)


def names(count):
    """Networks that show one number each, their own: which network showed a pixel can be read off the picture."""
    spec = NetworkSpec.mlp([2, 1, 1])
    vectors = torch.zeros(count, spec.num_entries)
    vectors[:, -1] = torch.arange(count)
    return WeightSpaceFeatures.from_vectors(spec, vectors)


@given(size=SIZES, grid_size=GRIDS)
def test_parts_tile_a_side_with_no_pixel_twice_or_missing(size, grid_size):
    pixels, places = patch_pixels(size, grid_size)
    assert pixels.flatten()[places].tolist() == list(range(size))
    counts = torch.bincount(places // pixels.shape[1], minlength=grid_size)
    assert counts.max() - counts.min() <= 1


@given(height=SIZES, width=SIZES, grid_size=GRIDS)
def test_every_pixel_is_shown_by_the_network_of_its_patch(height, width, grid_size):
    shown = render_patches(names(2 * grid_size**2), height, width, grid_size=grid_size)[..., 0]
    assert shown.shape == (2, height, width)
    owner = shown[0].long()
    assert torch.equal(shown[1].long(), owner + grid_size**2)
    rows, columns = owner // grid_size, owner % grid_size
    assert torch.equal(rows, rows[:, :1].expand_as(rows))
    assert torch.equal(columns, columns[:1].expand_as(columns))
    for parts, size in ((rows[:, 0], height), (columns[0], width)):
        counts = torch.bincount(parts, minlength=grid_size)
        assert bool((parts.diff() >= 0).all())
        assert counts.sum() == size
        assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize(("height", "width", "grid_size"), [(28, 28, 4), (28, 28, 8), (7, 10, 4), (5, 5, 1)])
def test_equals_each_network_rendered_whole_and_cut(height, width, grid_size):
    networks = WeightSpaceFeatures.from_modules([Siren([2, 5, 1]).double() for _ in range(grid_size**2)])
    whole = render_images(networks, height, width)[..., 0]
    owner = render_patches(names(grid_size**2), height, width, grid_size=grid_size)[0, ..., 0].long()
    expected = whole.gather(0, owner[None])
    torch.testing.assert_close(render_patches(networks, height, width, grid_size=grid_size)[..., 0], expected)


def test_one_network_for_all_patches_shows_what_it_shows_alone():
    for convention in ("paper", "dws"):
        networks = SirenForm(30.0, convention).label(WeightSpaceFeatures.from_modules([Siren([2, 8, 3])] * 9))
        alone = render_images(networks[[0]], 13, 11)
        torch.testing.assert_close(render_patches(networks, 13, 11, grid_size=3), alone)


def test_refuses_networks_that_do_not_fill_the_patches():
    with pytest.raises(ValueError, match="Expected 4 networks for each picture of 2 x 2 patches, but got 5"):
        render_patches(names(5), 4, 4, grid_size=2)
    with pytest.raises(ValueError, match="at least one pixel and one patch, but got 4 and 0"):
        patch_pixels(4, 0)
