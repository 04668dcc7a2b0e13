import math

import torch
from hypothesis import given

from neuralfunctionals import NetworkSpec
from neuralfunctionals.layers import FourierFeatures, InputOutputEncoding, LayerEncoding, SinusoidalEncoding
from neuralfunctionals.testing import random_features
from strategies import network_specs


@given(spec=network_specs())
def test_layer_encoding_adds_one_vector_to_each_group(spec):
    layer = LayerEncoding(spec, 3).double()
    features = random_features(spec, 3)
    added = layer(features) - features
    for n, group in enumerate(spec.groups):
        torch.testing.assert_close(added.group(group), layer.encoding[n].expand_as(added.group(group)))


@given(spec=network_specs())
def test_input_output_encoding_adds_the_vectors_of_the_end_neurons(spec):
    layer = InputOutputEncoding(spec, 3).double()
    features = random_features(spec, 3)
    added = layer(features) - features
    last = spec.num_layers - 1
    for i, (weight, bias) in enumerate(zip(added.weights, added.biases, strict=True)):
        for j in range(weight.shape[1]):
            ends = layer.output_encoding[j] if i == last else torch.zeros(3).double()
            if bias.shape[1]:
                torch.testing.assert_close(bias[:, j], ends.expand_as(bias[:, j]))
            for k in range(weight.shape[2]):
                both = ends + (layer.input_encoding[k] if i == 0 else 0)
                torch.testing.assert_close(weight[:, j, k], both.expand_as(weight[:, j, k]))


def test_sinusoidal_encoding_of_places():
    spec = NetworkSpec.mlp([3, 4, 2])
    layer = SinusoidalEncoding(spec, 1, max_frequency=8.0, num_bands=2)
    assert layer.out_channels == 1 + 5

    def encode(place):
        angles = [math.pi * f * place for f in (1.0, 4.0)]
        return torch.tensor([*map(math.sin, angles), *map(math.cos, angles), place])

    features = random_features(spec, dtype=torch.float32)
    encoded = layer(features)
    torch.testing.assert_close(encoded.tensor[..., :1], features.tensor)
    torch.testing.assert_close(encoded.weights[0][0, 3, 1, 1:], encode(-1.0) + encode(0.0))  # layer 1, middle input
    torch.testing.assert_close(encoded.biases[1][0, 1, 1:], encode(1.0) + encode(1.0))  # layer 2, last output
    torch.testing.assert_close(encoded.biases[0][0, 2, 1:], encode(-1.0))


def test_fourier_features_are_sines_and_cosines_of_fixed_frequencies():
    spec = NetworkSpec.mlp([2, 3, 1])
    layer = FourierFeatures(spec, 2, 5, scale=3.0, generator=torch.Generator().manual_seed(0))
    assert not list(layer.parameters())
    features = random_features(spec, 2, dtype=torch.float32)
    angles = 2 * math.pi * features.tensor @ layer.frequencies
    torch.testing.assert_close(layer(features).tensor, torch.cat([angles.sin(), angles.cos()], -1), atol=1e-4, rtol=0)
    many = FourierFeatures(spec, 1, 10_000, scale=3.0, generator=torch.Generator().manual_seed(0))
    assert abs(many.frequencies.std() - 3) < 0.1
