"""The models inside the package: found by name, small, with a card, and as good as the card says."""

import json
import subprocess
import sys

import pytest
import torch

import neuralfunctionals as nf
from commands import run
from neuralfunctionals.data.formats.network_files import write_networks
from neuralfunctionals.run_directory import RunDirectory
from neuralfunctionals.runs import open_run
from neuralfunctionals.shipped import SHIPPED, find_shipped


@pytest.fixture(scope="module")
def digits():
    """Embedded digits, of the test split, as networks."""
    images = nf.data.open_images("mnist-sample")
    chosen = (images.splits == 2).nonzero()[0][:40]
    pixels = images.read(chosen)
    return nf.inr.fit(pixels).features, pixels, torch.from_numpy(images.labels[chosen])


def test_they_are_small_and_have_cards():
    assert set(SHIPPED) == {
        "cnn-accuracy",
        "digits-classify",
        "digits-dilate",
        "digits-erode",
        "digits-gradient",
        "digits-inr2array",
    }
    folder = find_shipped(SHIPPED[0]).parent
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) < 10e6
    for name in SHIPPED:
        card = (folder / name / "README.md").read_text()
        result = RunDirectory(folder / name).read_result()
        assert card.startswith(f"# {name}\n")
        metric = next(metric for metric in result["test"] if metric != "networks")
        assert f"| test | {result['test']['networks']:,} | {result['test'][metric]:.4f} |" in card
        assert "/" not in json.dumps(json.loads((folder / name / "run.json").read_text())["data"].get("path", ""))


@pytest.mark.parametrize("name", SHIPPED)
def test_each_loads_offline_by_its_name_in_a_process_of_its_own(name, tmp_path):
    code = f"import neuralfunctionals as nf; print(type(nf.from_pretrained({name!r})).__name__)"
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() in nf.models.__all__


@pytest.mark.parametrize("edit", ["dilate", "erode", "gradient"])
def test_editors_more_than_halve_the_error_on_other_digits(digits, edit):
    networks, pixels, _ = digits
    target = nf.inr.image_values(torch.from_numpy(nf.data.EDITS[edit](pixels)))
    edited = open_run(f"digits-{edit}").task.edit(networks)
    before, after = ((nf.inr.render_images(f, 28, 28) - target).square().mean() for f in (networks, edited))
    assert after < 0.5 * before


def test_the_classifier_reads_most_digits(digits):
    networks, _, labels = digits
    assert (open_run("digits-classify").task.classify(networks) == labels).float().mean() > 0.75


def test_the_array_shows_the_digit_again(digits):
    networks, _, _ = digits
    task = open_run("digits-inr2array").task
    shown, again = nf.inr.render_images(networks, 28, 28), task.show(task.encode(networks), 28, 28)
    mean = shown.mean(0, keepdim=True)
    assert (again - shown).square().mean() < 0.7 * (mean - shown).square().mean()


def test_the_array_stays_when_neurons_change_places_signs_and_phases(digits):
    networks, _, _ = digits
    task = open_run("digits-inr2array").task
    generator = torch.Generator().manual_seed(0)
    permutation = nf.NeuronPermutation.random(networks.spec, generator=generator)
    latents = task.encode(networks)
    torch.testing.assert_close(task.encode(permutation(networks)), latents, atol=1e-5, rtol=0)
    twist = nf.SineSymmetry.random(networks.spec, max_turns=1, generator=generator)
    torch.testing.assert_close(task.encode(twist(networks)), latents, atol=1e-4, rtol=0)


def test_the_judge_of_cnns_reads_one_as_a_module_and_does_not_see_the_order_of_its_channels():
    torch.manual_seed(0)
    cnns = [nf.data.build_cnn() for _ in range(3)]
    judge = open_run("cnn-accuracy").task
    accuracies = judge.predict(cnns)
    assert accuracies.shape == (3,)
    assert ((accuracies > 0) & (accuracies < 0.6)).all()
    assert accuracies.std() > 1e-3
    features = nf.WeightSpaceFeatures.from_modules(cnns)
    permutation = nf.NeuronPermutation.random(features.spec, "HNP", generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(judge.predict(permutation(features)), accuracies, atol=1e-5, rtol=0)


def test_commands_take_their_names(capsys, tmp_path):
    write_networks(tmp_path / "a.safetensors", nf.WeightSpaceFeatures.from_modules([nf.inr.Siren()]))
    words = ["edit", "digits-dilate", "--weights", tmp_path / "a.safetensors", "--out", tmp_path / "b.safetensors"]
    code, result, err = run(capsys, *words, "--json")
    assert (code, result["edit"]) == (0, "dilate"), err
    code, _, err = run(capsys, "evaluate", "digits-dilate")
    assert (code, err) == (2, "nf: The model digits-dilate comes without its networks. Add --data DIR.\n")
