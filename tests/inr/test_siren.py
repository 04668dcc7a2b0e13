import pytest
import torch

from neuralfunctionals import NetworkSpec, WeightSpaceFeatures
from neuralfunctionals.inr import Siren, convert_convention, image_grid, initial_weights, render


def items(*rows):
    return torch.tensor(rows, dtype=torch.int64)


def test_state_dict_has_the_default_names_and_loads_straight_in():
    siren = Siren([2, 32, 32, 1])
    assert list(siren.state_dict()) == [f"layers.{i}.{kind}" for i in range(3) for kind in ("weight", "bias")]
    spec = NetworkSpec.mlp([2, 32, 32, 1])
    assert NetworkSpec.from_module(siren) == spec
    vectors = torch.randn(1, spec.num_entries)
    siren.load_state_dict(WeightSpaceFeatures.from_vectors(spec, vectors).to_state_dicts()[0])
    assert torch.equal(WeightSpaceFeatures.from_modules([siren]).to_vectors(), vectors)


@pytest.mark.parametrize("widths", [[2, 32, 32, 1], [3, 8, 5, 7, 2], [1, 4, 1]])
def test_forward_is_the_formula(widths):
    siren = Siren(widths, omega=17.0).double()
    x = torch.rand(11, widths[0], dtype=torch.float64)
    expected = x
    for i, layer in enumerate(siren.layers):
        expected = expected @ layer.weight.T + layer.bias
        expected = expected if i == len(siren.layers) - 1 else torch.sin(17.0 * expected)
    torch.testing.assert_close(siren(x), expected)


def test_equal_seeds_give_equal_modules_and_others_do_not():
    same = [Siren(seed=3)(image_grid(4, 4)) for _ in range(2)]
    assert torch.equal(*same)
    assert not torch.equal(same[0], Siren(seed=4)(image_grid(4, 4)))
    assert not torch.equal(Siren()(image_grid(4, 4)), Siren()(image_grid(4, 4)))


def test_a_start_depends_on_its_item_and_not_on_its_batch():
    spec = NetworkSpec.mlp([2, 32, 32, 1])
    alone = initial_weights(spec, items((7, 2)), seed=5)
    among = initial_weights(spec, items((1, 0), (7, 2), (7, 3)), seed=5)
    assert torch.equal(alone[0], among[1])
    others = [
        among[0],
        among[2],
        initial_weights(spec, items((7, 2)), seed=6)[0],
        initial_weights(spec, items((7, 2)), seed=5, attempt=1)[0],
    ]
    assert not any(torch.equal(alone[0], other) for other in others)


def test_a_start_is_the_same_on_every_machine():
    start = initial_weights(NetworkSpec.mlp([2, 32, 32, 1]), items((12, 3)), seed=1)
    assert start[0, :3].tolist() == [-0.39615845680236816, -0.07765866070985794, 0.36631470918655396]


def test_starts_follow_the_published_ranges():
    spec = NetworkSpec.mlp([2, 64, 64, 3])
    batch = initial_weights(spec, torch.stack([torch.arange(50), torch.zeros(50, dtype=torch.int64)], 1))
    features = WeightSpaceFeatures.from_vectors(spec, batch)
    limits = [(1 / 2, 2**-0.5), ((6 / 64) ** 0.5 / 30, 1 / 8), ((6 / 64) ** 0.5 / 30, 1 / 8)]
    for (weight_limit, bias_limit), weight, bias in zip(limits, features.weights, features.biases, strict=True):
        for limit, values in ((weight_limit, weight), (bias_limit, bias)):
            assert 0.95 * limit < values.abs().max() <= limit
            assert values.mean().abs() < 0.15 * limit
            assert values.std().item() == pytest.approx(limit / 3**0.5, rel=0.1)
    spec = NetworkSpec.siren([2, 64, 64, 3], convention="dws")
    zeros = WeightSpaceFeatures.from_vectors(spec, initial_weights(spec, items((0, 0))))
    assert all(bool((b == 0).all()) for b in zeros.biases)


def test_conventions_convert_exactly_and_mean_what_they_say():
    sirens = WeightSpaceFeatures.from_modules([Siren([2, 8, 8, 3]) for _ in range(3)])
    other = convert_convention(sirens, "dws")
    assert torch.equal(convert_convention(other, "paper").tensor, sirens.tensor)
    assert convert_convention(other, "dws") is other
    # As its authors evaluate it: column first, plus 0.5, a pixel in [0, 1].
    grid = image_grid(5, 7)
    pixels = torch.stack([m(grid.flip(1)) for m in other.to_modules(Siren([2, 8, 8, 3]))]) + 0.5
    torch.testing.assert_close(2 * pixels - 1, render(sirens, grid), atol=1e-6, rtol=1e-5)


def test_mistakes_are_explained():
    cnn = NetworkSpec.cnn([1, 2], (3, 3))
    with pytest.raises(ValueError, match="dense layers with biases"):
        initial_weights(cnn, items((0, 0)))
    with pytest.raises(ValueError, match="one of paper, dws, but got 'nfn'"):
        convert_convention(WeightSpaceFeatures.from_modules([Siren()]), "nfn")
