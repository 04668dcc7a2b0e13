"""An experiment with your own task, model or data, written down as a full run: `experiment`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from neuralfunctionals.config import with_values
from neuralfunctionals.data import WeightDataset
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
) -> dict[str, Any]:
    """Trains a model on a task and writes a run that all commands and `open_run` understand.

    Args:
        task: A recipe such as `"classify/mnist"`, the path of your own, `"my_package.my_task/RECIPE"`, or a class of
            tasks, which is built as `Class(model, **settings, optimizer=..., seed=...)`.
        model: A registered name such as `"nft"`; a class or its path, `"my_package.MyModel"`, which is built as
            `MyModel(spec, out_channels=..., **options)`; or a model, derived from `nf.models.Pretrained`.
        data: A store of networks with splits, or its path. By default, what the recipe describes is made.
        out: The run directory; the same experiment in the same directory is continued.
        scale: `tiny`, `small`, `long` or `paper`: options and steps to start from.
        values: Fields of the run to change: `{"training.steps": 200, "model.channels": 32, "task.num_classes": 3}`.
        resume: Whether there must be a run to continue.
        force: Remove an earlier run first.
        progress: Whether to show progress on standard error; or what to call with the steps done and in all.

    Returns:
        The result, as in `result.json`.

    Example:
        >>> nf.experiment("classify/mnist", MyModel, "digits", "run")  # doctest: +SKIP
        >>> nf.runs.open_run("run").task.classify(networks)  # doctest: +SKIP
    """
    path = data.path if isinstance(data, WeightDataset) else data
    kind = type(model) if isinstance(model, nn.Module) else model
    recipe, name = (
        part if isinstance(part, str) else f"{part.__module__}.{part.__qualname__}" for part in (task, kind)
    )
    run = with_values(find_run(recipe, scale=scale, model=name, data=path), values or {})
    given = model if isinstance(model, nn.Module) else None
    return execute(run, out, data=path, resume=resume, force=force, progress=progress, model=given)
