import html

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from torch import nn

import neuralfunctionals as nf
from neuralfunctionals import NetworkSpec, WeightSpaceFeatures
from neuralfunctionals.testing import random_features
from strategies import network_specs

SPEC = NetworkSpec.mlp([2, 3, 1])


@given(spec=network_specs())
def test_round_trips_are_exact(spec):
    features = random_features(spec, channels=1)
    for again in (
        WeightSpaceFeatures.from_vectors(spec, features.to_vectors()),
        WeightSpaceFeatures.from_state_dicts(features.to_state_dicts(), spec),
        WeightSpaceFeatures.from_tensors(spec, features.weights, features.biases),
    ):
        assert torch.equal(again.tensor, features.tensor)


@given(spec=network_specs())
def test_layer_views_have_their_shapes_and_share_memory(spec):
    features = random_features(spec, channels=3, batch=2)
    for layer, weight, bias in zip(spec.layers, features.weights, features.biases, strict=True):
        assert weight.shape == (2, *layer.weight_shape, 3)
        assert bias.shape == (2, layer.out_neurons if layer.has_bias else 0, 3)
        assert weight.untyped_storage().data_ptr() == features.tensor.untyped_storage().data_ptr()


def test_stack_joins_weights_and_gradients_as_channels():
    weights, gradients = random_features(SPEC, seed=1), random_features(SPEC, seed=2)
    stacked = WeightSpaceFeatures.stack([weights, gradients])
    assert stacked.num_channels == 2
    assert torch.equal(stacked.weights[0][..., 1], gradients.weights[0][..., 0])


def test_arithmetic_indexing_and_movement():
    x, y = random_features(SPEC, seed=1), random_features(SPEC, seed=2)
    torch.testing.assert_close((x + y - y).tensor, x.tensor)
    torch.testing.assert_close((2.0 * x).tensor, (x + x).tensor)
    torch.testing.assert_close((x * y).tensor, x.tensor * y.tensor)
    assert torch.equal((-x).tensor, -x.tensor)
    assert len(x[0]) == 1
    assert torch.equal(x[[1, 0]].tensor, x.tensor.flip(0))
    assert x.to(torch.float32).tensor.dtype == torch.float32
    assert torch.equal(WeightSpaceFeatures.concatenate([x[0], x[1]]).tensor, x.tensor)
    assert torch.equal(x.map(torch.relu).tensor, x.tensor.relu())
    assert not x.map(lambda t: t.requires_grad_()).detach().tensor.requires_grad
    assert "2 networks 2->3, 3->1" in repr(x)


def test_parameters_to_vector_order():
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
    vector = torch.nn.utils.parameters_to_vector(module.parameters())
    assert torch.equal(WeightSpaceFeatures.from_modules([module]).to_vectors()[0], vector.detach())


WEIGHTS, BIASES = [torch.zeros(4, 3, 2, 1), torch.zeros(4, 1, 3, 1)], [torch.zeros(4, 3, 1), torch.zeros(4, 1, 1)]
NAN = torch.zeros(2, SPEC.num_entries).index_put_((torch.tensor(1), torch.tensor(7)), torch.tensor(torch.nan))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WeightSpaceFeatures.from_tensors(SPEC, WEIGHTS[:1], BIASES), "Expected 2 weight and 2 bias"),
        (lambda: WeightSpaceFeatures.from_tensors(SPEC, WEIGHTS[::-1], BIASES), r"= \(4, 3, 2, 1\), but got \(4, 1, 3"),
        (lambda: WeightSpaceFeatures.from_tensors(SPEC, WEIGHTS, BIASES[::-1]), "biases of layer 1"),
        (lambda: WeightSpaceFeatures.from_vectors(SPEC, torch.zeros(2, 4)), r"\(batch, 13\)"),
        (lambda: WeightSpaceFeatures.from_vectors(SPEC, NAN), "bias of layer 1 of network 1 holds .nan"),
        (lambda: WeightSpaceFeatures(SPEC, torch.zeros(2, 13)), r"shape \(batch, 13, channels\)"),
        (lambda: WeightSpaceFeatures.from_modules([]), "at least one module"),
        (lambda: WeightSpaceFeatures.from_state_dicts([]), "at least one state_dict"),
        (lambda: WeightSpaceFeatures.stack([]), "at least one part"),
        (lambda: WeightSpaceFeatures.concatenate([]), "at least one batch"),
        (
            lambda: random_features(SPEC) + random_features(NetworkSpec.mlp([2, 1])),
            "expected networks 2->1 but received",
        ),
        (lambda: random_features(SPEC, 2).to_vectors(), "needs features of one channel, but these have 2"),
        (
            lambda: WeightSpaceFeatures.from_state_dicts([{"layers.0.weight": torch.zeros(3, 2)}], SPEC),
            "key 'layers.0.bias'",
        ),
        (
            lambda: WeightSpaceFeatures.from_state_dicts(
                [random_features(NetworkSpec.mlp([2, 4, 1])).to_state_dicts()[0]], SPEC
            ),
            r"'layers.0.weight' to hold real numbers of shape \(3, 2\)",
        ),
    ],
)
def test_wrong_input_is_refused_with_the_reason(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("tensor", "kind"),
    [
        (np.zeros((3, 2)), "a ndarray"),
        (nn.parameter.UninitializedParameter(), "a UninitializedParameter"),
        (torch.zeros(3, 2).to_sparse(), "sparse_coo"),
        (torch.zeros(3, 2, device="meta"), "on the meta device"),
    ],
)
def test_tensors_without_plain_values_are_refused(tensor, kind):
    state_dict = {**random_features(SPEC).to_state_dicts()[0], "layers.0.weight": tensor}
    with pytest.raises(ValueError, match=f"'layers.0.weight' to be an ordinary tensor, but it is {kind}"):
        WeightSpaceFeatures.from_state_dicts([state_dict], SPEC)


