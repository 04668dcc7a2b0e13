"""What every layer must do in both forms and precisions: keep its symmetry, give finite gradients, save and load."""

import copy
import warnings

import pytest
import torch
from hypothesis import given, settings, strategies as st

from neuralfunctionals import NetworkSpec, WeightSpaceFeatures, kernels, layers, native
from neuralfunctionals.testing import assert_equivariant, assert_invariant, random_features
from operators import operators
from strategies import network_specs

EQUIVARIANT = {
    "Pointwise": lambda spec: layers.Pointwise(spec, 16, 3),
    "NPLinear": lambda spec: layers.NPLinear(spec, 16, 3),
    "HNPLinear": lambda spec: layers.HNPLinear(spec, 16, 3),
    "DWSLinear": lambda spec: layers.DWSLinear(spec, 16, 3),
    "DWSLinear max": lambda spec: layers.DWSLinear(spec, 16, 3, reduction="max"),
    "LayerNorm": lambda spec: layers.LayerNorm(spec, 16),
    "LayerNorm shared": lambda spec: layers.LayerNorm(spec, 16, per_layer=False),
    "Standardize": lambda spec: layers.Standardize(spec, 16),
    "OutputScale": lambda spec: layers.OutputScale(spec, 16),
    "LayerEncoding": lambda spec: layers.LayerEncoding(spec, 16),
    "InputOutputEncoding": lambda spec: layers.InputOutputEncoding(spec, 16),
    "SinusoidalEncoding": lambda spec: layers.SinusoidalEncoding(spec, 16),
    "FourierFeatures": lambda spec: layers.FourierFeatures(spec, 16, 3, scale=0.3),
    "Project": lambda spec: layers.Project(spec, 16, 3),
    "Unproject": lambda spec: layers.Unproject(spec, 16, 3),
    "FeedForward": lambda spec: layers.FeedForward(spec, 16, 32),
    "FeedForward shared": lambda spec: layers.FeedForward(spec, 16, 32, mlp="shared"),
    "SelfAttention NP": lambda spec: layers.WeightSpaceSelfAttention(spec, 16, 4),
    "SelfAttention HNP": lambda spec: layers.WeightSpaceSelfAttention(spec, 16, 4, symmetry="HNP"),
    "SelfAttention full": lambda spec: layers.WeightSpaceSelfAttention(spec, 16, 4, global_term="full"),
    "Block NP": lambda spec: layers.Block(spec, 16, 32, 4),
    "Block HNP": lambda spec: layers.Block(spec, 16, 32, 4, symmetry="HNP", mlp="shared"),
}
INVARIANT = {
    "NPPool": lambda spec: layers.NPPool(spec, 16),
    "HNPPool": lambda spec: layers.HNPPool(spec, 16),
    "HNPPool max": lambda spec: layers.HNPPool(spec, 16, reduction="max"),
    "StatFeatures": lambda spec: layers.StatFeatures(spec, 16),
    "CrossAttention": lambda spec: layers.WeightSpaceCrossAttention(spec, 16, 6, 3, 2),
}
ALL = {**EQUIVARIANT, **INVARIANT}
COMPILED = {"Block NP", "Block HNP"}  # what at least one compiled operator has a part in
SPECS = [NetworkSpec.mlp([2, 3, 3, 1]), NetworkSpec.cnn([1, 3, 2], (2, 2), dense=[2])]


@pytest.fixture(params=["plain", "compiled"], autouse=True)
def form(request):
    if request.param == "compiled" and native.find_compiler() is None:
        pytest.skip("no C++ compiler here")
    # Many layers have one form only, and warn here.
    with warnings.catch_warnings(), kernels.use(request.param):
        warnings.filterwarnings("ignore", "Using the plain form of")
        yield request.param


def test_every_public_layer_is_checked_here():
    checked = {type(make(SPECS[0])).__name__ for make in ALL.values()}
    own_tests = {"ImageProbes", "NeuronStates", "Probes"}  # they give neither features nor a tensor
    assert checked | own_tests == set(layers.__all__)


@pytest.mark.parametrize("name", EQUIVARIANT)
@settings(max_examples=15)
@given(spec=network_specs(), seed=st.integers(0, 100))
def test_equivariant_in_both_precisions(name, spec, seed):
    layer = EQUIVARIANT[name](spec)
    assert_equivariant(layer, seed=seed, trials=2)
    assert_equivariant(layer.double(), seed=seed, trials=2)


@pytest.mark.parametrize("name", INVARIANT)
@settings(max_examples=15)
@given(spec=network_specs(), seed=st.integers(0, 100))
def test_invariant_in_both_precisions(name, spec, seed):
    layer = INVARIANT[name](spec)
    assert_invariant(layer.float(), seed=seed, trials=2)
    assert_invariant(layer.double(), seed=seed, trials=2)


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("name", ALL)
def test_gradients_are_finite_and_reach_every_parameter(name, spec):
    layer = ALL[name](spec).double()
    features = random_features(getattr(layer, "in_spec", spec), 16)
    features.tensor.requires_grad_()
    result = layer(features)
    output = result.tensor if isinstance(result, WeightSpaceFeatures) else result
    (output * torch.randn_like(output)).sum().backward()  # any loss but one that the layer keeps constant
    for label, tensor in (("features", features.tensor), *layer.named_parameters()):
        assert tensor.grad is not None, label
        assert tensor.grad.isfinite().all(), label
        assert tensor.grad.any(), label


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("name", ALL)
def test_single_precision_equals_double_precision(name, spec, form):
    layer = ALL[name](spec).float()
    features = random_features(getattr(layer, "in_spec", spec), 16, dtype=torch.float32)
    with operators() as called:
        found = values_and_gradients(layer, features)
    exact = values_and_gradients(layer.double(), features.with_tensor(features.tensor.double()))
    for mine, expected in zip(found, exact, strict=True):
        scale = max(1, expected.abs().max().item())
        torch.testing.assert_close(mine.double(), expected, rtol=1e-4, atol=1e-5 * scale)
    assert bool(called) == (name in COMPILED and form == "compiled")


def values_and_gradients(layer, features):
    features = features.with_tensor(features.tensor.clone().requires_grad_())
    result = layer(features)
    output = result.tensor if isinstance(result, WeightSpaceFeatures) else result
    return [output, *torch.autograd.grad(output.sin().sum(), [features.tensor, *layer.parameters()])]


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("name", ALL)
def test_state_dicts_and_copies_carry_the_whole_layer(name, spec):
    layer, other = ALL[name](spec).double(), ALL[name](spec).double()
    other.load_state_dict(layer.state_dict())
    features = random_features(getattr(layer, "in_spec", spec), 16)
    result, *again = (m(features) for m in (layer, other, copy.deepcopy(layer)))
    for same in again:
        if isinstance(result, WeightSpaceFeatures):
            assert torch.equal(same.tensor, result.tensor)
        else:
            assert torch.equal(same, result)


@pytest.mark.parametrize("name", ALL)
def test_describes_itself_and_refuses_other_networks(name):
    layer = ALL[name](SPECS[0])
    assert layer.spec == SPECS[0]
    assert layer.symmetry in ("NP", "HNP")
    assert layer.in_channels == 16
    assert layer.out_channels > 0
    if not name.startswith("Block"):  # a block's parts say it
        with pytest.raises(ValueError, match=r"expected networks .* but received"):
            layer.float()(random_features(NetworkSpec.mlp([5, 5]), 16, dtype=torch.float32))
