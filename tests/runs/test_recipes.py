"""Recipes from name to result: what they say, what a run leaves, what it refuses."""

import io
import json
from dataclasses import replace

import pytest
import torch

from neuralfunctionals.config import SCALES, DataConfig, with_steps
from neuralfunctionals.data import WeightDataset
from neuralfunctionals.layers import Standardize
from neuralfunctionals.registry import RECIPES, find_run, read_run
from neuralfunctionals.run_directory import RunDirectory
from neuralfunctionals.runs import build_model, dataset_for, execute, measure, open_run
from neuralfunctionals.runs.workers import work
from neuralfunctionals.studies import TABLES
from neuralfunctionals.weight_space import NetworkSpec, canonicalize

SPEC = NetworkSpec.mlp([2, 32, 32, 1])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    run = find_run("edit/mnist-dilate", scale="tiny", model="nfn-hnp")
    return run, out, execute(run, out, progress=False)


def test_every_recipe_has_a_run_for_every_scale_and_model():
    for name, recipe in RECIPES.items():
        for scale in SCALES:
            assert recipe.of.cost[scale]
            for model in recipe.models:
                run = find_run(name, scale=scale, model=model)
                assert read_run(json.loads(json.dumps(run.to_dict()))) == run


def test_every_table_has_its_runs_at_every_scale_each_in_a_place_of_its_own():
    for table in TABLES.values():
        for scale in SCALES:
            runs = [planned.at(scale, limit=100) for planned in table.runs]
            places = {
                (planned.recipe, planned.model, planned.seed, planned.encoder, planned.changes)
                for planned in table.runs
            }
            assert len(places) == len(runs)
            assert {run.scale for run in runs} == {scale}


@pytest.mark.parametrize(("steps", "val_every"), [(200, 20), (550, 55), (30, 3), (7, 1), (137, 137)])
def test_other_steps_keep_validations_in_proportion_as_far_as_they_divide(steps, val_every):
    run = find_run("edit/mnist-dilate", scale="small", model="nft")
    assert run.training.steps == 10 * run.training.val_every
    assert with_steps(run, steps).training.val_every == val_every


def test_the_paper_scale_has_the_appendix_hyperparameters():
    run = find_run("edit/mnist-dilate", scale="paper")
    assert run.model == {
        "channels": 256,
        "num_blocks": 4,
        "hidden_channels": 512,
        "num_heads": 8,
        "dropout": 0.1,
        "fourier_scale": 3.0,
    }
    assert (run.training.steps, run.training.batch_size, run.data.images) == (50_000, 32, "mnist")
    assert (run.optimizer.name, run.optimizer.lr, run.optimizer.warmup_steps) == ("adam", 1e-3, 10_000)


@pytest.mark.parametrize(("recipe", "colours"), [("edit/mnist-erode", 1), ("edit/cifar10-contrast", 3)])
def test_the_papers_editors_have_as_many_parameters(recipe, colours):
    counts = {}
    for model in ("nft", "nfn-np", "nfn-hnp"):
        run = find_run(recipe, scale="paper", model=model)
        built = build_model(model, NetworkSpec.mlp([2, 32, 32, colours]), run.model, seed=0, compiled=False)
        counts[model] = sum(p.numel() for p in built.parameters())
    assert max(counts.values()) < 1.03 * min(counts.values()), counts


def test_a_seed_gives_the_same_first_parameters_and_touches_no_other_random_numbers():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    options = {"channels": [3]}
    first, again, other = (build_model("nfn-np", SPEC, options, seed=seed, compiled=False) for seed in (1, 1, 2))
    torch.testing.assert_close(torch.rand(3), expected)
    same = [torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True)]
    assert all(same)
    assert any(not torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))


def test_networks_are_fitted_once_and_found_again():
    config = DataConfig(limit=20, fit="fast")
    fitted = []
    dataset = dataset_for(config, progress=lambda total, count, psnr_db: fitted.append(count))
    assert len(dataset) == sum(fitted) == 20
    again = dataset_for(config, progress=lambda total, count, psnr_db: fitted.append(count))
    assert again.path == dataset.path
    assert sum(fitted) == 20
    assert dataset_for(replace(config, seed=1)).path != dataset.path


def test_a_run_leaves_all_that_comes_after_it_needs(finished):
    run, out, result = finished
    directory = RunDirectory(out)
    assert directory.read_result() == result
    config = directory.read_config()
    assert read_run(config["run"]) == run
    assert config["code"]["version"]
    assert config["machine"]["torch"] == torch.__version__
    assert result["test"]["mse"] < result["test"]["mse_no_edit"]
    assert directory.read_curve()[-1]["step"] == run.training.steps
    assert directory.read_samples()["edited"].shape == directory.read_samples()["target"].shape


