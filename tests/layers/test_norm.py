import torch
import torch.nn.functional as F
from hypothesis import given, strategies as st

from neuralfunctionals import NetworkSpec
from neuralfunctionals.layers import LayerNorm, OutputScale, Standardize
from neuralfunctionals.testing import random_features
from strategies import network_specs


@given(spec=network_specs())
def test_standardized_groups_have_mean_0_and_std_1_in_each_channel(spec):
    features = random_features(spec, 3, batch=5)
    for n, group in enumerate(spec.groups, start=1):
        features.group(group).mul_(10.0**n).add_(torch.tensor([0.0, 1.0, -100.0]))
    layer = Standardize(spec, 3).double()
    assert torch.equal(layer(features).tensor, features.tensor)  # nothing is estimated yet
    layer.estimate(features)
    for group in spec.groups:
        values = layer(features).group(group).flatten(0, -2)
        torch.testing.assert_close(values.mean(0), torch.zeros(3).double())
        torch.testing.assert_close(values.std(0, correction=0), torch.ones(3).double())


def test_constant_groups_are_standardized_to_zero():
    spec = NetworkSpec.mlp([2, 3, 1])
    features = random_features(spec, batch=4).map(torch.ones_like)
    layer = Standardize(spec).double()
    layer.estimate(features)
    assert not layer(features).tensor.any()


@given(spec=network_specs(), per_layer=st.booleans())
def test_each_entry_is_normalised_over_its_channels_with_the_parameters_of_its_group(spec, per_layer):
    layer = LayerNorm(spec, 4, per_layer=per_layer).double()
    assert len(layer.scale) == len(layer.shift) == (len(spec.groups) if per_layer else 1)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    features = random_features(spec, 4)
    for n, group in enumerate(spec.groups):
        row = n if per_layer else 0
        expected = F.layer_norm(features.group(group), (4,)) * layer.scale[row] + layer.shift[row]
        torch.testing.assert_close(layer(features).group(group), expected)


@given(spec=network_specs())
def test_output_scales_are_one_number_for_each_group(spec):
    layer = OutputScale(spec, 2, initial=0.5).double()
    features = random_features(spec, 2)
    assert torch.equal(layer(features).tensor, 0.5 * features.tensor)
    torch.nn.init.normal_(layer.scale)
    for group, scale in zip(spec.groups, layer.scale, strict=True):
        torch.testing.assert_close(layer(features).group(group), scale * features.group(group))
