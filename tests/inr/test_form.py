"""Sine networks converted between frequencies and conventions show what they showed."""

import pytest
import torch
from hypothesis import given, strategies as st

from neuralfunctionals import WeightSpaceFeatures
from neuralfunctionals.inr import Siren, SirenForm, convert, image_bytes, image_grid, image_values, render
from neuralfunctionals.testing import random_features
from neuralfunctionals.weight_space import NetworkSpec
from strategies import mlp_specs

forms = st.builds(SirenForm, st.sampled_from([1.0, 20.0, 30.0, 45.5]), st.sampled_from(["paper", "dws"]))


@given(spec=mlp_specs(), source=forms, target=forms)
def test_converted_networks_show_the_same(spec, source, target):
    networks = source.label(random_features(spec, channels=1, batch=2).to(torch.float64))
    points = torch.randn(5, spec.widths[0], dtype=torch.float64)
    shown = render(networks, points)
    converted = convert(networks, target)
    assert SirenForm.of(converted.spec, assumed=target) == target
    torch.testing.assert_close(render(converted, points), shown, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(convert(converted, source).tensor, networks.tensor)
    assert torch.equal(convert(networks, converted.spec).tensor, converted.tensor)


def test_every_channel_is_converted_and_gradients_flow():
    networks = WeightSpaceFeatures.from_modules([Siren(omega=20.0), Siren(omega=20.0)])
    both = WeightSpaceFeatures.stack([networks, 2.0 * networks])
    both.tensor.requires_grad_()
    target = SirenForm(30.0, "dws")
    converted = convert(both, target)
    expected = convert(networks, target).tensor
    assert torch.equal(converted.tensor, torch.cat([expected, 2 * expected], dim=-1))
    converted.tensor.sum().backward()
    assert (both.tensor.grad != 0).all()
    assert convert(networks, SirenForm(20.0)) is networks


@pytest.mark.parametrize(
    ("omega", "convention", "message"),
    [
        (0.0, "paper", "Expected omega, the frequency of the sines, to be positive and finite, but got 0"),
        (-5.0, "paper", "but got -5"),
        (float("nan"), "paper", "but got nan"),
        (30.0, "papers", "Expected the convention to be one of"),
    ],
)
def test_refuses_forms_that_make_no_sense(omega, convention, message):
    with pytest.raises(ValueError, match=message):
        SirenForm(omega, convention)


def test_values_become_the_nearest_bytes():
    every = torch.arange(256, dtype=torch.uint8).view(1, 16, 16, 1)
    assert torch.equal(image_bytes(image_values(every)), every)
    assert image_bytes(torch.tensor([-7.0, -1.0, 0.0, 0.999, 3.0])).tolist() == [0, 0, 128, 255, 255]


def test_a_store_tells_its_form_or_does_not():
    assert SirenForm.from_provenance({"kind": "networks"}) is None
    assert SirenForm.from_provenance({"omega": 20, "convention": "dws"}) == SirenForm(20.0, "dws")
    assert SirenForm.from_provenance({"convention": "dws"}) == SirenForm(30.0, "dws")


def test_points_stand_row_first_in_every_form():
    siren = Siren(seed=1)
    networks = WeightSpaceFeatures.from_modules([siren])
    grid = image_grid(3, 5)
    theirs = convert(networks, SirenForm(10.0, "dws"))
    torch.testing.assert_close(render(theirs, grid)[0], siren(grid), atol=1e-5, rtol=0)


def test_a_form_completes_a_spec_that_does_not_tell_its_own():
    silent, told = NetworkSpec.mlp([2, 4, 1]), NetworkSpec.siren([2, 4, 1], 20.0, "dws")
    form = SirenForm(20.0, "dws")
    assert SirenForm.of(silent) == SirenForm()
    assert SirenForm.of(silent, assumed=form) == SirenForm.of(told) == form
    assert form.complete(silent).matches(told)
    assert form.complete(told) is told
    with pytest.raises(ValueError, match="with omega 30 and convention paper, but these have omega 20"):
        SirenForm().complete(told)
    with pytest.raises(ValueError, match="Expected sine networks, but the networks .* have the activation tanh"):
        SirenForm.of(NetworkSpec.mlp([2, 4, 1], "tanh"))
