import pytest
import reference
import torch
from hypothesis import given, settings, strategies as st

from neuralfunctionals import NetworkSpec
from neuralfunctionals.layers import WeightSpaceCrossAttention
from neuralfunctionals.testing import random_features
from strategies import mlp_specs


@settings(max_examples=25)
@given(spec=mlp_specs(biases=st.booleans()), num_heads=st.sampled_from([1, 2, 3]))
def test_equals_the_loop_of_the_paper(spec, num_heads):
    layer = WeightSpaceCrossAttention(spec, 4, 6, num_latents=3, num_heads=num_heads).double()
    features = random_features(spec, 4)
    torch.testing.assert_close(layer(features), reference.cross_attention(layer, features), rtol=0, atol=1e-10)


def test_heads_that_do_not_divide_the_latent_channels_are_refused():
    with pytest.raises(ValueError, match="6 and 4 heads"):
        WeightSpaceCrossAttention(NetworkSpec.mlp([2, 1]), 4, 6, 3, num_heads=4)
