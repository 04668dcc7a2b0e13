"""The checker must accept right layers and reject broken ones."""

import pytest
import torch
from torch import nn

from neuralfunctionals import NetworkSpec, WeightSpaceFeatures, layers
from neuralfunctionals.testing import assert_equivariant, assert_invariant, assert_minimal, random_features

SPEC = NetworkSpec.mlp([3, 4, 4, 2])


class Layer(nn.Module):
    """A user's own layer: it knows its networks, channels and symmetry."""

    def __init__(self, spec=SPEC, symmetry="NP"):
        super().__init__()
        self.spec, self.symmetry = spec, symmetry
        self.in_channels = self.out_channels = 2

    def edit(self, features, i, change):
        """Features whose weights of layer i are changed by a function."""
        weights = list(features.weights)
        weights[i] = change(weights[i])
        return WeightSpaceFeatures.from_tensors(self.spec, weights, features.biases)


class MarksOneNeuron(Layer):
    def forward(self, features):
        return self.edit(features, 1, lambda w: torch.cat([w[:, :1] + 1, w[:, 1:]], dim=1))


class Transposes(Layer):
    """Wrong although it keeps the shape: layer 2 is square."""

    def forward(self, features):
        return self.edit(features, 1, lambda w: w.transpose(1, 2))


class SumsRowsAlongTheWrongAxis(Layer):
    def forward(self, features):
        rows = features.weights[2].mean(1)  # over output neurons: one value for each neuron of layer 2
        return self.edit(features, 1, lambda w: w + rows[:, None])  # added to columns, which are neurons of layer 1


class Numbers(Layer):
    """Adds the place of each entry: breaks every symmetry."""

    def forward(self, features):
        return features + torch.arange(self.spec.num_entries, dtype=features.tensor.dtype)[:, None]


class MarksInputs(Layer):
    def forward(self, features):
        return self.edit(features, 0, lambda w: w + torch.arange(3, dtype=w.dtype)[:, None])


class ReadsOneEntry(Layer):
    def forward(self, features):
        return features.weights[1][:, 0, 0]


class GivesNan(Layer):
    def forward(self, features):
        return features * float("nan")


@pytest.mark.parametrize("broken", [MarksOneNeuron, Transposes, SumsRowsAlongTheWrongAxis, Numbers, GivesNan])
def test_broken_layers_are_rejected(broken):
    for symmetry in ("NP", "HNP"):
        with pytest.raises(AssertionError, match=f"{broken.__name__} is not {symmetry}-equivariant"):
            assert_equivariant(broken(symmetry=symmetry))


def test_the_symmetry_claimed_is_the_one_checked():
    with pytest.raises(AssertionError, match="not NP-equivariant.* most in the weight of layer 1"):
        assert_equivariant(MarksInputs(symmetry="NP"))
    assert_equivariant(MarksInputs(symmetry="HNP"))


def test_invariance():
    assert_invariant(layers.NPPool(SPEC, 2))
    with pytest.raises(AssertionError, match="ReadsOneEntry is not NP-invariant"):
        assert_invariant(ReadsOneEntry())
    with pytest.raises(AssertionError, match="not NP-invariant"):
        assert_invariant(layers.HNPPool(SPEC, 2), symmetry="NP")


def test_the_right_check_is_named_for_the_other_kind_of_output():
    with pytest.raises(AssertionError, match="use assert_invariant"):
        assert_equivariant(layers.NPPool(SPEC, 2))
    with pytest.raises(AssertionError, match="use assert_equivariant"):
        assert_invariant(layers.LayerNorm(SPEC, 2))


class NaiveSelfAttention(Layer):
    """Attention between all entries: equivariant to every permutation of entries."""

    def forward(self, features):
        x = features.tensor
        return features.with_tensor(nn.functional.scaled_dot_product_attention(x, x, x))


class RowsAndColumnsApart(Layer):
    """Row and column means of each layer, but nothing between layers: adjacent permutations may decouple."""

    def __init__(self, spec=SPEC, symmetry="NP"):
        super().__init__(spec, symmetry)
        self.encoding = layers.LayerEncoding(spec, 2)

    def forward(self, features):
        features = self.encoding(features)
        weights = [w + w.mean(1, keepdim=True) - w.mean(2, keepdim=True) ** 2 for w in features.weights]
        return WeightSpaceFeatures.from_tensors(self.spec, weights, features.biases)


