import torch
from hypothesis import given

from neuralfunctionals import NetworkSpec
from neuralfunctionals.layers import HNPPool, NPPool, StatFeatures
from neuralfunctionals.testing import random_features
from strategies import network_specs


@given(spec=network_specs())
def test_np_pool_is_the_mean_of_each_array_at_each_kernel_position(spec):
    features = random_features(spec, 3)
    expected = [features.group(g).flatten(1, len(g.axes)).mean(1).flatten(1) for g in spec.groups]
    torch.testing.assert_close(NPPool(spec, 3)(features), torch.cat(expected, -1))


def test_hnp_pool_keeps_input_and_output_neurons():
    spec = NetworkSpec.cnn([1, 16, 16, 16], (3, 3), dense=[10])
    pool = HNPPool(spec, 2)
    assert pool.out_channels == 50 * 2
    features = random_features(spec, 2)
    pooled = pool(features)
    torch.testing.assert_close(pooled[:, : 9 * 2], features.weights[0].mean(1).flatten(1))
    torch.testing.assert_close(pooled[:, -10 * 2 :], features.biases[-1].flatten(1))


def test_statistics_of_weights():
    spec = NetworkSpec.mlp([2, 5, 1])
    features = random_features(spec)
    statistics = StatFeatures(spec)(features).view(2, 4, 7)
    weights = features.weights[0].flatten(1)
    torch.testing.assert_close(statistics[:, 0, 0], weights.mean(1))
    torch.testing.assert_close(statistics[:, 0, 1], weights.var(1, correction=0))
    sorted_biases = features.biases[0][..., 0].sort(1).values  # five values: the quantiles are the values themselves
    torch.testing.assert_close(statistics[:, 1, 2:], sorted_biases)
    assert statistics.isfinite().all()  # a single bias has variance 0
