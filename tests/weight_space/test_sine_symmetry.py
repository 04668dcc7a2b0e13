import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

from neuralfunctionals import NetworkSpec, NeuronPermutation, SineSymmetry, WeightSpaceFeatures, canonicalize
from neuralfunctionals.inr import Siren, convert_convention, image_grid, render
from neuralfunctionals.testing import random_features
from strategies import mlp_specs

OMEGA = 3.0
seeds = st.integers(0, 1000)
batches = st.sampled_from([None, 2])
sine_specs = st.one_of(mlp_specs(), mlp_specs(biases=st.booleans()))
SPEC = NetworkSpec.mlp([2, 5, 4, 3, 1])


def draw(spec, seed, batch=None):
    """An element of the whole group: permutation, signs and half turns."""
    generator = torch.Generator().manual_seed(seed)
    p = NeuronPermutation.random(spec, "HNP", generator=generator)
    return SineSymmetry.random(spec, OMEGA, batch=batch, generator=generator) @ p


def boundary_networks(spec, seed, dtype=torch.float64):
    """Networks with biases at, beside and between the multiples of a quarter turn."""
    generator = torch.Generator().manual_seed(seed)
    x = random_features(spec, seed=seed)
    quarters = torch.randint(-6, 7, (2, spec.num_entries), generator=generator) * (math.pi / 2 / OMEGA)
    on_boundary = torch.rand(2, spec.num_entries, generator=generator) < 0.7
    is_bias = torch.cat([torch.full((g.size,), g.kind == "bias") for g in spec.groups])
    values = torch.where(on_boundary & is_bias, quarters.double(), x.tensor[..., 0])
    return WeightSpaceFeatures.from_vectors(spec, values.to(dtype))


def render_plainly(features, points):
    """One network after the other, from the definition of a sine network; biases may be missing."""
    outputs = []
    for n in range(len(features)):
        x = points
        for i, layer in enumerate(features.spec.layers):
            x = x @ features.weights[i][n, ..., 0].T
            x = x + features.biases[i][n, ..., 0] if layer.has_bias else x
            x = torch.sin(OMEGA * x) if i < features.spec.num_layers - 1 else x
        outputs.append(x)
    return torch.stack(outputs)


def close(a, b, tolerance=1e-9):
    torch.testing.assert_close(a.tensor, b.tensor, rtol=0, atol=tolerance)


@given(spec=sine_specs, seed=seeds, batch=batches)
def test_group_laws(spec, seed, batch):
    x = random_features(spec, channels=2)
    g, h, k = draw(spec, seed, batch), draw(spec, seed + 1), draw(spec, seed + 2, batch)
    close((g @ h)(x), g(h(x)))
    close(((g @ h) @ k)(x), (g @ (h @ k))(x))
    close(g.inverse()(g(x)), x)
    close((g @ g.inverse())(x), x)
    close(SineSymmetry.identity(spec, OMEGA)(x), x, 0)


@given(spec=sine_specs, seed=seeds)
def test_composes_with_permutations_from_both_sides(spec, seed):
    x = random_features(spec, channels=2)
    generator = torch.Generator().manual_seed(seed)
    g = SineSymmetry.random(spec, OMEGA, batch=2, generator=generator)
    p, q = (NeuronPermutation.random(spec, "NP", generator=generator) for _ in range(2))
    close((p @ g)(x), p(g(x)))
    close((g @ p)(x), g(p(x)))
    close((p @ g @ q)(x), p(g(q(x))))


@given(spec=sine_specs, seed=seeds)
def test_differences_see_the_linear_part(spec, seed):
    x, y = random_features(spec, seed=seed), random_features(spec, seed=seed + 1)
    g, h = draw(spec, seed, 2), draw(spec, seed + 1, 2)
    close(g(x) + g.on_differences(y - x), g(y))
    close((g @ h).on_differences(x), g.on_differences(h.on_differences(x)), 0)
    close(g(WeightSpaceFeatures.stack([x, y])), WeightSpaceFeatures.stack([g(x), g.on_differences(y)]), 0)