class ForgetsBiases(Layer):
    """As it should be, but the biases stand apart from the neurons they belong to."""

    def __init__(self):
        super().__init__()
        self.linear = layers.NPLinear(SPEC, 2, 2)

    def forward(self, features):
        without = WeightSpaceFeatures.from_tensors(self.spec, features.weights, [0 * b for b in features.biases])
        return WeightSpaceFeatures.from_tensors(self.spec, self.linear(without).weights, features.biases)


SQUARE = NetworkSpec.mlp([3, 3, 3])
NO_BIASES = NetworkSpec.mlp([2, 3, 2], bias=False)


@pytest.mark.parametrize("spec", [SPEC, SQUARE, NO_BIASES], ids=str)
def test_minimality_rejects_layers_with_too_many_symmetries(spec):
    first = "a weight of layer 1 changing places with one of layer 2"
    attention = layers.WeightSpaceSelfAttention(spec, 2, 1)
    for module, reason in [
        (NaiveSelfAttention(spec), first),
        (attention, first),
        (layers.Pointwise(spec, 2, 2), "changing places without their columns"),
        (RowsAndColumnsApart(spec), "neurons of layer 1 permuted in the weight of layer 1, alone"),
    ]:
        assert_equivariant(module)
        with pytest.raises(AssertionError, match=f"not minimal.*{reason}"):
            assert_minimal(module)
    assert_minimal(nn.Sequential(layers.LayerEncoding(spec, 2), attention))
    assert_minimal(layers.NPLinear(spec, 2, 2))
    assert_minimal(layers.HNPLinear(spec, 2, 2))


def test_minimality_covers_biases_and_fixed_neurons():
    with pytest.raises(AssertionError, match="neurons of layer 1 permuted in the .* alone"):
        assert_minimal(nn.Sequential(layers.LayerEncoding(SPEC, 2), ForgetsBiases()))
    with pytest.raises(AssertionError, match="though they are fixed"):
        assert_minimal(layers.NPLinear(SPEC, 2, 2), symmetry="HNP")


def test_reversing_a_network_without_biases_is_a_symmetry_of_attention_without_layer_encoding():
    """Why the layer encoding is needed: W1 and W2 may change places, transposed."""
    attention = layers.WeightSpaceSelfAttention(NO_BIASES, 4, 2).double()
    features = random_features(NO_BIASES, 4)

    def reverse(x):
        first, second = (w.transpose(1, 2) for w in x.weights)
        return WeightSpaceFeatures.from_tensors(NO_BIASES, [second, first], x.biases)

    torch.testing.assert_close(attention(reverse(features)).tensor, reverse(attention(features)).tensor)
    encoded = nn.Sequential(layers.LayerEncoding(NO_BIASES, 4), attention).double()
    assert not torch.allclose(encoded(reverse(features)).tensor, reverse(encoded(features)).tensor)


def test_modules_without_description_need_it_as_arguments():
    class Bare(nn.Module):
        def forward(self, features):
            return features

    with pytest.raises(ValueError, match="to have attributes spec, in_channels and symmetry"):
        assert_equivariant(Bare())
    with pytest.raises(ValueError, match="Bare .* but it has no in_channels, symmetry. Set them, or pass them"):
        assert_equivariant(Bare(), spec=SPEC)
    assert_equivariant(Bare(), spec=SPEC, in_channels=2, symmetry="NP")


@pytest.mark.bad_input
def test_minimality_is_only_defined_for_permutations():
    layer = layers.NPLinear(SPEC, 2, 2)
    with pytest.raises(ValueError, match="minimality is only defined for permutations"):
        assert_minimal(layer, symmetry=SPEC.symmetry)


def test_checks_leave_the_module_as_it_was():
    layer = layers.FeedForward(SPEC, 4, 6, dropout=0.5)
    layer.mlps[0].eval()
    modes = [m.training for m in layer.modules()]
    assert_equivariant(layer)
    assert_minimal(nn.Sequential(layers.LayerEncoding(SPEC, 4), layers.WeightSpaceSelfAttention(SPEC, 4, 2)))
    assert [m.training for m in layer.modules()] == modes
    assert next(layer.parameters()).dtype == torch.float32
