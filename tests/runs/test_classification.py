"""From weights to classes: autoencoders, latents and classifiers, at scale tiny."""

from dataclasses import replace

import pytest
import torch

from neuralfunctionals.data import WeightDataset
from neuralfunctionals.layers import Standardize
from neuralfunctionals.models import Canonical, Inr2Array
from neuralfunctionals.registry import RECIPES, find_run
from neuralfunctionals.run_directory import RunDirectory
from neuralfunctionals.runs import build_model, encode, execute, measure, open_run
from neuralfunctionals.weight_space import NetworkSpec, SineSymmetry, canonicalize

SPEC = NetworkSpec.mlp([2, 32, 32, 1])


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    """A trained autoencoder and the latents of its data."""
    out = tmp_path_factory.mktemp("encoded")
    execute(find_run("inr2array/mnist", scale="tiny"), out / "run", progress=False)
    encode(out / "run", open_run(out / "run").data, out / "latents")
    return out


@pytest.mark.parametrize("model", RECIPES["inr2array/mnist"].models)
@pytest.mark.parametrize("images", ["mnist", "cifar10"])
def test_autoencoders_train_and_open_again(tmp_path, model, images):
    run = find_run(f"inr2array/{images}", scale="tiny", model=model)
    result = execute(run, tmp_path, progress=False)
    opened = open_run(tmp_path)
    assert isinstance(opened.task.model, Inr2Array)
    assert measure(opened.task, WeightDataset(opened.data), "test") == result["test"]
    samples = RunDirectory(tmp_path).read_samples()
    assert samples["image"].shape == samples["original"].shape == samples["reconstruction"].shape


@pytest.mark.parametrize("model", RECIPES["classify/mnist"].models)
def test_classifiers_of_weights_train_and_open_again(tmp_path, model):
    result = execute(find_run("classify/fashion", scale="tiny", model=model), tmp_path, progress=False)
    opened = open_run(tmp_path)
    assert measure(opened.task, WeightDataset(opened.data), "test") == result["test"]
    assert result["league"] == ("asks the function" if model in ("probe-cnn", "render-cnn") else "weights only")
    assert result["train"]["cross_entropy"] < 2.5  # ten classes by chance: 2.3


def test_latents_keep_what_is_known_of_their_networks_and_are_those_of_the_encoder(encoded):
    opened = open_run(encoded / "run")
    networks, latents = WeightDataset(opened.data), WeightDataset(encoded / "latents")
    for name in ("label", "split", "source_index", "copy", "psnr_db"):
        assert torch.equal(networks.column(name), latents.column(name))
    assert torch.equal(networks[:].image, latents[:].image)
    torch.testing.assert_close(latents[5:9].latents, opened.task.encode(networks[5:9].features), atol=1e-5, rtol=1e-4)
    assert latents[0].features is None
    assert latents.metadata(3) == networks.metadata(3)
    assert not list(latents.store.problems())


def test_a_store_of_latents_chooses_the_classifier_of_latents(encoded, tmp_path):
    run = find_run("classify/mnist", scale="tiny", data=encoded / "latents")
    assert run.model_name == "latent"
    assert find_run("classify/mnist", scale="tiny", data=open_run(encoded / "run").data).model_name == "neuron-graph"
    result = execute(run, tmp_path, data=encoded / "latents", progress=False)
    opened = open_run(tmp_path)
    assert measure(opened.task, WeightDataset(opened.data), "test") == result["test"]
    assert opened.task.source == "latents"


def test_encoding_again_changes_nothing_and_another_encoder_is_told_apart(encoded, tmp_path):
    opened, out = open_run(encoded / "run"), encoded / "latents"
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in out.iterdir()}
    (out / "00002.jsonl").unlink()
    done = []
    encode(encoded / "run", opened.data, out, progress=lambda total, count: done.append(count))
    assert sum(done) == 16
    assert {p: p.read_bytes() for p in out.iterdir()} == {p: data for p, (data, _) in before.items()}
    assert (out / "00001.jsonl").stat().st_mtime_ns == before[out / "00001.jsonl"][1]
    execute(replace(opened.run, seed=1), tmp_path / "other", progress=False)
    with pytest.raises(ValueError, match="was made differently"):
        encode(tmp_path / "other", opened.data, out)


@pytest.mark.parametrize(
    ("recipe", "model"), [("edit/mnist-dilate", "nfn-np"), ("classify/mnist", "dws"), ("inr2array/mnist", "nft")]
)
def test_models_see_canonical_networks_if_asked(tmp_path, recipe, model):
    run = replace(find_run(recipe, scale="tiny", model=model), canonical="sine")
    if recipe.startswith("edit"):
        run = replace(run, model={**run.model, "standardize": True})
    result = execute(run, tmp_path, progress=False)
    opened = open_run(tmp_path)
    dataset = WeightDataset(opened.data)
    assert measure(opened.task, dataset, "val") == result["val"]
    features = dataset[:4].features
    turned = SineSymmetry.random(dataset.spec, generator=torch.Generator().manual_seed(0))(features)
    if isinstance(opened.task.model, Inr2Array):
        torch.testing.assert_close(opened.task.encode(turned), opened.task.encode(features), atol=1e-4, rtol=1e-4)
    else:
        assert isinstance(opened.task.model, Canonical)
    for part in opened.task.model.modules():
        if isinstance(part, Standardize):
            seen = canonicalize(dataset.split("train")[:].features)[0]
            torch.testing.assert_close(part.mean[0], seen.split()[0].mean()[None])


def test_the_paper_scale_has_the_appendix_hyperparameters():
    run = find_run("inr2array/mnist", scale="paper")
    assert (run.optimizer.name, run.optimizer.lr, run.optimizer.weight_decay) == ("adamw", 1e-4, 0.01)
    assert (run.optimizer.warmup_steps, run.training.steps, run.training.batch_size) == (10_000, 200_000, 64)
    with torch.device("meta"):
        model = build_model("nft", SPEC, run.model, seed=0, compiled=False, output="autoencoder")
    assert round(sum(p.numel() for p in model.parameters()) / 1e6) == 22
    latent = find_run("classify/cifar10", scale="paper", model="latent")
    assert (latent.training.batch_size, latent.optimizer.lr, latent.model["dropout"]) == (128, 1e-4, 0.1)
    assert latent.training.steps == 100 * (450_000 // 128)


def test_refuses_to_mix_up_weights_and_latents(encoded, tmp_path):
    with pytest.raises(ValueError, match="Expected a model, one of latent, but got 'nft'"):
        find_run("classify/mnist", model="nft", data=encoded / "latents")
    with pytest.raises(ValueError, match="'latent' needs latents: make them with nf encode"):
        execute(find_run("classify/mnist", scale="tiny", model="latent"), tmp_path / "a", progress=False)
    with pytest.raises(ValueError, match="holds no networks"):
        execute(find_run("inr2array/mnist", scale="tiny"), tmp_path / "b", data=encoded / "latents", progress=False)
    with pytest.raises(ValueError, match="holds no networks"):
        encode(encoded / "run", encoded / "latents", tmp_path / "c")
    execute(find_run("classify/mnist", scale="tiny", model="dws"), tmp_path / "d", progress=False)
    with pytest.raises(ValueError, match="Expected a run of an inr2array/ recipe, but .* is a run of classify/mnist"):
        encode(tmp_path / "d", open_run(encoded / "run").data, tmp_path / "e")
