import pytest
import reference
import torch
from hypothesis import given, settings, strategies as st

from neuralfunctionals import NetworkSpec, NeuronPermutation, WeightSpaceFeatures
from neuralfunctionals.layers import NeuronStates
from neuralfunctionals.testing import random_features
from neuralfunctionals.weight_space import Activation
from strategies import network_specs

symmetries = st.sampled_from(["NP", "HNP"])


def make(spec, symmetry="HNP", **options):
    layer = NeuronStates(spec, 2, 4, symmetry=symmetry, **options)
    for part in layer.read_network.values():  # they start at zero, which would hide what they read
        torch.nn.init.normal_(part.weight)
    return layer.double()


@settings(max_examples=25)
@given(
    spec=network_specs(),
    symmetry=symmetries,
    num_gates=st.sampled_from([1, 2]),
    num_rounds=st.integers(0, 2),
    omega=st.sampled_from([None, 3.0]),
    num_frequencies=st.sampled_from([0, 3]),
)
def test_equals_the_loop_over_neurons(spec, symmetry, num_gates, num_rounds, omega, num_frequencies):
    spec = spec if omega is None else spec.with_activation(Activation("sine", omega))
    layer = make(spec, symmetry, num_gates=num_gates, num_rounds=num_rounds, num_frequencies=num_frequencies)
    features = random_features(spec, 2)
    states = layer(features)
    for network, (expected, whole) in enumerate(reference.neuron_states(layer, features)):
        torch.testing.assert_close(states.network[network], whole, rtol=0, atol=1e-10)
        assert sum(h.shape[1] for h in states.neurons.values()) == len(expected)
        for (i, j), value in expected.items():
            torch.testing.assert_close(states.neurons[i][network, j], value, rtol=0, atol=1e-10)


@settings(max_examples=15)
@given(spec=network_specs(), symmetry=symmetries)
def test_states_move_with_their_neurons(spec, symmetry):
    layer = make(spec, symmetry, num_rounds=2)
    features = random_features(spec, 2)
    permutation = NeuronPermutation.random(spec, symmetry=symmetry)
    before, after = layer(features), layer(permutation(features))
    torch.testing.assert_close(after.network, before.network)
    for i, h in before.neurons.items():
        torch.testing.assert_close(after.neurons[i][:, permutation.sigma[i]], h)


def test_a_weight_multiplies_the_state_behind_it():
    """What attention cannot do: exchanging two neurons' states matters by the weights that lead on from them."""
    spec = NetworkSpec.mlp([1, 2, 1], bias=True)
    layer = NeuronStates(spec, 1, 8, num_rounds=1, symmetry="NP").double()
    answers = {}
    states = {i: torch.randn(1, n, 8, dtype=torch.float64) for i, n in enumerate(spec.widths)}
    exchanged = {**states, 1: states[1].flip(1)}
    for name, outgoing in (("alike", [1.0, 1.0]), ("unlike", [1.0, 2.0])):
        weights = [torch.ones(1, 2, 1, 1).double(), torch.tensor(outgoing).double().view(1, 1, 2, 1)]
        gates = layer.gates(weights)
        answers[name] = [layer.rounds[0](h, gates)[2] for h in (states, exchanged)]
    torch.testing.assert_close(*answers["alike"])
    assert (answers["unlike"][0] - answers["unlike"][1]).abs().max() > 1e-3


def test_states_do_not_depend_on_the_scale_of_a_group_but_the_network_vector_does():
    spec = NetworkSpec.mlp([2, 3, 3, 1])
    layer = NeuronStates(spec, 1, 8).double()  # the network vector is not read yet
    features = random_features(spec)
    scaled = WeightSpaceFeatures.from_tensors(spec, [3 * w for w in features.weights], list(features.biases))
    before, after = layer(features), layer(scaled)
    for i, h in before.neurons.items():
        torch.testing.assert_close(after.neurons[i], h)
    assert (after.network - before.network).abs().max() > 1


def test_states_keep_their_scale_over_wide_layers():
    spec = NetworkSpec.mlp([2, 256, 256, 1])
    states = NeuronStates(spec, 8, 8, num_rounds=4)(random_features(spec, 8, dtype=torch.float32))
    assert all(0.05 < h.std() < 10 for h in states.neurons.values())


def test_states_start_without_what_is_read_of_the_whole_network():
    layer = NeuronStates(NetworkSpec.mlp([2, 3, 3, 1]), 2, 4)
    assert not any(part(torch.ones(layer.network_channels)).any() for part in layer.read_network.values())


def test_gates_that_do_not_divide_the_channels_are_refused():
    with pytest.raises(ValueError, match="6 channels and 4 gates"):
        NeuronStates(NetworkSpec.mlp([2, 3, 1]), 6, 6, num_gates=4)
