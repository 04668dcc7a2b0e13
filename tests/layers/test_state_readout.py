import torch
from hypothesis import given, settings, strategies as st

from neuralfunctionals import NetworkSpec
from neuralfunctionals.layers import NeuronStates
from neuralfunctionals.layers.state_readout import StateCrossAttention, StatePool, WriteEntries
from neuralfunctionals.testing import random_features
from strategies import network_specs

symmetries = st.sampled_from(["NP", "HNP"])


def make(spec, symmetry="HNP", **options):
    return NeuronStates(spec, 2, 4, symmetry=symmetry, **options).double()


@settings(max_examples=15)
@given(spec=network_specs(), symmetry=symmetries, rank=st.sampled_from([0, 3]))
def test_entries_get_maps_of_the_states_at_their_ends_and_their_product(spec, symmetry, rank):
    layer = make(spec, symmetry, num_rounds=1)
    write = (WriteEntries(layer, 2, rank=rank) if rank else WriteEntries(layer, 2)).double()
    states = layer(random_features(spec, 2, batch=1))
    written, factors = write(states), iter(write.factors)
    pooled = StatePool(layer)(states)
    for group, maps in zip(write.groups, write.maps, strict=True):
        ends = [states.neurons[axis][0] for axis in group.axes]
        found = group.fold_fixed(written.group(group.group))[0]
        if not ends:
            torch.testing.assert_close(found, maps[0](pooled)[0])
        elif len(ends) == 1:
            torch.testing.assert_close(found, maps[0](ends[0]))
        else:
            pair = next(factors) if rank else None
            for j, left in enumerate(ends[0]):
                for k, right in enumerate(ends[1]):
                    expected = maps[0](left) + maps[1](right)
                    if pair is not None:
                        product = pair[0](left).view(-1, rank) * pair[1](right).view(-1, rank)
                        expected = expected + product.sum(-1) / rank**0.5
                    torch.testing.assert_close(found[j, k], expected)


def test_queries_attend_to_all_neurons():
    spec = NetworkSpec.mlp([2, 3, 4, 1])
    layer = make(spec)
    attend = StateCrossAttention(layer, 6, 2, num_heads=2).double()
    states = layer(random_features(spec, 2, batch=1))
    pairs = [
        attend.to_pairs[str(i)](attend.norm(h))[0, j] for i, h in states.neurons.items() for j in range(h.shape[1])
    ]
    expected = []
    for m in range(2):
        heads = []
        for head in (slice(0, 3), slice(3, 6)):
            scores = torch.stack([attend.queries[m, head] @ p[:6][head] for p in pairs]) / 3**0.5
            heads.append(sum(a * p[6:][head] for a, p in zip(scores.softmax(0), pairs, strict=True)))
        expected.append(attend.mix(torch.cat(heads)))
    whole = attend.from_pool(StatePool(layer)(states)).view(2, 6)
    torch.testing.assert_close(attend(states)[0], torch.stack(expected) + whole)


@settings(max_examples=10)
@given(spec=network_specs(), symmetry=symmetries)
def test_pooling_takes_means_of_a_hidden_layer_too(spec, symmetry):
    layer = make(spec, symmetry, num_rounds=1)
    pool = StatePool(layer, 5).double()
    states = layer(random_features(spec, 2, batch=1))
    expected = [value for h in states.neurons.values() for value in (h[0].mean(0), h[0].amax(0))]
    for i, h in states.neurons.items():
        expected.append(sum(pool.hidden[str(i)](state) for state in h[0]) / h.shape[1])
    found = pool(states)
    assert found.shape == (1, pool.out_channels)
    torch.testing.assert_close(found[0], torch.cat([*expected, states.network[0]]))
