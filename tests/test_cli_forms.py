"""Networks of any SIREN frequency and convention reach trained models as the networks they are."""

import numpy as np
import pytest
import torch
from torch import nn

from commands import run
from neuralfunctionals.cli import main
from neuralfunctionals.data import Store, StoreHeader, WeightDataset
from neuralfunctionals.data.formats.network_files import read_form, read_networks, write_networks
from neuralfunctionals.inr import Siren, SirenForm, convert, fit, image_grid
from neuralfunctionals.runs import open_run
from neuralfunctionals.weight_space import WeightSpaceFeatures

OURS = SirenForm()
OTHERS = [SirenForm(30.0, "dws"), SirenForm(20.0, "paper"), SirenForm(20.0, "dws")]
other_forms = pytest.mark.parametrize("form", OTHERS, ids=str)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Fitted networks of the usual form."""
    out = tmp_path_factory.mktemp("data") / "digits"
    assert main(["fit", "--images", "mnist-sample", "--limit", "60", "--recipe", "fast", "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def stores(digits, tmp_path_factory):
    """The same networks in each other form."""
    folder = tmp_path_factory.mktemp("forms")
    return {form: write_converted(digits, folder / str(n), form) for n, form in enumerate(OTHERS)}


def write_converted(digits, out, form, *, told=True):
    """A store of the same networks in another form."""
    source = Store(digits)
    made = {**source.header.provenance, "omega": form.omega, "convention": form.convention}
    made = made if told else {name: value for name, value in made.items() if name not in ("omega", "convention")}
    header = source.header
    store = Store.create(out, StoreHeader(header.num_items, header.shard_size, header.spec, made))
    for shard in source.shards:
        tensors = {name: np.array(array) for name, array in source.map_tensors(shard).items()}
        tensors["weights"] = converted(header.spec, tensors["weights"], form)
        store.write_shard(shard, tensors, source.read_index(shard)[0])
    return out


def converted(spec, vectors, form):
    networks = WeightSpaceFeatures.from_vectors(spec, torch.from_numpy(vectors))
    return convert(networks, form).to_vectors().numpy()


def evaluate(capsys, *words):
    code, result, err = run(capsys, "evaluate", *words, "--json")
    assert code == 0, err
    return {name: value for name, value in result.items() if isinstance(value, float)}


@other_forms
@pytest.mark.parametrize("model", ["digits-classify", "digits-dilate", "digits-inr2array"])
def test_a_store_of_another_form_is_measured_as_the_same_networks(capsys, digits, stores, model, form):
    expected = evaluate(capsys, model, "--data", digits, "--split", "train")
    found = evaluate(capsys, model, "--data", stores[form], "--split", "train")
    assert found == pytest.approx(expected, rel=1e-3)
    if model == "digits-classify":
        assert found["accuracy"] == expected["accuracy"] > 0.3


@other_forms
def test_latents_are_those_of_the_same_networks(capsys, digits, stores, tmp_path, form):
    for name, data in (("ours", digits), ("theirs", stores[form])):
        code, _, err = run(capsys, "encode", "digits-inr2array", "--data", data, "--out", tmp_path / name)
        assert code == 0, err
    ours, theirs = (WeightDataset(tmp_path / name)[:].latents for name in ("ours", "theirs"))
    torch.testing.assert_close(theirs, ours, atol=1e-2, rtol=1e-2)


@other_forms
@pytest.mark.parametrize("ending", [".pth", ".npz"])
def test_edited_networks_come_back_in_the_form_they_came_in(capsys, digits, stores, tmp_path, form, ending):
    edited = {}
    for name, data, own in (("ours", digits, OURS), ("theirs", stores[form], form)):
        before, after = tmp_path / f"{name}{ending}", tmp_path / f"{name}-edited{ending}"
        write_networks(before, WeightDataset(data)[[3]].features)
        words = ["--omega", own.omega, "--convention", own.convention]
        code, _, err = run(capsys, "edit", "digits-dilate", "--weights", before, "--out", after, *words)
        assert (code, err) == (0, "")
        edited[name] = read_networks(after)
        assert read_form(after) == (own if ending == ".npz" else None)
    back = convert(form.label(edited["theirs"]), OURS)
    torch.testing.assert_close(back.tensor, edited["ours"].tensor, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(edited["ours"].tensor, WeightDataset(digits)[[3]].features.tensor, atol=1e-3)


def test_an_exported_file_tells_its_form(capsys, stores, tmp_path):
    form = OTHERS[2]
    assert run(capsys, "data", "export", "npz", stores[form], "--out", tmp_path / "n.npz")[0] == 0
    words = ["edit", "digits-dilate", "--weights", tmp_path / "n.npz", "--out", tmp_path / "e.npz"]
    code, _, err = run(capsys, *words)
    assert (code, err) == (0, "")
    assert read_form(tmp_path / "e.npz") == form
    task = open_run("digits-dilate").task
    expected = task.edit(WeightDataset(stores[form])[:].features, form=form)
    assert torch.equal(read_networks(tmp_path / "e.npz").tensor, expected.tensor)
    code, _, err = run(capsys, *words, "--omega", "30", "--force")
    assert code == 2
    assert "omega 20 and convention dws, but omega 30 and convention dws was requested" in err
    assert run(capsys, "data", "import", "npz", tmp_path / "e.npz", "--out", tmp_path / "s")[0] == 0
    assert SirenForm.from_provenance(WeightDataset(tmp_path / "s").provenance) == form


def test_what_is_assumed_is_said_in_one_line(capsys, digits, tmp_path, caplog):
    write_networks(tmp_path / "n.pth", WeightDataset(digits)[[0]].features)
    words = ["edit", "digits-dilate", "--weights", tmp_path / "n.pth", "--out", tmp_path / "e.pth"]
    code, _, err = run(capsys, *words)
    assert code == 0
    assert "omega 30 and convention paper" in err
    assert err.count("\n") == 1
    (tmp_path / "nets").mkdir()
    (tmp_path / "n.pth").rename(tmp_path / "nets" / "n.pth")
    code, _, err = run(capsys, "data", "import", "state-dicts", tmp_path / "nets", "--out", tmp_path / "s")
    assert code == 0
    assert [line for line in err.splitlines() if line.startswith("nf: ")] == [
        "nf: assuming sine networks with omega 30 and convention paper, rendered as images of 28x28. If this is wrong, "
        "import them again with --omega, --convention and --image-size."
    ]
    silent = write_converted(digits, tmp_path / "silent", OURS, told=False)
    expected = evaluate(capsys, "digits-classify", "--data", digits)
    assert evaluate(capsys, "digits-classify", "--data", silent) == expected
    assert "silent does not record the form of its sine networks; assuming omega 30 and convention paper" in caplog.text


@pytest.mark.parametrize("recipe", ["edit/mnist-dilate", "classify/mnist", "inr2array/mnist"])
def test_a_model_trained_on_another_form_reads_ours(capsys, digits, stores, tmp_path, recipe):
    form = OTHERS[2]
    words = ["train", recipe, "--scale", "tiny", "--data", stores[form], "--out", tmp_path / "run", "--json"]
    code, result, err = run(capsys, *words)
    assert code == 0, err
    assert open_run(tmp_path / "run").task.form == form
    found = evaluate(capsys, tmp_path / "run", "--data", digits)
    assert found == pytest.approx({name: result["test"][name] for name in found}, rel=1e-3)


@other_forms
def test_features_and_modules_are_read_in_the_form_that_is_told(digits, stores, form):
    ours, theirs = (WeightDataset(path)[:20].features for path in (digits, stores[form]))
    classifier, encoder = open_run("digits-classify").task, open_run("digits-inr2array").task
    assert torch.equal(classifier.classify(theirs, form=form), classifier.classify(ours))
    torch.testing.assert_close(encoder.encode(theirs, form=form), encoder.encode(ours), atol=1e-2, rtol=1e-2)


def test_the_frequency_of_a_siren_is_its_own(digits, stores):
    form, grid = SirenForm(20.0), image_grid(28, 28)
    ours, theirs = (WeightDataset(path)[:2].features for path in (digits, stores[form]))
    editor = open_run("digits-dilate").task
    expected = editor.edit(ours.to_modules(Siren()))
    found = editor.edit(theirs.to_modules(Siren(omega=20.0)))
    for module, same in zip(found, expected, strict=True):
        torch.testing.assert_close(module(grid), same(grid), atol=1e-3, rtol=0)
    with pytest.raises(ValueError, match="Expected networks of one frequency, but got omega 20.0, 30.0"):
        editor.edit([Siren(), Siren(omega=20.0)])
    with pytest.raises(ValueError, match="Expected networks with omega 30 .*, but these have omega 20"):
        editor.edit(Siren(omega=20.0), form=SirenForm(30.0))


class TanhNetwork(nn.Sequential):
    """Has the widths of the networks that the shipped models read, and another activation."""

    def __init__(self):
        super().__init__(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))


@pytest.mark.parametrize(("command", "model"), [("edit", "digits-dilate"), ("classify", "digits-classify")])
def test_networks_of_another_activation_are_refused_in_one_line(capsys, tmp_path, command, model):
    torch.save(TanhNetwork().state_dict(), tmp_path / "n.pth")
    words = [command, model, "--weights", tmp_path / "n.pth", "--module", f"{__name__}.TanhNetwork"]
    code, _, err = run(capsys, *words, *(["--out", tmp_path / "e.pth"] if command == "edit" else []))
    assert code == 2
    assert "takes sine networks" in err
    assert "activation tanh" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "e.pth").exists()


def test_stores_fits_and_models_tell_their_form_in_their_specs(digits, stores):
    for form, path in ((OURS, digits), *stores.items()):
        dataset = WeightDataset(path)
        assert dataset.store.header.spec.omega is None  # the description on disk stays as it was
        assert SirenForm(dataset.spec.omega, dataset.spec.convention) == form
        assert dataset[:2].features.spec is dataset.spec
        assert dataset.in_form(OURS)[:2].features.spec.matches(WeightDataset(digits).spec)
    for name in ("digits-classify", "digits-dilate", "digits-inr2array"):
        spec = open_run(name).task.model.spec
        assert (spec.omega, spec.convention) == (30.0, "paper")
    fitted = fit(np.zeros((1, 6, 6), dtype=np.uint8), hidden=(4,), omega=20.0, convention="dws", recipe="fast")
    assert (fitted.features.spec.omega, fitted.features.spec.convention) == (20.0, "dws")
