"""Trains your own task, model or data as a full run: `experiment`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lightning.pytorch import Callback
from lightning.pytorch.loggers import Logger
from torch import nn

from neuralfunctionals.config import with_values
from neuralfunctionals.data import WeightDataset
from neuralfunctionals.errors import UserError
from neuralfunctionals.registry import find_run
from neuralfunctionals.runs.execute import execute
from neuralfunctionals.tasks import Task


def experiment(
    task: str | type[Task],
    model: str | type[nn.Module] | nn.Module,
    data: str | os.PathLike[str] | WeightDataset | None,
    out: str | os.PathLike[str],
    *,
    scale: str = "small",
    values: Mapping[str, Any] | None = None,
    resume: bool = False,
    force: bool = False,
    progress: bool | Callable[[int, int], None] = True,
    loggers: Sequence[Logger] = (),
    callbacks: Sequence[Callback] = (),
) -> dict[str, Any]:
    """Trains a model on a task and writes a run directory for all commands and `open_run`.

    Args:
        task: A recipe such as `"classify/mnist"`, the path of your own, `"my_package.my_task/RECIPE"`, or a task
            class, which is built as `Class(model, **settings, optimizer=..., seed=...)`.
        model: A registered name such as `"nft"`; a class or its path, `"my_package.MyModel"`, which is built as
            `MyModel(spec, out_channels=..., **options)`; or a model, derived from `nf.models.Pretrained`.
        data: A store of networks with splits, or its path. By default, the networks of the recipe are made.
        out: The run directory; a stopped run of the same experiment is resumed.
        scale: `tiny`, `small`, `long` or `paper`: options and steps to start from.
        values: Fields of the run to change: `{"training.steps": 200, "model.channels": 32, "task.num_classes": 3}`.
        resume: Whether to require a run to resume.
        force: Delete an earlier run first.
        progress: Whether to show progress on standard error; or a function of the steps done and in total.
        loggers: More loggers of Lightning, besides TensorBoard's.
        callbacks: More callbacks of Lightning.

    Returns:
        The result, as in `result.json`.

    Example:
        >>> nf.experiment("classify/mnist", MyModel, "digits", "run")  # doctest: +SKIP
        >>> nf.runs.open_run("run").task.classify(networks)  # doctest: +SKIP
    """
    path = data.path if isinstance(data, WeightDataset) else data
    if isinstance(data, WeightDataset) and len(data) < (count := len(WeightDataset(data.path))):
        raise UserError(
            f"Expected all {count} networks of the store at {path}, but got {len(data)} of them. "
            "Pass the store, and values={'training.limit': N} to train on fewer networks."
        )
    kind = type(model) if isinstance(model, nn.Module) else model
    recipe, name = (
        part if isinstance(part, str) else f"{part.__module__}.{part.__qualname__}" for part in (task, kind)
    )
    run = with_values(find_run(recipe, scale=scale, model=name, data=path), values or {})
    given = model if isinstance(model, nn.Module) else None
    parts: dict[str, Any] = {"loggers": loggers, "callbacks": callbacks}
    return execute(run, out, data=path, resume=resume, force=force, progress=progress, model=given, **parts)
