import pytest
import torch

from neuralfunctionals import NetworkSpec, NeuronPermutation, WeightSpaceFeatures
from neuralfunctionals.inr import Siren, convert_convention, image_grid, render, render_images


def sirens(count=3, widths=(2, 8, 6, 1), omega=30.0):
    return WeightSpaceFeatures.from_modules([Siren(list(widths), omega=omega).double() for _ in range(count)])


def test_a_batch_renders_as_its_modules_do():
    features = sirens(omega=11.0)
    grid = image_grid(5, 4, dtype=torch.float64)
    modules = features.to_modules(Siren([2, 8, 6, 1], omega=11.0).double())
    torch.testing.assert_close(render(features, grid), torch.stack([m(grid) for m in modules]))


def test_each_network_may_have_points_of_its_own():
    features = sirens(widths=(3, 8, 2))
    points = torch.rand(3, 6, 3, dtype=torch.float64)
    expected = torch.cat([render(features[i], points[i]) for i in range(3)])
    torch.testing.assert_close(render(features, points), expected)


def test_gradients_reach_weights_and_coordinates():
    features = sirens()
    tensor = features.tensor.clone().requires_grad_()
    points = torch.rand(3, 4, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t, p: render(features.with_tensor(t), p), (tensor, points))


def test_hidden_neurons_may_change_places():
    features = sirens()
    permuted = NeuronPermutation.random(features.spec, "HNP")(features)
    grid = image_grid(6, 6, dtype=torch.float64)
    torch.testing.assert_close(render(permuted, grid), render(features, grid))


def test_both_conventions_show_the_same_picture():
    features = sirens()
    grid = image_grid(6, 5, dtype=torch.float64)
    other = convert_convention(features, "dws")
    torch.testing.assert_close(render(other, grid), render(features, grid))
    silent = WeightSpaceFeatures(NetworkSpec.mlp([2, 8, 6, 1]), other.tensor)
    assert not torch.allclose(render(silent, grid), render(features, grid))


def test_pictures_stand_row_by_row():
    features = sirens(widths=(2, 8, 3))
    picture = render_images(features, 4, 5)
    assert picture.shape == (3, 4, 5, 3)
    grid = image_grid(4, 5, dtype=torch.float64)
    torch.testing.assert_close(picture[:, 2, 3], render(features, grid[2 * 5 + 3][None])[:, 0])
    assert grid[2 * 5 + 3].tolist() == pytest.approx([1 / 3, 0.5])


def test_wrong_coordinates_are_explained():
    with pytest.raises(ValueError, match=r"\(points, 2\) or \(3, points, 2\), but got \(4, 3\)"):
        render(sirens(), torch.zeros(4, 3))
    with pytest.raises(ValueError, match="one set of points for all networks, or one for each"):
        render(sirens(), torch.zeros(2, 4, 2))
    with pytest.raises(ValueError, match="at least one pixel"):
        image_grid(0, 3)
