import pickle
from dataclasses import replace

import pytest
from hypothesis import given

from neuralfunctionals import LayerSpec, NetworkSpec
from neuralfunctionals.weight_space.axes import Axis, Group
from strategies import network_specs


@given(spec=network_specs())
def test_json_round_trip_is_exact(spec):
    again = NetworkSpec.from_json(spec.to_json())
    assert again == spec
    assert [layer.name for layer in again.layers] == [layer.name for layer in spec.layers]


@given(spec=network_specs())
def test_groups_tile_the_packed_axis(spec):
    assert [g.start for g in spec.groups] == [0, *(g.stop for g in spec.groups)][:-1]
    biases = sum(layer.out_neurons for layer in spec.layers if layer.has_bias)
    weights = sum(layer.out_neurons * layer.in_neurons * layer.kernel_size for layer in spec.layers)
    assert spec.num_entries == weights + biases


def test_specs_pickle_and_hash_by_shape_not_by_name():
    spec = NetworkSpec.cnn([1, 16, 16, 16], (3, 3), dense=[10])
    assert pickle.loads(pickle.dumps(spec)) == spec
    renamed = NetworkSpec(tuple(LayerSpec(x.out_neurons, x.in_neurons, x.kernel, name="other") for x in spec.layers))
    assert renamed == spec
    assert hash(renamed) == hash(spec)


def test_small_cnn_has_the_published_number_of_parameters():
    assert NetworkSpec.cnn([1, 16, 16, 16], (3, 3), dense=[10]).num_entries == 4970


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NetworkSpec.mlp([3]), "needs an input and an output width"),
        (lambda: NetworkSpec.mlp([3, 0, 1]), "sizes of at least 1"),
        (lambda: NetworkSpec(()), "at least one layer"),
        (lambda: NetworkSpec((LayerSpec(3, 2), LayerSpec(1, 4))), "3 outgoing neurons, but layer 2 expects 4"),
        (lambda: NetworkSpec.cnn([1, 2, 2], [(3, 3)]), "2 convolutions follow .* 1 kernels"),
        (lambda: NetworkSpec.from_json("{"), "not JSON"),
        (lambda: NetworkSpec.from_json('{"widths": [2, 1]}'), "Expected a network spec such as"),
        (lambda: NetworkSpec.mlp([2, 1]).fixed_axes("np"), "'NP' .* or 'HNP'"),  # pyright: ignore
    ],
)
def test_wrong_shapes_are_refused_with_the_reason(make, message):
    with pytest.raises(ValueError, match=message):
        make()


AXES = (Axis(2), Axis(3, within=0))
GROUPS = (Group(1, "weight", (1, 0), (3, 2), 0, "a", 0, (1, 3), (2, 3)), Group(2, "bias", (0,), (2,), 6, "b"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"start": 1}, "Expected packed groups on axes 0 to 1"),
        ({"axes": (1, 2)}, "Expected packed groups on axes 0 to 1"),
        ({"axes": (-1, 0)}, "Expected packed groups on axes 0 to 1"),
        ({"shape": (2, 3)}, r"'a' to have dimensions \(3, 2\) for its axes, but got \(2, 3\)"),
        ({"shape": (3,)}, r"'a' to have dimensions \(3, 2\) for its axes, but got \(3,\)"),
        ({"strides": (1,)}, "'a' to have dimensions"),
        ({"axes": (1,)}, "'a' to have the axes that its axes are nested in"),
    ],
)
def test_groups_that_do_not_fit_their_axes_are_refused(change, message):
    spec = NetworkSpec(axes=AXES, groups=GROUPS)
    assert NetworkSpec.from_json(spec.to_json()) == spec
    with pytest.raises(ValueError, match=message):
        NetworkSpec(axes=AXES, groups=(replace(GROUPS[0], **change), GROUPS[1]))
    with pytest.raises(ValueError, match="at least one group"):
        NetworkSpec(axes=AXES)