def test_a_finished_run_opens_with_its_best_model(finished):
    run, out, result = finished
    opened = open_run(out)
    assert opened.run == run
    for split in ("train", "val", "test"):
        assert measure(opened.task, WeightDataset(opened.data), split) == result[split]


@pytest.mark.parametrize("limit", [None, 16])
def test_standardizing_uses_what_is_trained_on_alone(tmp_path, limit):
    run = find_run("edit/mnist-dilate", scale="tiny", model="nfn-np")
    run = replace(run, model={"channels": [2], "standardize": True}, training=replace(run.training, limit=limit))
    result = execute(run, tmp_path, progress=False)
    opened = open_run(tmp_path)
    (layer,) = [m for m in opened.task.model.modules() if isinstance(m, Standardize)]
    features = canonicalize(WeightDataset(opened.data).split("train").spread(limit)[:].features)[0]
    assert result["training_networks"] == result["train"]["networks"] == len(features)
    for group, mean, deviation in zip(features.split(), layer.mean, layer.deviation, strict=True):
        torch.testing.assert_close(mean, group.mean()[None])
        torch.testing.assert_close(deviation, group.std(correction=0)[None])


def test_refuses_to_overwrite_a_run(finished, tmp_path):
    run, out, _ = finished
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    with pytest.raises(ValueError, match="has a finished run. Show its result with --resume, or start"):
        execute(run, out, progress=False)
    with pytest.raises(ValueError, match="There is no run to resume"):
        execute(run, tmp_path / "none", resume=True, progress=False)
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(ValueError, match="has other files"):
        execute(run, tmp_path, force=True, progress=False)
    with pytest.raises(ValueError, match="Expected the directory of a run"):
        open_run(tmp_path)
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before


def test_refuses_to_continue_another_run(finished, tmp_path):
    run, out, _ = finished
    RunDirectory(tmp_path).write_config(RunDirectory(out).read_config())
    other = replace(run, optimizer=replace(run.optimizer, lr=0.5))
    with pytest.raises(ValueError, match=r"was started with optimizer.lr 0.01, but now it is 0.5"):
        execute(other, tmp_path, resume=True, progress=False)
    with pytest.raises(ValueError, match="is not finished"):
        open_run(tmp_path)


def test_an_unfinished_run_is_continued_by_the_same_and_refused_by_another(finished, tmp_path):
    run, out, result = finished
    begun = RunDirectory(tmp_path / "begun")
    begun.write_config(RunDirectory(out).read_config())
    other = replace(run, optimizer=replace(run.optimizer, lr=0.5))
    with pytest.raises(ValueError, match=r"was started with optimizer.lr 0.01, but now it is 0.5"):
        execute(other, begun.path, progress=False)
    data = dataset_for(replace(run.data, limit=40))
    with pytest.raises(ValueError, match=r"with other networks than those of .*: they differ in .*limit, networks"):
        execute(run, begun.path, data=data.path, progress=False)
    with begun.hold(), pytest.raises(ValueError, match="Another process is training in"):
        execute(run, begun.path, progress=False)
    with begun.hold(), pytest.raises(ValueError, match="Another process is training in"):
        execute(run, begun.path, force=True, progress=False)
    assert not begun.is_finished
    again = execute(run, begun.path, progress=False)
    assert {**again, "training_seconds": 0} == {**result, "training_seconds": 0}


def test_a_forced_run_replaces_the_earlier_one(finished, tmp_path):
    run, _, result = finished
    first = execute(run, tmp_path / "again", progress=False)
    assert {**first, "training_seconds": 0} == {**result, "training_seconds": 0}
    forced = execute(replace(run, seed=3), tmp_path / "again", force=True, progress=False)
    assert forced["seed"] == 3
    assert forced["test"]["mse"] != first["test"]["mse"]
    assert execute(replace(run, seed=3), tmp_path / "again", resume=True, progress=False) == forced


def test_a_worker_prints_an_error_of_the_system_in_one_line(finished, tmp_path, monkeypatch, capsys):
    run, out, _ = finished
    (tmp_path / "file").write_text("")
    job = {"run": run.to_dict(), "out": f"{tmp_path}/file/run", "data": f"{open_run(out).data}", "encoder": None}
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps([job])))
    with pytest.raises(SystemExit) as stopped:
        work()
    err = capsys.readouterr().err
    assert (stopped.value.code, err.count("\n")) == (2, 1)
    assert "Not a directory" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recipe": "edit/mnist-dilat"}, "Did you mean edit/mnist-dilate"),
        ({"scale": "large"}, "one of tiny, small, long, paper, but got 'large'"),
        ({"model": "nfn"}, "one of neuron-graph, nft-states, nft, nft-hnp, nfn-np, nfn-hnp, but got 'nfn'"),
    ],
)
def test_refuses_names_it_does_not_know(options, message):
    recipe = options.pop("recipe", "edit/mnist-dilate")
    with pytest.raises(ValueError, match=message):
        find_run(recipe, **options)
