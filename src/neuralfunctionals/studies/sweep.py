"""Searches the hyperparameters that the paper searched, by validation: `search_space`, `sweep`."""

from __future__ import annotations

import hashlib
import json
import math
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from neuralfunctionals.config import Run, with_values
from neuralfunctionals.errors import UserError
from neuralfunctionals.registry import TASKS, find_task
from neuralfunctionals.run_directory import RunDirectory
from neuralfunctionals.runs.execute import execute
from neuralfunctionals.tasks import TrainingDivergedError
from neuralfunctionals.tasks.definition import Space


def search_space(run: Run) -> Space:
    """The values to try for each field: those of the appendix at `paper`, otherwise relative to the run's values.

    For models without settings in the task, three learning rates are tried.

    Example:
        >>> from neuralfunctionals.registry import find_run
        >>> search_space(find_run("inr2array/mnist", scale="paper"))["model.channels"]
        (256, 512)
    """
    task = find_task(run.recipe)
    if task.search is None and task in TASKS.values():
        names = ", ".join(f"{name}/" for name, other in TASKS.items() if other.search)
        raise UserError(f"Expected a recipe of {names}, but got '{run.recipe}'.")
    if task.search is None or run.model_name not in task.settings:
        return {"optimizer.lr": tuple(run.optimizer.lr * factor for factor in (0.3, 1.0, 3.0))}
    return task.search(run)


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
    """Trains with different values and compares the best validations; a stopped sweep is resumed.

    Trials whose loss diverges count, but cannot be the best.

    Args:
        run: The run to vary.
        out: The output directory, with one run directory per trial.
        trials: Total number of trials, including earlier ones; no combination of values is tried twice.
        study: A journal file, by default `study.journal` in `out`, or the URL of a database that machines share.
        data: A store to train on. By default, the networks of the run config are made.
        fitting: Called while networks are fitted; see `dataset_for`.
        progress: Called with the number of trials done and in total.

    Returns:
        The best values, and their metric on the validation split.
    """
    try:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend
        from optuna.trial import TrialState
    except ImportError as error:
        raise UserError("A sweep needs Optuna: pip install 'neuralfunctionals[sweep]'.") from error
    if trials < 1:
        raise UserError(f"Expected at least one trial, but got {trials}.")
    out, space = Path(out), search_space(run)
    task = find_task(run.recipe)
    study = os.fspath(study or out / "study.journal")
    shared = "://" in study
    if not shared:
        Path(study).parent.mkdir(parents=True, exist_ok=True)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        found = optuna.create_study(
            study_name=run.name,
            storage=study if shared else JournalStorage(JournalFileBackend(study)),
            sampler=optuna.samplers.BruteForceSampler(seed=run.seed),
            direction="maximize" if task.higher_is_better else "minimize",
            load_if_exists=True,
        )
    if not shared:  # in a private file, a trial that is still marked as running was killed
        for trial in found.get_trials(states=(TrialState.RUNNING,)):
            found.tell(trial.number, state=TrialState.FAIL)
            found.enqueue_trial(trial.params)

    def objective(trial: Any) -> float:
        values = {name: trial.suggest_categorical(name, choices) for name, choices in space.items()}
        # Named after its values, so that a repeated trial finds its directory.
        digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]
        path = out / f"trial-{digest}"
        trial.set_user_attr("run", path.name)
        begun = RunDirectory(path).is_run
        try:
            result = execute(with_values(run, values), path, data=data, resume=begun, progress=False, fitting=fitting)
        except TrainingDivergedError as error:  # these values have been tried too
            raise optuna.TrialPruned(str(error)) from error
        return result["val"][task.metric]

    report = progress or (lambda done, total: None)
    count = min(trials, math.prod(map(len, space.values())))
    tried = (TrialState.COMPLETE, TrialState.PRUNED)
    while (done := len(found.get_trials(deepcopy=False, states=tried))) < count:
        report(done, count)
        found.optimize(objective, n_trials=1)
    report(done, count)
    if not found.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
        raise UserError(f"The loss diverged in all {done} trials. Use a learning rate below {run.optimizer.lr:g}.")
    return {
        "recipe": run.recipe,
        "model": run.model_name,
        "trials": done,
        f"val/{task.metric}": found.best_value,
        "best": found.best_params,
        "run": os.fspath(out / found.best_trial.user_attrs["run"]),
    }
