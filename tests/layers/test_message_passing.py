import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neuralfunctionals import NetworkSpec, WeightSpaceFeatures
from neuralfunctionals.layers import Block, MessagePassing
from neuralfunctionals.testing import assert_minimal, random_features
from strategies import network_specs

symmetries = st.sampled_from(["NP", "HNP"])


@settings(max_examples=25)
@given(spec=network_specs(), symmetry=symmetries, num_gates=st.sampled_from([1, 2]), num_rounds=st.integers(0, 3))
def test_equals_the_loop_over_neurons(spec, symmetry, num_gates, num_rounds):
    layer = MessagePassing(spec, 2, 3, channels=4, num_gates=num_gates, num_rounds=num_rounds, symmetry=symmetry)
    features = random_features(spec, 2)
    expected = reference.message_passing(layer.double(), features)
    torch.testing.assert_close(layer(features).tensor, expected, rtol=0, atol=1e-10)


@settings(max_examples=25)
@given(spec=network_specs(), symmetry=symmetries)
def test_minimal(spec, symmetry):
    assert_minimal(MessagePassing(spec, 3, 2, symmetry=symmetry))


def test_a_weight_multiplies_the_state_behind_it():
    """What attention cannot do: exchanging the states of two neurons matters by the weights that lead on from them."""
    spec = NetworkSpec.mlp([1, 2, 1], bias=True)
    layer = MessagePassing(spec, 1, 1, channels=8, num_rounds=1).double()
    states = layer.read(random_features(spec, batch=1))
    exchanged = [states[0], states[1].flip(1), states[2]]
    answers = {}
    for name, outgoing in (("alike", [1.0, 1.0]), ("unlike", [1.0, 2.0])):
        weights = [torch.ones(1, 2, 1, 1).double(), torch.tensor(outgoing).double().view(1, 1, 2, 1)]
        biases = [torch.zeros(1, n, 1).double() for n in (2, 1)]
        gates = layer.gates(WeightSpaceFeatures.from_tensors(spec, weights, biases))
        answers[name] = [layer.rounds[0](h, gates)[2] for h in (states, exchanged)]
    torch.testing.assert_close(*answers["alike"])
    assert (answers["unlike"][0] - answers["unlike"][1]).abs().max() > 1e-3


def test_states_keep_their_scale_over_wide_layers():
    spec = NetworkSpec.mlp([2, 256, 256, 1])
    layer = MessagePassing(spec, 8, 8, num_rounds=4)
    deviation = layer(random_features(spec, 8, dtype=torch.float32)).tensor.std()
    assert 0.05 < deviation < 5


def test_the_blocks_term_stands_beside_the_attention():
    spec = NetworkSpec.mlp([2, 3, 1])
    block = Block(spec, 4, 6, 2, message_passing=True).double()
    x = random_features(spec, 4)
    normed = block.attention_norm(x)
    z = x + block.attention(normed) + block.message_passing(normed)
    torch.testing.assert_close(block(x).tensor, (z + block.feed_forward(block.feed_forward_norm(z))).tensor)


def test_gates_that_do_not_divide_the_channels_are_refused():
    with pytest.raises(ValueError, match="6 channels and 4 gates"):
        MessagePassing(NetworkSpec.mlp([2, 3, 1]), 6, 6, num_gates=4)
