"""From a run's description to a trained model and its result, and back from the directory: `execute`, `open_run`."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import nn

from neuralfunctionals import __version__
from neuralfunctionals.config import FREE, Run, flatten
from neuralfunctionals.data import WeightDataset
from neuralfunctionals.errors import UserError
from neuralfunctionals.imports import import_for_file, imports_for
from neuralfunctionals.layers import Standardize
from neuralfunctionals.models import Canonical, from_pretrained, league
from neuralfunctionals.registry import find_run, find_task, read_run
from neuralfunctionals.run_directory import RunDirectory
from neuralfunctionals.runs.build import build_model, build_task, finish_model, options_from
from neuralfunctionals.runs.datasets import dataset_for
from neuralfunctionals.shipped import find_shipped
from neuralfunctionals.tasks import EvalBatches, Task, evaluate, train
from neuralfunctionals.weight_space import NetworkSpec
from neuralfunctionals.weight_space.symmetry import default_symmetry

_EVAL_LIMIT = 2000
"""Training networks on which the final model is measured, at most."""


@dataclass(frozen=True)
class TrainedRun:
    """A finished run: its description, its task with the best model, and where its data are."""

    run: Run
    task: Any
    """A `Task`, of the kind that the recipe trains."""
    data: Path | None
    """None for a shipped model."""
    directory: RunDirectory

    def find_data(self, given: str | os.PathLike[str] | None = None) -> Path:
        """The store that was given, or else the run's own."""
        found = self.data if given is None else Path(given)
        if found is None:
            raise UserError(f"The model {self.directory.path.name} comes without its networks. Name some: --data DIR.")
        return found


def execute(
    run: Run,
    out: str | os.PathLike[str],
    *,
    data: str | os.PathLike[str] | None = None,
    resume: bool = False,
    force: bool = False,
    progress: bool | Callable[[int, int], None] = True,
    fitting: Callable[[int, int, Sequence[float]], None] | None = None,
    model: nn.Module | None = None,
) -> dict[str, Any]:
    """Trains, keeps the best model by validation, and measures it once on every split.

    The same run in the same directory is continued where it was stopped.

    Args:
        run: What to do.
        out: The run directory.
        data: A store of networks. By default, what the run describes is made.
        resume: Whether there must be such a run to continue. Without it a run that was stopped is continued too, if it
            is the same, and a finished one is refused instead of returning its result.
        force: Remove an earlier run of that name first.
        progress: Whether to show progress on standard error; or what to call with the steps done and in all.
        fitting: Called while networks are fitted, see `dataset_for`.
        model: A model to train instead of a new one that the run describes.

    Returns:
        The result, as in `result.json`.
    """
    directory = RunDirectory(out)
    is_first = getattr(rank_zero_only, "rank", 0) == 0  # other processes of a run come when the directory is there
    continues = is_first and _continues(run, directory, resume=resume, force=force)
    if continues and directory.is_finished:
        return directory.read_result()
    reads_latents = run.model_name in find_task(run.recipe).latent_models
    if reads_latents and data is None:
        raise UserError(f"The model '{run.model_name}' reads latents: make them with nf encode, then --data DIR.")
    dataset = WeightDataset(data) if data is not None else dataset_for(run.data, progress=fitting)
    model = _make_model(run, dataset, None if reads_latents else dataset.spec, model)
    _standardize(model, dataset.split("train").spread(run.training.limit))
    task = build_task(run, model, dataset.provenance)
    dataset = task.adapt(dataset)
    task.prepare(dataset[[0]])  # data that do not fit are refused before anything is written
    if continues:
        _require_same_data(dataset, directory)
    elif is_first:
        if directory.is_run:
            with directory.hold():
                directory.clear()
        directory.write_config(_describe(run, dataset, model))
    with directory.hold() if is_first else nullcontext():
        trainer = train(task, dataset, directory.path, run.training, progress=progress)
        if not trainer.is_global_zero:
            raise SystemExit(0)
        return _finish(run, task, dataset, directory)


def _make_model(run: Run, dataset: WeightDataset, spec: NetworkSpec | None, given: nn.Module | None) -> nn.Module:
    canonical = default_symmetry(dataset.spec) if spec is not None and run.canonical == "sine" else None
    if given is not None:
        return finish_model(given, compiled=run.training.compile, canonical=canonical)
    how: dict[str, Any] = {"seed": run.seed, "compiled": run.training.compile, "canonical": canonical}
    options = {**options_from(run, dataset), **run.model}
    return build_model(run.model_name, spec, options, output=find_task(run.recipe).output, **how)


def _continues(run: Run, directory: RunDirectory, *, resume: bool, force: bool) -> bool:
    """Whether the run was begun in this directory; raises if the directory is not its own."""
    path = directory.path
    if resume and not directory.is_run:
        raise UserError(f"There is no run to continue at {path}. Start it without --resume.")
    if directory.is_free:
        return False
    if not directory.is_run:
        raise UserError(f"Expected a new directory for the run, but {path} holds something else. Name another one.")
    if directory.is_finished and not force and not resume:
        raise UserError(f"{path} holds a finished run. Continue it with --resume, or begin again with --force.")
    if force and not resume:
        return False
    if not directory.is_finished:
        _require_same(run, directory)
    return True


def _require_same(run: Run, directory: RunDirectory) -> None:
    """Where and how fast a run is computed may change on the way, what is computed may not."""
    before, now = (flatten(r) for r in (_read_run(directory), run))
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name) and name.removeprefix("training.") not in FREE:
            raise UserError(
                f"The run at {directory.path} was begun with {name} {before.get(name)}, but now it is {now.get(name)}. "
                "Continue it with the same options, name another directory, or begin again with --force."
            )


