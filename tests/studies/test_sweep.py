"""Sweeps: which values, which is best, what happens after a kill."""

import itertools

import numpy as np
import pytest

from commands import run as run_command
from neuralfunctionals.config import with_values
from neuralfunctionals.data import Store, StoreHeader
from neuralfunctionals.errors import UserError
from neuralfunctionals.registry import find_run
from neuralfunctionals.run_directory import RunDirectory
from neuralfunctionals.studies import search_space, sweep


@pytest.fixture(scope="module")
def latents(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "latents"
    label = np.arange(60) % 10
    values = np.random.default_rng(0).standard_normal((60, 3, 4)).astype(np.float32) + label[:, None, None]
    tensors = {"latents": values.astype(np.float32), "label": label, "split": (np.arange(60) // 20).astype(np.int8)}
    Store.create(path, StoreHeader(60, 60)).write_shard(0, tensors, [{}] * 60)
    return path


def test_the_paper_scale_searches_what_the_appendix_searches():
    assert search_space(find_run("inr2array/cifar10", scale="paper")) == {
        "model.num_blocks": (4, 6),
        "model.channels": (256, 512),
        "model.fourier_scale": (3.0, 10.0),
        "model.dropout": (0.1, 0.0),
        "model.hidden_channels": (512, 1024),
        "model.num_heads": (4, 8),
    }
    assert search_space(find_run("classify/mnist", scale="paper", model="latent")) == {
        "optimizer.weight_decay": (0.1, 0.01),
        "task.mixup_alpha": (0.0, 0.2, 1.0),
    }


def test_fields_of_a_run_are_set_by_name():
    run = find_run("classify/mnist", scale="tiny", model="latent")
    other = with_values(run, {"optimizer.weight_decay": 0.5, "model.channels": 4, "task.mixup_alpha": 1.0, "seed": 3})
    assert other.seed == 3
    assert (other.optimizer.weight_decay, other.model["channels"], other.task.mixup_alpha) == (0.5, 4, 1.0)
    assert other.model["num_blocks"] == run.model["num_blocks"]
    with pytest.raises(UserError, match="Expected a value for seed, which has no fields, but got 'seed.value'"):
        with_values(run, {"seed.value": 3})


def test_trials_differ_the_best_validation_wins_and_a_stopped_sweep_is_continued(latents, tmp_path):
    import optuna

    run = find_run("classify/mnist", scale="tiny", model="latent", data=latents)
    done = []
    first = sweep(run, tmp_path, trials=2, data=latents, progress=lambda done_, total: done.append((done_, total)))
    assert done == [(0, 2), (1, 2), (2, 2)]
    assert first["trials"] == 2
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(tmp_path / "study.journal"))
    )
    study = optuna.load_study(study_name=run.name, storage=storage)
    space = search_space(run)
    combinations = [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]
    study.enqueue_trial(next(c for c in combinations if c not in [trial.params for trial in study.trials]))
    killed = study.ask()
    for name, choices in space.items():
        killed.suggest_categorical(name, choices)
    last = sweep(run, tmp_path, trials=3, data=latents)
    assert last["trials"] == 3
    complete = study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))
    assert len({str(trial.params) for trial in complete}) == 3
    assert killed.params in [trial.params for trial in complete]
    results = [RunDirectory(path).read_result() for path in tmp_path.glob("trial-*")]
    assert len(results) == 3
    assert last["val/accuracy"] == max(result["val"]["accuracy"] for result in results)
    assert RunDirectory(last["run"]).read_result()["val"]["accuracy"] == last["val/accuracy"]


def test_trials_that_diverge_count_but_are_not_the_best(latents, tmp_path):
    run = find_run("classify/mnist", scale="tiny", model="latent", data=latents)
    constant = {"optimizer.schedule": "constant", "optimizer.warmup_steps": 0}
    # With this rate, a weight decay of 0.1 multiplies the parameters by -22 in every step.
    result = sweep(with_values(run, {**constant, "optimizer.lr": 230.0}), tmp_path / "some", trials=6, data=latents)
    assert (result["trials"], result["best"]["optimizer.weight_decay"]) == (6, 0.01)
    assert len(list((tmp_path / "some").glob("trial-*/result.json"))) == 3
    with pytest.raises(UserError, match="diverged in all 2 trials. Use a learning rate below 1e"):
        sweep(with_values(run, {**constant, "optimizer.lr": 1e30}), tmp_path / "all", trials=2, data=latents)


def test_the_command_sweeps_with_a_shared_database(capsys, latents, tmp_path):
    words = ["sweep", "classify/mnist", "--scale", "tiny", "--data", latents, "--out", tmp_path / "s", "--steps", "8"]
    words += ["--study", f"sqlite:///{tmp_path}/study.db", "--json"]
    code, result, err = run_command(capsys, *words, "--trials", "1")
    assert code == 0, err
    config = RunDirectory(result["run"]).read_config()["run"]
    assert (config["training"]["steps"], config["training"]["val_every"]) == (8, 4)
    code, again, err = run_command(capsys, *words, "--trials", "2")
    assert code == 0, err
    assert (result["trials"], again["trials"], len(list((tmp_path / "s").glob("trial-*")))) == (1, 2, 2)
    code, _, err = run_command(capsys, *words, "--trials", "2", "--steps", "0")
    assert (code, err) == (2, "nf: Expected --steps of at least 1, but got 0.\n")


def test_validation_chooses_pooling_and_frequencies_of_predictors():
    for model, names in (("nft-hnp", {"model.fourier_scale", "model.pooling"}), ("statnn", {"optimizer.lr"})):
        space = search_space(find_run("generalization/svhn-grey", scale="small", model=model))
        assert space.keys() == names
        assert np.prod([len(values) for values in space.values()]) == 4


def test_refuses_what_cannot_be_swept(tmp_path):
    with pytest.raises(ValueError, match="inr2array/, but got 'edit/mnist-dilate'"):
        sweep(find_run("edit/mnist-dilate", scale="tiny"), tmp_path, trials=1)
    with pytest.raises(ValueError, match="Expected at least one trial, but got 0"):
        sweep(find_run("classify/mnist", scale="tiny"), tmp_path, trials=0)
