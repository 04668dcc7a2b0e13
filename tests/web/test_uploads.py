"""Networks that visitors hand over as bytes: what is read, what is refused, and how it is shown."""

import io
import os
import pickle
import tempfile
import zipfile
from pathlib import Path

import pytest
import safetensors.torch
import torch
from test_digits import url

from neuralfunctionals.inr import Siren, SirenForm, convert
from neuralfunctionals.web import cards
from neuralfunctionals.web.digits import samples
from neuralfunctionals.web.exhibit import SPEC, Exhibit
from neuralfunctionals.web.uploads import MAX_NETWORK_BYTES, read_network
from neuralfunctionals.weight_space import WeightSpaceFeatures


def saved(content, **options):
    file = io.BytesIO()
    torch.save(content, file, **options)
    return file.getvalue()


def source(content, omega="30", convention="paper"):
    return f"network:{omega}:{convention}:{url(content)}"


@pytest.fixture(scope="module")
def fitted():
    return Exhibit.fit(samples()[3])


@pytest.fixture(scope="module")
def state_dict(fitted):
    return named(fitted, "net.0.linear", "net.1.linear", "last")


def named(fitted, *names):
    tensors = iter(fitted.fitted.to_state_dicts()[0].values())
    return {f"{name}.{kind}": next(tensors) for name in names for kind in ("weight", "bias")}


def test_every_kind_of_file_becomes_the_exhibit(state_dict, fitted):
    files = {
        "pth": saved(state_dict),
        "old pth": saved(state_dict, _use_new_zipfile_serialization=False),
        "checkpoint": saved({"epoch": 3, "state_dict": state_dict}),
        "safetensors": safetensors.torch.save(state_dict),
        "other names": saved(named(fitted, "fc1", "fc2", "out")),
        "double": saved({name: tensor.double() for name, tensor in state_dict.items()}),
    }
    for kind, content in files.items():
        exhibit = Exhibit.from_source(source(content))
        assert torch.equal(exhibit.network.tensor, fitted.fitted.tensor), kind
        assert (exhibit.digit, exhibit.psnr_db, exhibit.film) == (None, None, ()), kind


@pytest.mark.parametrize("form", [SirenForm(20.0, "paper"), SirenForm(30.0, "dws"), SirenForm(17.5, "dws")])
def test_networks_of_another_form_show_the_same(fitted, form):
    own = convert(fitted.fitted, form).to_state_dicts()[0]
    exhibit = Exhibit.from_source(source(saved(own), form.omega, form.convention))
    torch.testing.assert_close(exhibit.image, fitted.image, atol=1e-3, rtol=1e-3)
    assert (Exhibit.from_source(source(saved(own))).image - fitted.image).abs().max() > 0.1


def test_an_own_network_is_read_edited_and_scrambled_like_a_fitted_one(models, state_dict, fitted):
    own = Exhibit.from_source(source(saved(state_dict))).read(models)
    torch.testing.assert_close(own.reading.probabilities, fitted.read(models).reading.probabilities)
    edited = own.edited(models, "dilate")
    assert torch.equal(edited.network.tensor, fitted.edited(models, "dilate").network.tensor)
    assert torch.equal(edited.restored().network.tensor, own.network.tensor)
    for move in (Exhibit.shuffled, Exhibit.flipped):
        assert move(own, seed=1).read(models).changes(own).same_answers
    assert "your network" in cards.network_card(edited)
    assert "thicker" in cards.network_card(edited)
    assert "as given" in cards.edit_card(edited)


class Trap:
    def __reduce__(self):
        return os.mkdir, ("trapped",)


def archive(size):
    """A small archive that unpacks to many bytes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("archive/data.pkl", bytes(size))
    return file.getvalue()


def siren(*widths):
    return Siren(widths, seed=0).state_dict()


def changed(value):
    return saved({name: torch.full_like(tensor, value) for name, tensor in siren(2, 32, 32, 1).items()})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"hello", "cannot be read as a network"),
        (saved(siren(2, 32, 32, 1))[:900], "cannot be read as a network"),
        (safetensors.torch.save(siren(2, 32, 32, 1))[:900], "cannot be read as a network"),
        (pickle.dumps(Trap()), "cannot be read as a network"),
        (saved({"weight": Trap()}), "cannot be read as a network"),
        (saved([1, 2]), "expected a state_dict"),
        (saved(siren(2, 64, 1)), "its layers are 2->64, 64->1. Expected a SIREN with the layers 2->32, 32->32, 32->1"),
        (saved(siren(2, 32, 32, 3)), "its layers are 2->32, 32->32, 32->3"),
        (saved({**siren(2, 32, 32, 1), "norm.running_mean": torch.zeros(3)}), "does not fit.*norm.running_mean"),
        (changed(float("nan")), "does not fit.*finite values"),
        (changed(1e38), "too large: its picture is not finite"),
        (bytes(MAX_NETWORK_BYTES + 1), "too large: expected at most 1 MB"),
        (archive(200 * MAX_NETWORK_BYTES), "unpacks to 200 MB"),
    ],
)
def test_what_is_no_fitting_network_is_refused_in_one_line(tmp_path, monkeypatch, content, reason):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=reason) as refused:
        Exhibit.from_source(source(content))
    assert "\n" not in str(refused.value)
    assert tempfile.gettempdir() not in str(refused.value)
    assert not list(tmp_path.iterdir())
    assert not list(Path(tempfile.gettempdir()).glob(f"nf-serve-{os.getpid()}-*"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("network:", "positive frequency"),
        ("network:0:paper:data:,", "positive frequency"),
        ("network:nan:paper:data:,", "positive frequency"),
        ("network:many:paper:data:,", "but got 'many' and 'paper'"),
        ("network:30:mine:data:,", "paper or dws, but got '30' and 'mine'"),
        ("network:30:paper:/etc/passwd", "data URL"),
        ("network:30:paper:file:///etc/passwd", "data URL"),
    ],
)
def test_refuses_forms_and_places_that_are_none(text, reason):
    with pytest.raises(ValueError, match=reason):
        Exhibit.from_source(text)


def test_the_ending_of_a_file_is_not_needed(state_dict, fitted):
    network = read_network(safetensors.torch.save(state_dict), SPEC, "SIREN")
    assert isinstance(network, WeightSpaceFeatures)
    assert network.spec == fitted.fitted.spec
