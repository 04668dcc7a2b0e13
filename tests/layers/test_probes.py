import pytest
import torch
from hypothesis import given, settings, strategies as st

from neuralfunctionals import NetworkSpec, NeuronPermutation
from neuralfunctionals.inr import render
from neuralfunctionals.layers import Probes
from neuralfunctionals.testing import random_features
from neuralfunctionals.weight_space import Activation

widths = st.lists(st.integers(1, 4), min_size=2, max_size=5)


@settings(max_examples=20)
@given(widths=widths, derivatives=st.booleans())
def test_equals_single_networks_run_neuron_by_neuron(widths, derivatives):
    spec = NetworkSpec.mlp(widths).with_activation(Activation("sine", 2.0))
    probes = Probes(spec, 5, derivatives=derivatives).double()
    networks = 0.3 * random_features(spec, batch=2)
    values = probes(networks)
    torch.testing.assert_close(values.outputs, render(networks, probes.points).flatten(1))
    for number in range(2):
        weights = [w[number, ..., 0] for w in networks.weights]
        biases = [b[number, ..., 0] for b in networks.biases]
        for p, point in enumerate(probes.points):
            arguments, x = [], point.detach()
            for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
                arguments.append((2.0 * (weight @ x + bias)).detach().requires_grad_())
                x = torch.sin(arguments[-1])
            for layer, z in enumerate(arguments, 1):
                found = values.neurons[layer][number]
                torch.testing.assert_close(found[:, p], z.sin())
                torch.testing.assert_close(found[:, 5 + p], z.cos())
                if derivatives:
                    for o in range(widths[-1]):
                        run = z
                        for weight, bias in zip(weights[layer:-1], biases[layer:-1], strict=True):
                            run = 2.0 * (weight @ torch.sin(run) + bias)
                        output = (weights[-1] @ torch.sin(run) + biases[-1])[o]
                        (slope,) = torch.autograd.grad(output, z)
                        torch.testing.assert_close(found[:, 10 + o * 5 + p], slope)


@settings(max_examples=10)
@given(widths=widths)
def test_values_move_with_their_neurons(widths):
    spec = NetworkSpec.mlp(widths)
    probes = Probes(spec, 3, derivatives=True).double()
    networks = random_features(spec)
    permutation = NeuronPermutation.random(spec, symmetry="HNP")
    before, after = probes(networks), probes(permutation(networks))
    torch.testing.assert_close(after.outputs, before.outputs)
    assert before.outputs.shape[-1] == probes.output_channels
    for i, values in before.neurons.items():
        assert values.shape[-1] == probes.neuron_channels[i]
        torch.testing.assert_close(after.neurons[i][:, permutation.sigma[i]], values)


@pytest.mark.parametrize("count", [1, 10, 64, 128])
def test_points_start_spread_over_the_square_and_are_learned(count):
    probes = Probes(NetworkSpec.mlp([2, 3, 1]), count)
    assert probes.points.shape == (count, 2)
    assert len({tuple(p) for p in probes.points.tolist()}) == count
    assert probes.points.abs().max() < 1
    values = probes(random_features(probes.spec, dtype=torch.float32))
    values.outputs.sum().backward()
    assert probes.points.grad is not None
    assert probes.points.grad.abs().max() > 0


@pytest.mark.bad_input
def test_too_many_points_and_networks_that_cannot_be_run_are_refused():
    with pytest.raises(ValueError, match="1 to 128 probes, but got 784"):
        Probes(NetworkSpec.mlp([2, 3, 1]), 784)
    with pytest.raises(ValueError, match="Expected sine networks"):
        Probes(NetworkSpec.cnn([1, 2], (3, 3)), 4)
