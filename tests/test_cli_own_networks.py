"""Sine networks of one's own, without images, are learned from: what they show is rendered from them."""

import pytest
import torch

from commands import run
from neuralfunctionals.cli import main
from neuralfunctionals.data import EDITS, WeightDataset
from neuralfunctionals.inr import image_bytes, image_values, render_images
from neuralfunctionals.run_directory import RunDirectory

OPTIONS = ("--omega", "20", "--convention", "dws")


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """Networks with the images they were fitted to, of another frequency and convention than ours."""
    out = tmp_path_factory.mktemp("data") / "fitted"
    words = ["fit", "--images", "mnist-sample", "--limit", "60", "--recipe", "fast", *OPTIONS]
    assert main([*words, "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def own(fitted, tmp_path_factory):
    """The same networks as a user has them: one file each, in a folder for each class, and imported from there."""
    folder = tmp_path_factory.mktemp("own")
    assert main(["data", "export", "state-dicts", str(fitted), "--out", str(folder / "files")]) == 0
    words = ["data", "import", "state-dicts", str(folder / "files"), *OPTIONS, "--image-size", "20x24"]
    assert main([*words, "--out", str(folder / "store")]) == 0
    return folder / "store"


def trained(capsys, recipe, data, out, *words):
    code, result, err = run(capsys, "train", recipe, "--scale", "tiny", "--data", data, "--out", out, *words, "--json")
    assert code == 0, err
    return result, RunDirectory(out).read_samples()


def test_the_store_says_the_size_and_holds_no_images(capsys, own):
    info = run(capsys, "data", "info", own, "--json")[1]
    assert info["image_shape"] == [20, 24, 1]
    assert "image" not in info["tensors"]
    assert WeightDataset(own)[:2].image is None


def test_images_are_rendered_as_they_are_read(own):
    dataset = WeightDataset(own).with_images()
    items = dataset[[5, 2]]
    shown = render_images(items.features, 20, 24)
    assert torch.equal(items.image, image_bytes(shown))
    assert torch.equal(dataset[2].image, items.image[1])
    assert WeightDataset(own).with_images((6, 7))[:3].image.shape == (3, 6, 7, 1)


def test_an_editor_learns_the_edit_of_what_networks_show(capsys, own, fitted, tmp_path):
    result, samples = trained(capsys, "edit/mnist-dilate", own, tmp_path / "run", "--model", "nfn-hnp")
    assert samples["image"].shape == samples["edited"].shape == (6, 20, 24, 1)
    shown = image_bytes(samples["original"])
    assert torch.equal(image_bytes(samples["image"]), shown)
    assert torch.equal(samples["target"], image_values(EDITS["dilate"](shown.numpy())))
    assert result["test"]["mse"] < result["test"]["mse_no_edit"]
    expected = run(capsys, "evaluate", "digits-dilate", "--data", fitted, "--split", "train", "--json")[1]
    found = run(capsys, "evaluate", "digits-dilate", "--data", own, "--split", "train", "--json")[1]
    assert found["mse"] == pytest.approx(expected["mse"], rel=0.5)  # other sizes, other splits, the same task


@pytest.mark.parametrize("target", ["inr", "image"])
def test_an_encoder_learns_from_them(capsys, own, tmp_path, target):
    words = ["--task.target", target, "--task.augment", "turns"]
    result, samples = trained(capsys, "inr2array/mnist", own, tmp_path / "run", *words)
    assert samples["reconstruction"].shape == samples["image"].shape == (6, 20, 24, 1)
    assert result["steps"] == 20
    code, encoded, err = run(capsys, "encode", tmp_path / "run", "--out", tmp_path / "latents", "--json")
    assert (code, encoded["items"]) == (0, 60), err


def test_a_classifier_learns_from_them_and_its_report_shows_them(capsys, own, tmp_path):
    _, samples = trained(capsys, "classify/mnist", own, tmp_path / "run", "--model", "neuron-graph")
    assert samples["image"].shape == (6, 20, 24, 1)
    code, _, err = run(capsys, "report", tmp_path / "run", "--out", tmp_path / "report.html")
    assert code == 0, err
    assert "are missing from" not in (tmp_path / "report.html").read_text()


def test_colours_are_rendered_too(capsys, tmp_path):
    words = ["fit", "--images", "shapes-sample", "--limit", "40", "--recipe", "fast", "--out", tmp_path / "fitted"]
    assert run(capsys, *words)[0] == 0
    assert run(capsys, "data", "export", "nfn-sirens", tmp_path / "fitted", "--out", tmp_path / "files")[0] == 0
    words = ["data", "import", "nfn-sirens", tmp_path / "files", "--out", tmp_path / "own"]
    assert run(capsys, *words, "--image-size", "16")[0] == 0
    _, samples = trained(capsys, "edit/cifar10-contrast", tmp_path / "own", tmp_path / "run", "--model", "nfn-np")
    assert samples["target"].shape[1:] == (16, 16, 3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--image-size", "0"], "Expected --image-size as 28 or 28x32 (height x width), but got '0'"),
        (["--image-size", "2x3x4"], "but got '2x3x4'"),
        (["--omega", "0"], "Expected omega, the frequency of the sines, to be positive and finite, but got 0"),
        (["--convention", "papers"], "Expected the convention to be one of"),
    ],
)
def test_refuses_sizes_and_forms_that_make_no_sense(capsys, fitted, tmp_path, words, message):
    code, _, err = run(capsys, "data", "import", "npz", fitted, "--out", tmp_path / "s", *words)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_networks_that_show_no_images_are_refused_by_tasks_that_need_them(capsys, tmp_path):
    (tmp_path / "nets").mkdir()
    for place in range(10):
        layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
        torch.save(layers.state_dict(), tmp_path / "nets" / f"{place}.pth")
    words = ["data", "import", "state-dicts", tmp_path / "nets", "--out", tmp_path / "store"]
    code, _, err = run(capsys, *words, "--image-size", "28")
    assert code == 2
    assert "Expected sine networks of two coordinates to render images from, but got 3->4, 4->1" in err
    assert run(capsys, *words)[0] == 0
    words = ["train", "edit/mnist-dilate", "--scale", "tiny", "--data", tmp_path / "store", "--out", tmp_path / "run"]
    code, _, err = run(capsys, *words)
    assert code == 2
    assert "or sine networks of two coordinates to render them from" in err
    assert not (tmp_path / "run").exists()