def _require_same_data(dataset: WeightDataset, directory: RunDirectory) -> None:
    """A run goes on with the networks it was begun with; where they are may change."""
    before, now = directory.read_config()["data"], json.loads(json.dumps(_describe_data(dataset)))
    other = [n for n in sorted(before.keys() | now.keys()) if n != "path" and before.get(n) != now.get(n)]
    if other:
        raise UserError(
            f"The run at {directory.path} was begun with other networks than those of {dataset.path}: they differ in "
            f"{', '.join(other)}. Continue it with the same data, name another directory, or begin again with --force."
        )


def _standardize(model: nn.Module, train_set: WeightDataset) -> None:
    """Gives the model the scale of its data, from training networks alone."""
    for part in model.modules():
        if isinstance(part, Standardize) and len(train_set):
            features = train_set.spread(_EVAL_LIMIT)[:].features
            assert features is not None
            part.estimate(model.canonical.canonicalize(features)[0] if isinstance(model, Canonical) else features)


def _describe_data(dataset: WeightDataset) -> dict[str, Any]:
    spec = dataset.store.header.spec
    return {
        "path": os.fspath(dataset.path.resolve()),
        "spec": None if spec is None else spec.to_dict(),
        "networks": len(dataset),
        **dataset.provenance,
    }


def _describe(run: Run, dataset: WeightDataset, model: nn.Module) -> dict[str, Any]:
    return {
        "format": 1,
        "run": run.to_dict(),
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "data": _describe_data(dataset),
        "code": {"version": __version__, "commit": _commit()},
        "machine": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "lightning": version("lightning"),
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "threads": run.training.threads or torch.get_num_threads(),
        },
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _commit() -> str | None:
    """The commit of the code, with a plus if it was changed since; nothing outside a clone."""
    git = ["git", "-C", os.fspath(Path(__file__).parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")


def _finish(run: Run, task: Task, dataset: WeightDataset, directory: RunDirectory) -> dict[str, Any]:
    scratch = directory.model.with_name(".model")
    shutil.rmtree(scratch, ignore_errors=True)
    task.model.save_pretrained(scratch)  # pyright: ignore[reportCallIssue]
    shutil.rmtree(directory.model, ignore_errors=True)
    os.replace(scratch, directory.model)
    shown = dataset.split("test")
    if shown.can_render and "image_shape" in shown.provenance:  # for pictures, also where the task needs no images
        shown = shown.with_images()
    directory.write_samples({**task.samples(shown[: min(task.num_samples, len(shown))]), **task.map(shown)})
    curve = directory.read_curve()
    metric = f"val/{task.metric}"
    validated = [row for row in curve if metric in row]
    best = (max if task.higher_is_better else min)(validated, key=lambda row: row[metric])
    result: dict[str, Any] = {
        "recipe": run.recipe,
        "scale": run.scale,
        "model": run.model_name,
        "league": league(task.model),
        "seed": run.seed,
        "parameters": directory.read_config()["parameters"],
        "steps": curve[-1]["step"],
        "best_step": best["step"],
        "training_seconds": round(curve[-1]["seconds"], 1),
        "training_networks": len(dataset.split("train").spread(run.training.limit)),
        "metric": task.metric,
        "higher_is_better": task.higher_is_better,
    }
    for split in ("train", "val", "test"):
        limit = run.training.limit if split == "train" else None
        result[split] = measure(task, dataset, split, batch_size=run.training.batch_size, limit=limit)
    directory.write_result(result)
    return result


def measure(
    task: Task, dataset: WeightDataset, split: str, *, batch_size: int = 32, limit: int | None = None
) -> dict[str, Any]:
    """The metrics on a split, or on so many networks of it; of a large training split, on two thousand at most.

    Networks of another form than the model's own are converted first; see `Task.adapt`.
    """
    dataset = task.adapt(dataset)
    chosen = dataset.split(split).spread(limit)
    if not len(chosen):
        raise UserError(f"Expected networks in the {split} split of {dataset.path}, but there are none.")
    if split == "train":
        chosen = chosen.spread(_EVAL_LIMIT)
    metrics = evaluate(task, EvalBatches(chosen, task.prepare, batch_size=batch_size))
    return {"networks": len(chosen), **{name: round(value, 6) for name, value in metrics.items()}}


def open_run(path: str | os.PathLike[str]) -> TrainedRun:
    """A finished run, with its best model, by its directory or the name of a shipped model.

    Example:
        >>> open_run("RUN").task.edit(my_siren)  # doctest: +SKIP
        Siren(...)
    """
    directory = RunDirectory(find_shipped(path)).require()
    is_shipped = directory.path != Path(path)
    with imports_for(None if is_shipped else directory.path):
        run, config = _read_run(directory), directory.read_config()
    model = from_pretrained(os.fspath(path) if is_shipped else directory.model)
    made = config.get("data", {})
    data = made.get("path")
    return TrainedRun(run, build_task(run, model, made), None if data is None else Path(data), directory)


def _read_run(directory: RunDirectory) -> Run:
    """The description of a run; its recipe and its model must exist."""
    values, file = directory.read_config().get("run", {}), directory.config_file
    for name in ("recipe", "model_name"):  # of others: imported if this directory may ask for it
        if "." in (path := str(values.get(name)).partition("/")[0]):
            import_for_file(path)
    run = read_run(values, f"{file}: run")
    try:
        find_run(run.recipe, model=run.model_name)
    except UserError as error:
        raise UserError(f"{file}: {error}") from error
    return run
