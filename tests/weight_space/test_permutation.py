import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from neuralfunctionals import NetworkSpec, NeuronPermutation, WeightSpaceFeatures
from neuralfunctionals.testing import random_features
from strategies import mlp_specs, network_specs

symmetries = st.sampled_from(["NP", "HNP"])
seeds = st.integers(0, 1000)


def draw(spec, symmetry, seed):
    return NeuronPermutation.random(spec, symmetry, generator=torch.Generator().manual_seed(seed))


@given(spec=network_specs(), symmetry=symmetries, seed=seeds)
def test_group_laws(spec, symmetry, seed):
    x = random_features(spec, channels=2)
    p, q, r = (draw(spec, symmetry, seed + n) for n in range(3))
    assert torch.equal((p @ q)(x).tensor, p(q(x)).tensor)
    assert torch.equal(((p @ q) @ r)(x).tensor, (p @ (q @ r))(x).tensor)
    assert torch.equal(p.inverse()(p(x)).tensor, x.tensor)
    assert torch.equal(NeuronPermutation.identity(spec)(x).tensor, x.tensor)


@given(spec=mlp_specs(), seed=seeds)
def test_action_is_equation_1(spec, seed):
    x = random_features(spec, channels=2)
    p = draw(spec, "NP", seed)
    inverse = [{int(s): j for j, s in enumerate(sigma)} for sigma in p.sigma]
    moved = p(x)
    for i in range(1, spec.num_layers + 1):
        for j in range(spec.widths[i]):
            assert torch.equal(moved.biases[i - 1][:, j], x.biases[i - 1][:, inverse[i][j]])
            for k in range(spec.widths[i - 1]):
                source = x.weights[i - 1][:, inverse[i][j], inverse[i - 1][k]]
                assert torch.equal(moved.weights[i - 1][:, j, k], source)


@given(spec=network_specs(), seed=seeds)
def test_hidden_permutations_leave_input_and_output_in_place(spec, seed):
    p = draw(spec, "HNP", seed)
    for end in (0, -1):
        assert torch.equal(p.sigma[end], torch.arange(spec.widths[end]))


MODULES = {
    "mlp": (nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2)), (3,)),
    "cnn1d": (
        nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4, 3)),
        (2, 9),
    ),
    "cnn2d": (
        nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 5, (2, 3)), nn.GELU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2),
        ),
        (1, 12, 12),
    ),
    "cnn3d": (nn.Sequential(nn.Conv3d(1, 3, 2), nn.ReLU(), nn.Conv3d(3, 2, 2)), (1, 5, 5, 5)),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_permuting_hidden_neurons_keeps_the_function(name):
    module, shape = MODULES[name]
    features = WeightSpaceFeatures.from_modules([module])
    permutation = draw(features.spec, "HNP", seed=3)
    permuted = permutation(features)
    assert not torch.equal(permuted.tensor, features.tensor)
    x = torch.randn(7, *shape)
    torch.testing.assert_close(permuted.to_modules(module)[0](x), module(x))


def test_wrong_permutations_are_refused_with_the_reason():
    spec = NetworkSpec.mlp([2, 3, 1])
    with pytest.raises(ValueError, match=r"sizes \(2, 3, 1\), but got sizes \(3,\)"):
        NeuronPermutation(spec, (torch.arange(3),))
    with pytest.raises(ValueError, match="permutation of 0 .. 2 for layer 1"):
        NeuronPermutation(spec, (torch.arange(2), torch.tensor([0, 0, 1]), torch.arange(1)))
    other = NetworkSpec.mlp([2, 4, 1])
    with pytest.raises(ValueError, match="expected networks"):
        NeuronPermutation.random(spec)(random_features(other))
    with pytest.raises(ValueError, match="widths differ"):
        NeuronPermutation.random(spec) @ NeuronPermutation.random(other)
