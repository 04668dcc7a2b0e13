import pytest
import reference
import torch
from hypothesis import given, settings, strategies as st

from neuralfunctionals import NetworkSpec
from neuralfunctionals.layers import DWSLinear, HNPLinear, NPLinear, Pointwise
from neuralfunctionals.testing import assert_minimal, random_features
from strategies import network_specs


@settings(max_examples=25)
@given(spec=network_specs(), make=st.sampled_from([NPLinear, HNPLinear]))
def test_equals_the_loop_over_pairs_of_arrays(spec, make):
    layer = make(spec, 2, 3).double()
    features = random_features(spec, 2)
    expected = reference.equivariant_linear(layer, features)
    torch.testing.assert_close(layer(features).tensor, expected, rtol=0, atol=1e-10)


@settings(max_examples=25)
@given(spec=network_specs(), reduction=st.sampled_from(["mean", "sum", "max"]))
def test_dws_equals_the_averaged_loop_over_pairs_of_arrays(spec, reduction):
    layer = DWSLinear(spec, 2, 3, reduction=reduction).double()
    features = random_features(spec, 2)
    expected = reference.equivariant_linear(layer, features, average=True)
    torch.testing.assert_close(layer(features).tensor, expected, rtol=0, atol=1e-10)


@settings(max_examples=25)
@given(spec=network_specs(), make=st.sampled_from([NPLinear, HNPLinear, DWSLinear]))
def test_minimal(spec, make):
    assert_minimal(make(spec, 3, 2))


@given(spec=network_specs())
def test_pointwise_maps_each_entry_by_its_groups_own_matrix(spec):
    layer = Pointwise(spec, 2, 3).double()
    features = random_features(spec, 2)
    result = layer(features)
    for group, linear in zip(spec.groups, layer.maps, strict=True):
        torch.testing.assert_close(result.group(group), features.group(group) @ linear.weight.T + linear.bias)


def test_shared_pointwise_has_one_matrix():
    layer = Pointwise(NetworkSpec.mlp([2, 3, 1]), 4, 5, per_layer=False)
    assert sum(p.numel() for p in layer.parameters()) == 4 * 5 + 5


@pytest.mark.parametrize("make", [NPLinear, HNPLinear])
def test_outputs_of_fresh_layers_keep_the_scale_of_their_inputs(make):
    spec = NetworkSpec.mlp([2, 32, 32, 1])
    layer = make(spec, 64, 64)
    deviation = layer(random_features(spec, 64, batch=8, dtype=torch.float32)).tensor.std()
    assert 0.05 < deviation < 2


def test_dws_layers_start_as_their_authors_do():
    torch.manual_seed(0)
    layer = DWSLinear(NetworkSpec.mlp([2, 3, 1]), 64, 32)
    for linear in layer.entry_maps.values():
        fan_in, fan_out = linear.in_features, linear.out_features
        expected = (2 / (fan_in + fan_out) * 2 * fan_in / fan_out) ** 0.5
        assert abs(linear.weight.std().item() / expected - 1) < 0.1
    # All sums of arrays together: an average pair of arrays has this many of its rows and columns.
    pairs = len(layer.groups)
    fan_in, fan_out = layer.network_map.in_features / pairs, layer.network_map.out_features / pairs
    expected = (2 / (fan_in + fan_out) * 2 * fan_in / fan_out) ** 0.5
    assert abs(layer.network_map.weight.std().item() / expected - 1) < 0.05
    assert 0 < layer.network_map.bias.abs().max().item() <= 1e-4