def test_one_neuron_by_hand():
    spec = NetworkSpec.mlp([1, 1, 1])
    x = WeightSpaceFeatures.from_vectors(spec, torch.tensor([[2.0, 0.5, 3.0, 7.0]]))  # w, b, v, output bias
    g = SineSymmetry(spec, torch.tensor([True]), torch.tensor([1]), omega=math.pi)
    torch.testing.assert_close(g(x).to_vectors(), torch.tensor([[-2.0, 0.5, 3.0, 7.0]]))
    g = SineSymmetry(spec, torch.tensor([False]), torch.tensor([3]), omega=math.pi)
    torch.testing.assert_close(g(x).to_vectors(), torch.tensor([[2.0, 3.5, -3.0, 7.0]]))


@given(spec=sine_specs, seed=seeds, batch=batches)
def test_the_function_stays_the_same(spec, seed, batch):
    x = random_features(spec)
    points = torch.randn(7, spec.widths[0], dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    for same in (draw(spec, seed, batch)(x), canonicalize(x, omega=OMEGA)[0]):
        torch.testing.assert_close(render_plainly(same, points), render_plainly(x, points), rtol=0, atol=1e-9)


@pytest.mark.parametrize("convention", ["paper", "dws"])
@pytest.mark.parametrize("widths", [[2, 32, 32, 1], [2, 16, 16, 16, 16, 3]])
def test_sirens_of_both_conventions_render_the_same(convention, widths):
    sirens = WeightSpaceFeatures.from_modules([Siren(widths, seed=n).double() for n in range(3)])
    sirens = convert_convention(sirens, convention)
    grid = image_grid(9, 9).double()
    picture = render(sirens, grid)
    g = NeuronPermutation.random(sirens.spec) @ SineSymmetry.random(sirens.spec, batch=3)
    for same in (g(sirens), canonicalize(sirens)[0]):
        assert (same.tensor - sirens.tensor).abs().max() > 0.01
        torch.testing.assert_close(render(same, grid), picture, rtol=0, atol=1e-9)


@settings(max_examples=200)
@given(spec=sine_specs, seed=seeds, dtype=st.sampled_from([torch.float64, torch.float32]))
def test_canonical_biases_lie_in_the_quarter_turn(spec, seed, dtype):
    x = boundary_networks(spec, seed, dtype)
    canonical, element = canonicalize(x, omega=OMEGA)
    rounding = 128 * torch.finfo(dtype).eps
    for bias in canonical.biases[:-1]:
        assert ((OMEGA * bias >= -rounding) & (OMEGA * bias <= math.pi / 2 + rounding)).all()
    assert torch.equal(element(x).tensor, canonical.tensor)
    again, none = canonicalize(canonical, omega=OMEGA)
    assert torch.equal(again.tensor, canonical.tensor)
    assert not none.flips.any()
    assert not none.turns.any()


def test_what_is_canonical_already_is_returned_as_it_is():
    x = random_features(NetworkSpec.mlp([2, 5, 4, 1]), batch=3)
    canonical, _ = canonicalize(x, omega=OMEGA)
    again, none = canonicalize(canonical, omega=OMEGA)
    assert again is canonical
    assert torch.equal(none(x).tensor, x.tensor)
    assert none.flips.shape == none.turns.shape == (3, 9)


@settings(max_examples=200)
@given(spec=sine_specs, seed=seeds, dtype=st.sampled_from([torch.float64, torch.float32]), batch=batches)
def test_symmetric_copies_have_one_canonical_form_up_to_their_permutation(spec, seed, dtype, batch):
    x = boundary_networks(spec, seed, dtype)
    g = draw(spec, seed, batch)
    expected = g.permutation(canonicalize(x, omega=OMEGA)[0])
    close(canonicalize(g(x), omega=OMEGA)[0], expected, 1e-9 if dtype == torch.float64 else 1e-4)


def test_an_edit_of_the_canonical_form_is_carried_back():
    x, edit = random_features(SPEC), random_features(SPEC, seed=1)
    canonical, g = canonicalize(x, omega=OMEGA)
    close(g.inverse()(canonical + edit), x + g.inverse().on_differences(edit))


def test_gradients_flow_through_the_canonical_form():
    x = random_features(SPEC)
    x.tensor.requires_grad_()
    canonical, g = canonicalize(x, omega=OMEGA)
    weights = torch.randn_like(canonical.tensor)
    (canonical.tensor * weights).sum().backward()
    torch.testing.assert_close(x.tensor.grad, g.inverse().on_differences(x.with_tensor(weights)).tensor)


def test_the_other_channels_follow_the_first():
    x, gradient = random_features(SPEC), random_features(SPEC, seed=1)
    both, g = canonicalize(WeightSpaceFeatures.stack([x, gradient]), omega=OMEGA)
    close(both, WeightSpaceFeatures.stack([canonicalize(x, omega=OMEGA)[0], g.on_differences(gradient)]), 0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::Warning")
def test_canonicalize_compiles_into_one_graph():
    x = boundary_networks(SPEC, 0)
    canonical, _ = torch.compile(canonicalize, fullgraph=True, backend="aot_eager")(x, omega=OMEGA)
    close(canonical, canonicalize(x, omega=OMEGA)[0])


def test_what_is_no_sine_symmetry_is_refused_with_the_reason():
    spec, hidden = NetworkSpec.mlp([2, 3, 1]), (torch.zeros(3, dtype=torch.bool), torch.ones(3, dtype=torch.int64))
    spec_without_bias = NetworkSpec.mlp([2, 3, 1], bias=False)
    cnn = NetworkSpec.cnn([1, 3], (2, 2), dense=[1])
    cases = [
        (lambda: SineSymmetry(spec, hidden[0], hidden[1][:2]), r"shape \(3,\) or \(batch, 3\).* got \(3,\) and \(2,\)"),
        (
            lambda: SineSymmetry(spec_without_bias, *hidden),
            "no half turns where a layer has no bias",
        ),
        (lambda: SineSymmetry.random(cnn), "made of dense layers, but got 1->3 .2x2., 3->1"),
        (lambda: canonicalize(random_features(cnn)), "made of dense layers"),
        (lambda: canonicalize(random_features(spec), omega=0.0), "omega.* to be positive and finite, but got 0.0"),
        (lambda: SineSymmetry.random(spec)(random_features(SPEC)), "expected networks 2->3, 3->1 but received"),
        (lambda: SineSymmetry.random(spec, batch=3)(random_features(spec)), "for 3 networks, but there are 2"),
        (lambda: SineSymmetry.random(spec) @ SineSymmetry.random(SPEC), "widths and omega must be the same"),
        (lambda: SineSymmetry.random(spec) @ SineSymmetry.random(spec, 5.0), "widths and omega must be the same"),
        (lambda: NeuronPermutation.random(SPEC) @ SineSymmetry.random(spec), "widths and omega must be the same"),
        (lambda: NeuronPermutation.random(spec) @ 3, "unsupported operand"),
    ]
    for make, message in cases:
        with pytest.raises((ValueError, TypeError), match=message):
            make()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_refused(dtype):
    with pytest.raises(ValueError, match=rf"single or double precision, but got {dtype}.*features.to\(torch.float32\)"):
        canonicalize(random_features(SPEC).to(dtype), omega=OMEGA)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [1e30, -1e30, math.inf, math.nan])
def test_biases_whose_phases_are_lost_are_refused(dtype, bias):
    x = random_features(SPEC, dtype=dtype)
    x.biases[1][1, 2] = bias
    with pytest.raises(ValueError, match=r"Expected biases from -.* to .*, but got .* does not resolve the phases"):
        canonicalize(x, omega=OMEGA)


@settings(max_examples=100)
@given(seed=seeds, dtype=st.sampled_from([torch.float64, torch.float32]), size=st.floats(0, 0.7))
def test_with_large_biases_the_function_stays_the_same(seed, dtype, size):
    x = random_features(SPEC, dtype=dtype, seed=seed)
    largest = 2.0**-10 / torch.finfo(dtype).eps * math.pi / 2 / OMEGA
    for bias in x.biases[:-1]:
        bias.mul_(largest**size / bias.abs().max())
    points = torch.randn(7, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    before, after = (render_plainly(f.to(torch.float64), points) for f in (x, canonicalize(x, omega=OMEGA)[0]))
    torch.testing.assert_close(after, before, rtol=0, atol=0.05)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::Warning")
def test_a_compiled_canonical_form_leaves_such_neurons_alone():
    x = random_features(SPEC, dtype=torch.float64)
    x.biases[1][1, 2] = 1e30
    canonical, element = torch.compile(canonicalize, fullgraph=True, backend="aot_eager")(x, omega=OMEGA)
    assert canonical.biases[1][1, 2] == 1e30
    assert not element.flips[1, SPEC.widths[1] + 2]
    assert element.turns.abs().max() < 1000
    points = torch.randn(7, 2, dtype=torch.float64)
    torch.testing.assert_close(render_plainly(canonical, points), render_plainly(x, points), rtol=0, atol=1e-9)
