import pytest
import torch
from architectures import LeNet, mlp
from hypothesis import given, strategies as st
from torch import nn

from neuralfunctionals import NetworkSpec, NeuronPermutation, WeightSpaceFeatures, canonicalize, functional_call
from neuralfunctionals.testing import assert_preserves, random_features
from neuralfunctionals.weight_space import ScaleSymmetry, SineSymmetry

seeds = st.integers(0, 1000)
SPECS = {
    "tanh": NetworkSpec.mlp([2, 5, 4, 3], activation="tanh"),
    "relu": NetworkSpec.mlp([2, 5, 4, 3], activation="relu"),
    "gelu": NetworkSpec.mlp([2, 5, 4, 3], activation="gelu"),
    "no bias": NetworkSpec.mlp([2, 5, 4, 3], activation="tanh", bias=False),
    "sine": NetworkSpec.siren([2, 5, 4, 3], omega=3.0),
    "cnn": NetworkSpec.cnn([1, 3, 4], (3, 3), [5, 2], activation="relu", stride=1, padding=1, pooling="max"),
    "tanh cnn": NetworkSpec.cnn([1, 3, 4], (3, 3), [5, 2], activation="tanh", stride=2, padding=0, pooling="mean"),
}
MEMBERS = {
    "tanh": {"signs"},
    "relu": {"scales"},
    "gelu": set(),
    "no bias": {"signs"},
    "sine": {"signs", "phases"},
    "cnn": {"scales"},
    "tanh cnn": {"signs"},
}


def inputs_of(spec):
    generator = torch.Generator().manual_seed(0)
    size = (3, 1, 7, 7) if spec.layers[0].kernel else (6, 2)
    return torch.randn(size, generator=generator, dtype=torch.float64)


def close(a, b, tolerance=1e-9):
    torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", SPECS)
def test_elements_keep_the_function(name):
    spec = SPECS[name]
    assert set(spec.symmetry.members) == {"permutations"} | MEMBERS[name]
    assert_preserves(spec.symmetry, spec, inputs_of(spec))


@pytest.mark.parametrize("name", SPECS)
@given(seed=seeds, batch=st.sampled_from([None, 2]))
def test_group_laws(name, seed, batch):
    spec = SPECS[name]
    generator = torch.Generator().manual_seed(seed)
    g, h = (spec.symmetry.sample(batch=batch, generator=generator) for _ in range(2))
    x, d = random_features(spec, seed=seed), random_features(spec, seed=seed + 1)
    close((g @ h)(x).tensor, g(h(x)).tensor)
    close(g.inverse()(g(x)).tensor, x.tensor)
    close((g @ g.inverse())(x).tensor, x.tensor)
    close(g(x + d).tensor, (g(x) + g.on_differences(d)).tensor)
    close(spec.symmetry.identity()(x).tensor, x.tensor, 0)
    p = NeuronPermutation.random(spec, "HNP", generator)
    close((p @ g)(x).tensor, p(g(x)).tensor)
    close((g @ p)(x).tensor, g(p(x)).tensor)


@pytest.mark.parametrize("name", SPECS)
@given(seed=seeds)
def test_canonical_forms_of_twins_are_equal_up_to_permutation(name, seed):
    spec = SPECS[name]
    x = random_features(spec, seed=seed)
    element = spec.symmetry.sample(batch=2, generator=torch.Generator().manual_seed(seed))
    permutation = getattr(element, "permutation", element)
    form, applied = canonicalize(x)
    twin, _ = canonicalize(element(x))
    close(twin.tensor, permutation(form).tensor)
    close(applied.inverse()(form).tensor, x.tensor)
    close(functional_call(form, inputs_of(spec)), functional_call(x, inputs_of(spec)))
    close(canonicalize(form)[0].tensor, form.tensor)


def test_scales_act_on_each_network_of_a_batch():
    spec = SPECS["relu"]
    x = random_features(spec)
    factors = torch.tensor([[2.0], [0.5]], dtype=torch.float64).expand(2, 9)
    y = ScaleSymmetry(spec, factors)(x)
    close(y.weights[0], x.weights[0] * factors[:, :1, None, None])
    close(y.biases[2], x.biases[2], 0)
    with pytest.raises(ValueError, match="elements for 2 networks, but there are 1"):
        ScaleSymmetry(spec, factors)(x[0])
    with pytest.raises(ValueError, match="Expected factors of shape"):
        ScaleSymmetry(spec, factors[:, :3])


def test_a_symmetry_of_another_activation_is_noticed():
    with pytest.raises(AssertionError, match="do not preserve the function"):
        assert_preserves(SPECS["relu"].symmetry, SPECS["tanh"])
    wrong = NetworkSpec.from_module(mlp(nn.Tanh())).with_activation("relu")
    with pytest.raises(AssertionError, match="do not preserve the function of Sequential"):
        assert_preserves(wrong.symmetry, mlp(nn.Tanh()), torch.randn(4, 3))


def test_modules_are_checked_too():
    module = mlp(nn.ReLU())
    x = torch.randn(4, 3)
    spec = NetworkSpec.from_module(module, (x,))
    assert "scales" in spec.symmetry.members
    with pytest.raises(ValueError, match="Expected the inputs"):
        assert_preserves(spec.symmetry, module)
    assert_preserves(spec.symmetry, module, (x,))
    lenet, image = LeNet(), torch.randn(2, 1, 16, 16)
    assert_preserves(NetworkSpec.from_module(lenet, image).symmetry, lenet, image)


def test_the_contract_of_reading_and_writing_back():
    module, x = mlp(nn.Tanh()).double(), torch.randn(4, 3, dtype=torch.float64)
    spec = NetworkSpec.from_module(module, (x,))
    features = WeightSpaceFeatures.from_modules([module], spec=spec)
    element = spec.symmetry.sample(generator=torch.Generator().manual_seed(1))
    twin = element(features).to_modules(module)[0]
    assert twin[0].weight.dtype == torch.float64
    assert not torch.equal(twin[0].weight, module[0].weight)
    close(twin(x), module(x))


def test_canonical_form_of_unknown_networks_is_that_of_sines():
    spec = NetworkSpec.mlp([2, 4, 1])
    x = random_features(spec)
    form, _ = canonicalize(x, omega=3.0)
    known = WeightSpaceFeatures(NetworkSpec.siren([2, 4, 1], omega=3.0), x.tensor)
    close(canonicalize(known)[0].tensor, form.tensor, 0)
    with pytest.raises(ValueError, match="Expected networks with a sine of frequency 4, but got the activation sine"):
        canonicalize(known, omega=4.0)
    permuted = NeuronPermutation.random(spec)(x)
    close(canonicalize(permuted, omega=3.0)[0].tensor.sort(1).values, form.tensor.sort(1).values)


@pytest.mark.parametrize("create", [SineSymmetry.random, SineSymmetry.identity])
def test_signs_and_phases_have_the_frequency_of_the_spec(create):
    assert create(NetworkSpec.siren([2, 4, 1], omega=7.0)).omega == 7.0
    assert create(NetworkSpec.mlp([2, 4, 1]), 5.0).omega == 5.0
    for spec in (NetworkSpec.siren([2, 4, 1], omega=7.0), NetworkSpec.mlp([2, 4, 1], "tanh")):
        with pytest.raises(ValueError, match=f"sine of frequency 5, but got the activation {spec.activation}"):
            create(spec, 5.0)
