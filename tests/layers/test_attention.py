import pytest
import reference
import torch
from hypothesis import given, settings, strategies as st

from neuralfunctionals import NetworkSpec
from neuralfunctionals.layers import LayerEncoding, WeightSpaceSelfAttention
from neuralfunctionals.testing import assert_equivariant, assert_minimal, random_features
from strategies import mlp_specs, network_specs

symmetries = st.sampled_from(["NP", "HNP"])


@settings(max_examples=40)
@given(
    spec=mlp_specs(max_layers=3, biases=st.booleans()),
    symmetry=symmetries,
    global_term=st.sampled_from(["reduced", "full", "none"]),
    reduction=st.sampled_from(["mean", "sum"]),
    num_heads=st.sampled_from([1, 2]),
)
def test_equals_the_loop_of_the_appendix(spec, symmetry, global_term, reduction, num_heads):
    layer = WeightSpaceSelfAttention(
        spec, 4, num_heads, symmetry=symmetry, global_term=global_term, reduction=reduction
    ).double()
    features = random_features(spec, 4)
    expected = reference.self_attention(layer, features)
    torch.testing.assert_close(layer(features).tensor, expected, rtol=0, atol=1e-10)


@settings(max_examples=25)
@given(spec=mlp_specs(max_layers=3), global_term=st.sampled_from(["reduced", "full"]))
def test_each_term_alone_equals_its_loop(spec, global_term):
    """Only the whole is public: terms 1 and 2 by leaving out the third, the third as the difference."""
    layer = WeightSpaceSelfAttention(spec, 4, 2, global_term=global_term).double()
    features = random_features(spec, 4)
    whole = layer(features).tensor
    layer.global_term = "none"
    rows_and_columns = layer(features).tensor
    layer.global_term = global_term
    first, second, third = (reference.self_attention(layer, features, terms=(n,)) for n in (1, 2, 3))
    torch.testing.assert_close(rows_and_columns, first + second, rtol=0, atol=1e-10)
    torch.testing.assert_close(whole - rows_and_columns, third, rtol=0, atol=1e-10)
    # Biases take no part in term 1; with one layer alone, rows are all there is at the input neurons.
    for group in (g for g in spec.groups if g.kind == "bias"):
        assert first[:, group.start : group.stop].abs().max() == 0


@settings(max_examples=30)
@given(spec=network_specs(), symmetry=symmetries)
def test_minimal_with_layer_encoding(spec, symmetry):
    parts = LayerEncoding(spec, 4), WeightSpaceSelfAttention(spec, 4, 2, symmetry=symmetry)
    assert_minimal(torch.nn.Sequential(*parts))


def test_dropout_acts_on_the_attention_matrix_in_training_only():
    spec = NetworkSpec.mlp([2, 4, 1])
    layer = WeightSpaceSelfAttention(spec, 4, 2, dropout=0.5).double()
    features = random_features(spec, 4)
    assert not torch.equal(layer(features).tensor, layer(features).tensor)
    layer.eval()
    assert torch.equal(layer(features).tensor, layer(features).tensor)
    assert_equivariant(layer)


def test_wrong_arguments_are_refused_with_the_reason():
    spec = NetworkSpec.mlp([2, 3, 1])
    with pytest.raises(ValueError, match="10 channels and 4 heads"):
        WeightSpaceSelfAttention(spec, 10, 4)
    with pytest.raises(ValueError, match="global_term 'reduced', 'full' or 'none'"):
        WeightSpaceSelfAttention(spec, 4, 2, global_term="half")  # pyright: ignore
    with pytest.raises(ValueError, match="'NP' .* or 'HNP'"):
        WeightSpaceSelfAttention(spec, 4, 2, symmetry="PN")  # pyright: ignore
    with pytest.raises(
        ValueError, match="WeightSpaceSelfAttention expected networks 2->3, 3->1 but received 2->4, 4->1"
    ):
        WeightSpaceSelfAttention(spec, 4, 2)(random_features(NetworkSpec.mlp([2, 4, 1]), 4))
