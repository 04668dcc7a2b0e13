"""Recipes that predict accuracies: their zoos, their models, and what a run leaves."""

from dataclasses import replace

import pytest
import torch

from neuralfunctionals.config import ZooConfig
from neuralfunctionals.data import WeightDataset, build_cnn
from neuralfunctionals.layers import Standardize
from neuralfunctionals.registry import RECIPES, find_run
from neuralfunctionals.run_directory import RunDirectory
from neuralfunctionals.runs import build_model, dataset_for, execute, measure, open_run
from neuralfunctionals.tasks import GeneralizationTask
from neuralfunctionals.testing import random_features
from neuralfunctionals.weight_space import NetworkSpec, NeuronPermutation

RECIPE = "generalization/svhn-grey"
SPEC = NetworkSpec.cnn([1, 16, 16, 16], (3, 3), dense=[10])
MODELS = RECIPES[RECIPE].models


def test_the_paper_scale_has_the_appendix_hyperparameters():
    run = find_run("generalization/cifar10-grey", scale="paper")
    assert run.model == {
        "channels": 256,
        "num_blocks": 4,
        "hidden_channels": 1024,
        "num_heads": 4,
        "dropout": 0.1,
        "fourier_scale": 3.0,
        "pooling": "HNP",
        "head_channels": [1000, 1000],
    }
    assert run.data == ZooConfig("cifar10", grey=True, count=30_000, epochs=86, batch_size=512)
    assert (run.training.steps, run.training.batch_size) == (75_000, 8)
    assert (run.optimizer.name, run.optimizer.lr, run.optimizer.warmup_steps) == ("adam", 1e-3, 10_000)
    with torch.device("meta"):
        count = sum(p.numel() for p in build_model("nft", SPEC, run.model, seed=0, compiled=False).parameters())
    assert count / 1e6 == pytest.approx(46, rel=0.05)
    for model, channels in (("nfn-np", [16, 16, 5]), ("nfn-hnp", [16, 16, 5]), ("statnn", None)):
        baseline = find_run(RECIPE, scale="paper", model=model)
        assert baseline.model.get("channels") == channels
        assert baseline.model["head_channels"] == [1000, 1000]
        assert baseline.optimizer.warmup_steps == 0


def test_the_two_zoos_have_hyperparameters_of_their_own():
    assert len({find_run(recipe, scale="paper").data.seed for recipe in RECIPES if "grey" in recipe}) == 2


@pytest.mark.parametrize("scale", ["tiny", "small"])
@pytest.mark.parametrize(
    ("model", "options"),
    [*((model, {}) for model in MODELS), ("nft", {"pooling": "cross_attention", "num_latents": 4})],
    ids=[*MODELS, "nft-cross-attention"],
)
def test_no_predictor_notices_a_permutation_of_hidden_channels(scale, model, options):
    run = find_run(RECIPE, scale=scale, model=model)
    built = build_model(model, SPEC, {**run.model, **options}, seed=0, compiled=False, output="vector").double()
    task = GeneralizationTask(built)
    features = 0.3 * random_features(SPEC, batch=3)
    expected = task.predict(features)
    assert expected.unique().numel() == 3
    permutation = NeuronPermutation.random(SPEC, "HNP", generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(task.predict(permutation(features)), expected, atol=1e-9, rtol=0)


def test_zoos_are_trained_once_and_found_again():
    config = ZooConfig(count=8, epochs=2, batch_size=64, limit_images=300)
    trained, accuracies = [], []

    def progress(total, count, values):
        assert total == 8
        trained.append(count)
        accuracies.extend(values)

    dataset = dataset_for(config, progress=progress)
    assert len(dataset) == sum(trained) == 8
    assert sorted(accuracies) == sorted(dataset.column("test_accuracy").tolist())
    assert dataset_for(config, progress=progress).path == dataset.path
    assert sum(trained) == 8
    assert dataset_for(replace(config, seed=1)).path != dataset.path


@pytest.mark.parametrize("model", MODELS)
def test_every_model_trains_and_its_run_opens_again(tmp_path, model):
    run = find_run(RECIPE, scale="tiny", model=model)
    result = execute(run, tmp_path, progress=False)
    opened = open_run(tmp_path)
    assert opened.run == run
    zoo = WeightDataset(opened.data)
    for split in ("train", "val", "test"):
        assert measure(opened.task, zoo, split) == pytest.approx(result[split], abs=1e-5)
    samples = RunDirectory(tmp_path).read_samples()
    torch.testing.assert_close(samples["true"], zoo.split("test").column("test_accuracy"))
    assert samples["predicted"].shape == (20,)
    assert 0 < opened.task.predict(build_cnn()) < 1


@pytest.mark.parametrize("model", ["nft", "nfn-np", "statnn"])
def test_standardizing_uses_the_training_split_alone(tmp_path, model):
    run = find_run(RECIPE, scale="tiny", model=model)
    execute(replace(run, model={**run.model, "standardize": True}), tmp_path, progress=False)
    opened = open_run(tmp_path)
    (layer,) = [m for m in opened.task.model.modules() if isinstance(m, Standardize)]
    groups = WeightDataset(opened.data).split("train")[:].features.split()
    torch.testing.assert_close(layer.mean, torch.stack([group.mean()[None] for group in groups]))