def test_features_have_the_manners_of_tensors():
    spec = NetworkSpec.mlp([2, 3, 1])
    x = WeightSpaceFeatures.from_vectors(spec, torch.randn(4, spec.num_entries))
    assert (x.shape, x.dtype, x.device) == (x.tensor.shape, torch.float32, x.tensor.device)
    assert x.double().dtype == torch.float64
    copy = x.clone()
    copy.tensor.zero_()
    assert x.tensor.abs().sum() > 0
    assert torch.equal((x / 2).tensor, x.tensor / 2)
    assert torch.equal((x / (x + 10.0)).tensor, x.tensor / (x.tensor + 10))
    assert torch.equal(nf.cat([x[:1], x[1:]]).tensor, x.tensor)
    assert nf.stack([x, x]).shape == (4, spec.num_entries, 2)
    assert WeightSpaceFeatures.unchecked(spec, x.tensor).tensor is x.tensor


def test_a_data_loader_makes_batches_of_features():
    spec = NetworkSpec.mlp([2, 3, 1])
    x = WeightSpaceFeatures.from_vectors(spec, torch.randn(5, spec.num_entries))
    items = [(x[n], n) for n in range(5)]
    batches = list(torch.utils.data.DataLoader(items, batch_size=2))
    assert [len(features) for features, _ in batches] == [2, 2, 1]
    assert torch.equal(nf.cat([features for features, _ in batches]).tensor, x.tensor)


@pytest.mark.parametrize(
    ("make", "given"),
    [("from_modules", nn.Linear(2, 1)), ("from_modules", {}), ("from_state_dicts", nn.Linear(2, 1).state_dict())],
)
def test_one_network_in_place_of_a_list_is_refused(make, given):
    with pytest.raises(ValueError, match="Expected a list of .* in a list: |Expected a list of .* in a list, "):
        getattr(WeightSpaceFeatures, make)(given)


@given(spec=network_specs())
def test_notebooks_show_a_picture_and_a_table(spec):
    features = random_features(spec, channels=2)
    picture = cv2.imdecode(np.frombuffer(features._repr_png_(), np.uint8), cv2.IMREAD_COLOR)
    assert picture is not None
    shown = min(len(features), 4), min(len(spec.groups), 12)
    assert picture.shape == (44 * shown[0], 44 * shown[1], 3)
    page = features._repr_html_()
    assert html.escape(repr(features)) in page
    assert page.count("<tr>") == 1 + shown[1]
    assert "data:image/png;base64," in page


def test_positive_weights_are_red_and_negative_ones_blue_in_the_picture():
    features = WeightSpaceFeatures.from_vectors(NetworkSpec.mlp([1, 2], bias=False), torch.tensor([[1.0, -1.0]]))
    picture = cv2.imdecode(np.frombuffer(features._repr_png_(), np.uint8), cv2.IMREAD_COLOR)
    assert picture[5, 20].tolist() == [0, 0, 255]  # OpenCV has blue first
    assert picture[35, 20].tolist() == [255, 0, 0]
