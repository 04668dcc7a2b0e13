"""Trained models on networks of one's own, as people call them."""

import numpy as np
import pytest
import torch

from commands import run
from neuralfunctionals.cli import main
from neuralfunctionals.cli.networks import OPERATIONS as NAMES
from neuralfunctionals.data import OPERATIONS, build_cnn, open_images
from neuralfunctionals.data.formats.network_files import read_form, write_networks
from neuralfunctionals.inr import Siren, SirenForm, convert, fit, render_images
from neuralfunctionals.weight_space import WeightSpaceFeatures


@pytest.fixture(scope="module")
def digits():
    return fit(open_images("mnist-unseen").read(range(2)), recipe="fast").features.to_modules(Siren())


@pytest.fixture
def files(digits, tmp_path):
    """The same two digits in several files, and how many networks each holds."""
    torch.save(digits[0].state_dict(), tmp_path / "one.pth")
    torch.save({"model_state_dict": digits[0].half().state_dict(), "epoch": 1}, tmp_path / "half.pt")
    digits[0].float()
    torch.save([d.state_dict() for d in digits], tmp_path / "two.pth")
    torch.save({"state_dict": {f"net.{k}": v for k, v in digits[0].state_dict().items()}}, tmp_path / "lightning.ckpt")
    return {tmp_path / "one.pth": 1, tmp_path / "half.pt": 1, tmp_path / "two.pth": 2, tmp_path / "lightning.ckpt": 1}


def test_every_shipped_model_is_listed_with_its_result(capsys):
    code, result, _ = run(capsys, "models", "--json")
    assert code == 0
    assert {"digits-classify", "digits-dilate", "cnn-accuracy"} <= {row["name"] for row in result["models"]}
    code, out, _ = run(capsys, "models")
    assert code == 0
    assert "digits-classify" in out
    assert "weights only" in out


def test_classifies_networks_of_files(capsys, files):
    labels = set()
    for file, count in files.items():
        code, result, err = run(capsys, "classify", "digits-classify", "--weights", file, "--json")
        assert (code, result["networks"]) == (0, count)
        assert "assuming omega 30 and convention paper, which the model was trained on" in err
        assert [max(range(10), key=p.__getitem__) for p in result["probabilities"]] == result["labels"]
        labels.add(result["labels"][0])
    assert len(labels) == 1
    code, out, _ = run(
        capsys, "classify", "digits-classify", "--weights", file, "--omega", "30", "--convention", "paper"
    )
    assert code == 0
    assert "%" in out


def test_edited_files_keep_their_dtypes(capsys, files, tmp_path):
    for file, count in files.items():
        out = tmp_path / f"edited{file.suffix}"
        code, result, _ = run(capsys, "edit", "digits-dilate", "--weights", file, "--out", out, "--force", "--json")
        assert (code, result["networks"]) == (0, count)
        content = torch.load(out, weights_only=True)
        first = content[0] if isinstance(content, list) else content
        assert all(x.dtype == (torch.float16 if "half" in file.name else torch.float32) for x in first.values())


