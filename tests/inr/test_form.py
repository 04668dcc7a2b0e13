"""Sine networks converted between frequencies and conventions show what they showed."""

import pytest
import torch
from hypothesis import given, strategies as st

from neuralfunctionals import WeightSpaceFeatures
from neuralfunctionals.inr import Siren, SirenForm, convert, image_bytes, image_grid, image_values, render
from neuralfunctionals.testing import random_features
from strategies import mlp_specs

forms = st.builds(SirenForm, st.sampled_from([1.0, 20.0, 30.0, 45.5]), st.sampled_from(["paper", "dws"]))


@given(spec=mlp_specs(), source=forms, target=forms)
def test_converted_networks_show_the_same(spec, source, target):
    networks = random_features(spec, channels=1, batch=2).to(torch.float64)
    points = torch.randn(5, spec.widths[0], dtype=torch.float64)
    shown = render(networks, points, omega=source.omega, convention=source.convention)
    converted = convert(networks, source, target)
    found = render(converted, points, omega=target.omega, convention=target.convention)
    torch.testing.assert_close(found, shown, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(convert(converted, target, source).tensor, networks.tensor)


def test_every_channel_is_converted_and_gradients_flow():
    networks = WeightSpaceFeatures.from_modules([Siren(), Siren()])
    both = WeightSpaceFeatures.stack([networks, 2.0 * networks])
    both.tensor.requires_grad_()
    source, target = SirenForm(20.0, "paper"), SirenForm(30.0, "dws")
    converted = convert(both, source, target)
    expected = convert(networks, source, target).tensor
    assert torch.equal(converted.tensor, torch.cat([expected, 2 * expected], dim=-1))
    converted.tensor.sum().backward()
    assert (both.tensor.grad != 0).all()
    assert convert(networks, source, source) is networks


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
    theirs = convert(networks, SirenForm(), SirenForm(10.0, "dws"))
    torch.testing.assert_close(render(theirs, grid, omega=10.0, convention="dws")[0], siren(grid), atol=1e-5, rtol=0)
