"""Searching the hyperparameters that the paper searched, by validation alone: `search_space`, `sweep`."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from neuralfunctionals.data import RunDirectory
from neuralfunctionals.recipes.catalog import RECIPES
from neuralfunctionals.recipes.execute import execute
from neuralfunctionals.recipes.run import Run, with_values
from neuralfunctionals.tasks import ClassifyTask, GeneralizationTask, ReconstructTask, Task

Space = dict[str, tuple[Any, ...]]

_TASKS: dict[str, type[Task]] = {
    "inr2array": ReconstructTask,
    "classify": ClassifyTask,
    "generalization": GeneralizationTask,
}


def search_space(run: Run) -> Space:
    """The values to try of each field; widths and depths relative to the run's own, at `paper` those of the appendix.

    Example:
        >>> from neuralfunctionals.recipes import find_run
        >>> search_space(find_run("inr2array/mnist", scale="paper"))["model.channels"]
        (256, 512)
    """
    family = run.recipe.partition("/")[0]
    if family not in _TASKS:
        raise ValueError(f"Expected a recipe of {', '.join(f'{name}/' for name in _TASKS)}, but got '{run.recipe}'.")
    dropout: Space = {"model.dropout": (0.1, 0.0)}
    if family == "classify":
        on_latents = run.model_name in RECIPES[run.recipe].latent_models
        return {"optimizer.weight_decay": (0.1, 0.01)} | (
            {"task.mixup_alpha": (0.0, 0.2, 1.0)} if on_latents else dropout
        )
    if family == "generalization":
        if run.model_name in ("nft", "nft-hnp"):
            return {"model.fourier_scale": (3.0, 10.0), "model.pooling": ("HNP", "cross_attention")}
        return {"optimizer.lr": (3e-4, 1e-3, 3e-3, 1e-2)}
    blocks, channels = run.model["num_blocks"], run.model["channels"]
    space: Space = {
        "model.num_blocks": tuple(sorted({max(1, 2 * blocks // 3), blocks})),
        "model.channels": (channels, 2 * channels),
        **({} if run.model_name == "neuron-graph" else {"model.fourier_scale": (3.0, 10.0)}),
        **dropout,
    }
    if run.model_name == "nft":
        hidden, heads = run.model["hidden_channels"], run.model["num_heads"]
        space |= {"model.hidden_channels": (hidden // 2, hidden), "model.num_heads": (heads, 2 * heads)}
    return space


def sweep(
    run: Run,
    out: str | os.PathLike[str],
    *,
    trials: int,
    study: str | os.PathLike[str] | None = None,
    data: str | os.PathLike[str] | None = None,
    fitting: Callable[[int, int, Sequence[float]], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Trains with different values and compares the best validations; a sweep that was stopped is continued.

    Args:
        run: What to vary.
        out: A directory that gets one run directory for each trial.
        trials: Trials in all, earlier ones included; none is repeated, and there are at most as many as combinations.
        study: A journal file, by default `study.journal` in `out`, or the URL of a database that machines share.
        data: A store to learn from; what the run describes is made if missing.
        fitting: Called while networks are fitted, see `dataset_for`.
        progress: Called with the number of trials done and in all.

    Returns:
        The best values, and what they gave on the validation split.
    """
    try:
        import optuna
        from optuna.trial import TrialState
    except ImportError as error:
        raise ValueError("A sweep needs Optuna: pip install 'neuralfunctionals[sweep]'.") from error
    if trials < 1:
        raise ValueError(f"Expected at least one trial, but got {trials}.")
    out, space = Path(out), search_space(run)
    task = _TASKS[run.recipe.partition("/")[0]]
    shared = study is not None and "://" in os.fspath(study)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        found = optuna.create_study(
            study_name=run.name,
            storage=os.fspath(study or "") if shared else _journal(Path(study or out / "study.journal")),
            sampler=optuna.samplers.BruteForceSampler(seed=run.seed),
            direction="maximize" if task.higher_is_better else "minimize",
            load_if_exists=True,
        )
    if not shared:  # in a file of one's own, a trial that still runs is one that was killed
        for trial in found.get_trials(states=(TrialState.RUNNING,)):
            found.tell(trial.number, state=TrialState.FAIL)
            found.enqueue_trial(trial.params)

    def objective(trial: Any) -> float:
        values = {name: trial.suggest_categorical(name, choices) for name, choices in space.items()}
        path = out / f"trial-{_digest(values)}"
        trial.set_user_attr("run", path.name)
        begun = RunDirectory(path).is_run
        result = execute(with_values(run, values), path, data=data, resume=begun, progress=False, fitting=fitting)
        return result["val"][task.metric]

    report = progress or (lambda done, total: None)
    count = min(trials, _combinations(space))
    while (done := len(found.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)))) < count:
        report(done, count)
        found.optimize(objective, n_trials=1)
    report(done, count)
    return {
        "recipe": run.recipe,
        "model": run.model_name,
        "trials": done,
        f"val/{task.metric}": found.best_value,
        "best": found.best_params,
        "run": os.fspath(out / found.best_trial.user_attrs["run"]),
    }


def _journal(file: Path) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    file.parent.mkdir(parents=True, exist_ok=True)
    return JournalStorage(JournalFileBackend(os.fspath(file)))


def _digest(values: Mapping[str, Any]) -> str:
    """A name for a combination: a trial begun again finds its directory."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]


def _combinations(space: Space) -> int:
    count = 1
    for choices in space.values():
        count *= len(choices)
    return count