@pytest.mark.parametrize("name", ["invert", "mirror", "dilate"])
def test_edits_by_any_operation_on_pictures(capsys, digits, files, tmp_path, name):
    words = ("--weights", tmp_path / "two.pth", "--out", tmp_path / "e.pth", "--operation", name, "--json")
    code, result, _ = run(capsys, "edit", *words)
    assert (code, result["networks"], result["edit"]) == (0, 2, name)
    made = WeightSpaceFeatures.from_state_dicts(torch.load(tmp_path / "e.pth", weights_only=True))
    shown, before = (render_images(f, 28, 28) for f in (made, WeightSpaceFeatures.from_modules(digits)))
    pictures = ((before.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).detach().numpy()
    target = torch.from_numpy(OPERATIONS[name](pictures).astype(np.float32)) / 127.5 - 1
    assert (shown - target).square().mean() < 0.01


def test_a_function_of_ones_own_edits_pictures(capsys, files, tmp_path, monkeypatch):
    (tmp_path / "my_edits.py").write_text("def darker(pictures):\n    return pictures // 2\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    words = ("--weights", "one.pth", "--out", "e.safetensors", "--function", "my_edits.darker", "--json")
    code, result, _ = run(capsys, "edit", *words)
    assert (code, result["edit"]) == (0, "my_edits.darker")


def test_predicts_accuracies_of_a_file(capsys, tmp_path):
    torch.save(build_cnn().state_dict(), tmp_path / "cnn.pth")
    code, result, _ = run(capsys, "predict", "cnn-accuracy", "--weights", tmp_path / "cnn.pth", "--json")
    assert code == 0
    assert 0 <= result["accuracies"][0] <= 1


def test_the_operations_in_the_help_are_those_there_are():
    assert NAMES.split(", ") == list(OPERATIONS)


def test_encodes_networks_of_files(capsys, files, tmp_path):
    for file, count in files.items():
        code, result, err = run(capsys, "encode", "digits-inr2array", "--weights", file, "--json")
        assert (code, result["networks"], result["latent_shape"]) == (0, count, [16, 64])
        assert "does not record its SIREN form" in err
        assert np.array(result["latents"]).shape == (count, 16, 64)
    words = ("encode", "digits-inr2array", "--weights", tmp_path / "two.pth", "--out", tmp_path / "l.npz", "--json")
    code, written, _ = run(capsys, *words)
    assert (code, written["networks"], "latents" in written) == (0, 2, False)
    _, result, _ = run(capsys, *words[:4], "--json")
    np.testing.assert_allclose(np.load(tmp_path / "l.npz")["latents"], result["latents"], atol=1e-6)
    assert run(capsys, *words)[0] == 2
    assert run(capsys, *words, "--force")[0] == 0
    assert "--out FILE.npz" in run(capsys, *words[:4])[1]


@pytest.fixture
def store(digits, tmp_path):
    """The same two digits as a store of frequency 20."""
    networks = convert(WeightSpaceFeatures.from_modules(digits), SirenForm(omega=20.0))
    write_networks(tmp_path / "twenty.npz", networks, form=SirenForm(omega=20.0))
    assert main(["data", "import", "npz", str(tmp_path / "twenty.npz"), "--out", str(tmp_path / "store")]) == 0
    return tmp_path / "store"


def test_a_store_gives_the_same_answers_as_its_networks_in_a_file(capsys, files, store, tmp_path):
    capsys.readouterr()
    _, from_file, _ = run(capsys, "classify", "digits-classify", "--weights", tmp_path / "two.pth", "--json")
    for words in (("--data", store), ("--weights", store), ("--weights", tmp_path / "twenty.npz")):
        code, result, err = run(capsys, "classify", "digits-classify", *words, "--json")
        assert (code, err, result["labels"]) == (0, "", from_file["labels"])
    for how in (["digits-dilate"], ["--operation", "invert"]):
        code, _, _ = run(capsys, "edit", *how, "--data", store, "--out", tmp_path / "e.npz", "--force", "--json")
        assert (code, read_form(tmp_path / "e.npz")) == (0, SirenForm(omega=20.0))


def test_only_what_is_assumed_is_said(capsys, files, tmp_path):
    words = ("classify", "digits-classify", "--weights", tmp_path / "one.pth")
    for option, value, assumed in (("--omega", "30", "convention paper"), ("--convention", "dws", "omega 30")):
        _, _, err = run(capsys, *words, option, value)
        assert f"assuming {assumed}, which the model was trained on. Override it with --{assumed.split()[0]}." in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["encode", "digits-inr2array", "--weights", "one.pth", "--out", "e.pth"], "--out to end in .npz"),
        (["encode", "digits-inr2array", "--data", "one.pth", "--out", "l"], "one.pth is a file. Pass a file of"),
        (["encode", "digits-inr2array", "--data", "store"], "Expected --out DIR"),
        (["encode", "digits-inr2array", "--data", "store", "--out", "l", "--omega", "20"], "a store records it itself"),
        (["encode", "digits-dilate", "--weights", "one.pth"], "a recipe inr2array/..., but digits-dilate"),
        (["classify", "digits-classify"], "either --weights FILE or --data DIR"),
        (["classify", "digits-clasify", "--weights", "one.pth"], "digits-classify"),
        (["classify", "digits-dilate", "--weights", "one.pth"], "a recipe classify/..., but digits-dilate"),
        (["classify", "digits-classify", "--weights", "one.pth", "--omega", "0"], "positive and finite"),
        (["edit", "--weights", "one.pth", "--out", "e.pth"], "one way to edit"),
        (["edit", "--operation", "blurr", "--weights", "one.pth", "--out", "e.pth"], "Did you mean blur?"),
        (["edit", "blur", "--weights", "one.pth", "--out", "e.pth"], "Did you mean --operation blur?"),
        (["edit", "--function", "cv2.blur", "--weights", "one.pth", "--out", "e.pth"], "cv2.blur raised error: "),
        (["edit", "--function", "torch.pi", "--weights", "one.pth", "--out", "e.pth"], "but it is a float"),
        (["predict", "cnn-accuracy", "--weights", "one.pth", "--module", "siren_styles.FunctionalLayer"], "TypeError"),
        (["predict", "cnn-accuracy", "--weights", "one.pth", "--module", "broken"], "Cannot import broken: ValueError"),
        (["classify", "digits-classify", "--weights", "net.pth"], "a dict with 'epoch' of type int. Save the"),
        (["classify", "digits-classify", "--weights", "module.pth"], "from torch.save(module.state_dict(), file)"),
        (["edit", "digits-dilate", "--weights", "two.pth", "--out", "e.safetensors"], "Expected one network for"),
        (["predict", "cnn-accuracy", "--weights", "one.pth"], "The model takes networks 1->16"),
    ],
)
def test_mistakes_get_one_line(capsys, files, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "broken.py").write_text("raise ValueError('on purpose')\n")
    torch.save({"epoch": 1, "net": {}}, tmp_path / "net.pth")
    torch.save(Siren(), tmp_path / "module.pth")
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "e.pth").exists()
