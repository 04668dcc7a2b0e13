"""Models whose configs were written before specs recorded frequency and convention."""

import json

import pytest

from neuralfunctionals import NetworkSpec, from_pretrained, models

WIDTHS = [2, 5, 4, 1]
PLAIN = NetworkSpec.mlp(WIDTHS)
SMALL = {"channels": 8, "num_blocks": 1, "hidden_channels": 8, "num_heads": 2, "latent_channels": 4}


def reopened(model, tmp_path, change, told=None):
    """The model after a change of its config, in the directory of a run that was trained on such networks."""
    model.save_pretrained(tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    config = json.loads(file.read_text())
    change(config)
    file.write_text(json.dumps(config))
    if told is not None:
        (tmp_path / "run.json").write_text(json.dumps({"data": told}))
    return from_pretrained(tmp_path / "model")


def nothing(config):
    pass


def form(spec):
    return spec.omega, spec.convention


def test_the_run_says_of_which_form_its_networks_were(tmp_path):
    model = models.NFT(PLAIN, **SMALL)
    assert form(reopened(model, tmp_path / "a", nothing).spec) == (None, None)
    told = {"omega": 20, "convention": "dws", "networks": 3}
    assert form(reopened(model, tmp_path / "b", nothing, told).spec) == (20.0, "dws")
    assert form(reopened(model, tmp_path / "c", nothing, {"networks": 3}).spec) == (None, None)
    own = models.NFT(NetworkSpec.siren(WIDTHS, omega=10.0), **SMALL)
    assert form(reopened(own, tmp_path / "d", nothing, told).spec) == (10.0, "paper")
    tanh = models.NFT(NetworkSpec.mlp(WIDTHS, "tanh"), **SMALL)
    assert form(reopened(tanh, tmp_path / "e", nothing, told).spec) == (None, None)


def test_networks_that_cannot_show_pictures_stay_as_they_are(tmp_path):
    spec = NetworkSpec.cnn([1, 3, 2], (2, 2), dense=[2])
    model = models.StatNN(spec, head_channels=[3])
    assert reopened(model, tmp_path, nothing, {"omega": 20.0, "convention": "paper"}).spec == spec


@pytest.mark.parametrize(("omega", "expected"), [(20.0, (20.0, "dws")), (None, (None, None))])
def test_the_models_own_frequency_comes_before_that_of_the_run(tmp_path, omega, expected):
    model = models.NeuronGraphNet(PLAIN if omega is None else PLAIN.with_activation(None), channels=8)
    if omega is not None:  # its first states had the angles of the biases
        model = models.NeuronGraphNet(NetworkSpec.siren(WIDTHS, omega=omega), channels=8)

    def write_as_argument(config):
        config["spec"], config["omega"] = PLAIN.to_dict(), omega

    found = reopened(model, tmp_path, write_as_argument, {"omega": 10.0, "convention": "dws"})
    assert form(found.spec) == expected
    assert found.states.omega == omega


@pytest.mark.parametrize("canonical", ["sine", "none"])
def test_canonical_was_a_word(tmp_path, canonical):
    spec = NetworkSpec.siren(WIDTHS, omega=20.0)
    model = models.Inr2Array(spec, grid_size=2, canonical=spec.symmetry if canonical == "sine" else None, **SMALL)

    def write_as_word(config):
        config["spec"], config["canonical"] = PLAIN.to_dict(), canonical

    found = reopened(model, tmp_path, write_as_word, {"omega": 20.0, "convention": "paper"})
    assert form(found.spec) == (20.0, "paper")
    assert isinstance(found.encoder, models.Canonical) == (canonical == "sine")
    if canonical == "sine":
        assert found.encoder.canonical.spec.omega == 20.0


@pytest.mark.parametrize(("omega", "told", "expected"), [(20.0, None, 20.0), (None, None, 30.0), (None, 10.0, 10.0)])
def test_models_inside_canonical_ones_are_converted_too(tmp_path, omega, told, expected):
    model = models.Canonical(models.NFT(PLAIN, **SMALL))

    def write_frequency(config):
        del config["symmetry"]
        if omega is not None:
            config["omega"] = omega

    data = None if told is None else {"omega": told, "convention": "paper"}
    found = reopened(model, tmp_path, write_frequency, data)
    assert found.canonical.spec.omega == expected
    assert found.model.spec.omega == told
