"""Models behind the canonical form: equivariant to permutation, sign and phase together."""

import copy

import pytest
import torch
from hypothesis import given, settings, strategies as st

from models.test_models import ARRAY, EQUIVARIANT, INVARIANT, SPECS, as_tensor, sines
from neuralfunctionals import NetworkSpec, NeuronPermutation, SineSymmetry, canonicalize, models
from neuralfunctionals.models import Canonical
from neuralfunctionals.testing import assert_equivariant, assert_invariant, random_features
from strategies import mlp_specs

OMEGA = 3.0
SPEC = SPECS[0]
SINES = sines(SPEC, OMEGA)
seeds = st.integers(0, 100)


def draw(spec, seed, symmetry):
    generator = torch.Generator().manual_seed(seed)
    p = NeuronPermutation.random(spec, symmetry, generator=generator)
    return SineSymmetry.random(spec, OMEGA, batch=2, generator=generator) @ p


def close(a, b):
    assert (a - b).abs().max() <= 1e-9 * a.abs().max().clamp(min=1.0)


@pytest.mark.parametrize("name", EQUIVARIANT)
@settings(max_examples=8)
@given(spec=mlp_specs(biases=st.booleans()), seed=seeds)
def test_editors_are_equivariant_to_the_whole_group(name, spec, seed):
    editor = Canonical(EQUIVARIANT[name](spec), symmetry=sines(spec, OMEGA).symmetry).double().eval()
    x, g = random_features(spec, seed=seed), draw(spec, seed, editor.symmetry)
    close(editor(g(x)).tensor, g.on_differences(editor(x)).tensor)
    close((g(x) + editor(g(x))).tensor, g(x + editor(x)).tensor)
    assert_equivariant(editor, seed=seed, trials=2)


@pytest.mark.parametrize("name", INVARIANT)
@settings(max_examples=8)
@given(spec=mlp_specs(biases=st.booleans()), seed=seeds)
def test_readers_are_invariant_to_the_whole_group(name, spec, seed):
    reader = Canonical(INVARIANT[name](spec), symmetry=sines(spec, OMEGA).symmetry).double().eval()
    x, g = random_features(spec, seed=seed), draw(spec, seed, reader.symmetry)
    close(reader(g(x)), reader(x))
    assert_invariant(reader, seed=seed, trials=2)


def test_a_reader_without_it_sees_another_network():
    reader = INVARIANT["NeuronGraphNet vector"](SPEC).double()
    x = random_features(SPEC)
    assert (reader(draw(SPEC, 0, "HNP")(x)) - reader(x)).abs().max() > 1e-3


@pytest.mark.parametrize("encoder", ["nft", "nfn", "neuron-graph"])
def test_latents_of_inr2array_are_invariant_to_the_whole_group(encoder):
    model = models.Inr2Array(SINES, encoder=encoder, canonical=SINES.symmetry, **ARRAY).double().eval()
    x, g = random_features(SPEC), draw(SPEC, 0, "HNP")
    close(model.encode(g(x)), model.encode(x))
    assert len(model(x)) == 2 * 4


def test_the_model_sees_the_canonical_form():
    reader = Canonical(INVARIANT["StatNN"](SPEC), symmetry=SINES.symmetry).double()
    x = random_features(SPEC)
    close(reader(x), reader.model(canonicalize(x, SINES.symmetry)[0]))


MODELS = {
    "editor": lambda: Canonical(EQUIVARIANT["NeuronGraphNet"](SPEC)),
    "reader": lambda: Canonical(INVARIANT["NFT HNP pool"](SPEC)),
    "Inr2Array": lambda: models.Inr2Array(SINES, canonical=SINES.symmetry, **ARRAY),
}


@pytest.mark.parametrize("name", MODELS)
def test_trains_copies_saves_and_loads(name, tmp_path):
    model = MODELS[name]()
    x = random_features(SPEC, dtype=torch.float32)
    as_tensor(model(x)).square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    model.eval().save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    for same in (loaded, copy.deepcopy(model)):
        assert torch.equal(as_tensor(same(x)), as_tensor(model(x)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::Warning")
@pytest.mark.parametrize("name", MODELS)
def test_compiles_into_one_graph(name):
    torch._dynamo.reset()
    model = MODELS[name]().eval()
    x = random_features(SPEC, dtype=torch.float32)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(as_tensor(compiled(x)), as_tensor(model(x)), rtol=1e-4, atol=1e-5)
    as_tensor(compiled(x)).square().mean().backward()


def test_what_has_no_canonical_form_is_refused_with_the_reason(tmp_path):
    cases = [
        (lambda: Canonical(EQUIVARIANT["NFT"](SPECS[1])), "made of dense layers"),
        (
            lambda: Canonical(EQUIVARIANT["NeuronGraphNet"](SPEC), symmetry=sines(SPEC, 5.0).symmetry),
            "Expected the symmetry of networks .* which the model takes, but got .* phases",
        ),
        (lambda: Canonical(models.Inr2Array(SPEC, **ARRAY)), r"Inr2Array\(canonical=spec.symmetry\)"),
        (lambda: MODELS["editor"]()(random_features(NetworkSpec.mlp([5, 5]))), "Canonical expected networks"),
        (lambda: Canonical.from_pretrained(tmp_path), "does not hold a Canonical: it holds a StatNN"),
    ]
    models.StatNN(SPEC, head_channels=[4]).save_pretrained(tmp_path)
    for make, message in cases:
        with pytest.raises(ValueError, match=message):
            make()
