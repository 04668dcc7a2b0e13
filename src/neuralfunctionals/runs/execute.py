"""Carries out runs and opens finished ones: `execute`, `open_run`."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only
from torch import nn

from neuralfunctionals import __version__
from neuralfunctionals.config import FREE, Run, flatten
from neuralfunctionals.data import WeightDataset
from neuralfunctionals.errors import UserError
from neuralfunctionals.imports import import_for_file, imports_for
from neuralfunctionals.layers import Standardize
from neuralfunctionals.models import Canonical, from_pretrained, league
from neuralfunctionals.models.hub import HUB_METADATA, upload
from neuralfunctionals.registry import find_run, find_task, read_run
from neuralfunctionals.run_directory import RunDirectory
from neuralfunctionals.runs.build import build_model, build_task, finish_model, options_from
from neuralfunctionals.runs.card import copy_run, run_card
from neuralfunctionals.runs.datasets import dataset_for
from neuralfunctionals.shipped import find_shipped
from neuralfunctionals.tasks import EvalBatches, Task, evaluate, train
from neuralfunctionals.tasks.named_parts import require_parts
from neuralfunctionals.weight_space import NetworkSpec
from neuralfunctionals.weight_space.symmetry import default_symmetry

_EVAL_LIMIT = 2000
"""Maximum number of training networks on which the final model is measured."""


@dataclass(frozen=True)
class TrainedRun:
    """A finished run: its config, its task with the best model, and the path of its data."""

    run: Run
    task: Any
    """The `Task` of the recipe."""
    data: Path | None
    """None for a shipped model."""
    directory: RunDirectory

    def find_data(self, given: str | os.PathLike[str] | None = None) -> Path:
        """The given store, or else the store of the run."""
        found = self.data if given is None else Path(given)
        if found is None:
            raise UserError(f"The model {self.directory.path.name} comes without its networks. Add --data DIR.")
        return found

    def push_to_hub(self, repo_id: str, **kwargs: Any) -> str:
        """Uploads the model with its card, config and result; `nf.from_pretrained(repo_id)` downloads it again.

        Args:
            repo_id: Its name on the Hugging Face Hub, such as `"you/your-model"`.
            **kwargs: For the hub's `create_repo`, such as `private` or `token`.

        Returns:
            The address of the upload.
        """
        with tempfile.TemporaryDirectory() as scratch:
            copy_run(self.directory, Path(scratch), HUB_METADATA + run_card(self.directory, repo_id))
            return upload(Path(scratch), repo_id, **kwargs)


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
    loggers: Sequence[Logger] = (),
    callbacks: Sequence[Callback] = (),
) -> dict[str, Any]:
    """Trains a model, keeps the best by validation, and measures it once on every split.

    If the same run was stopped in the same directory, it is resumed.

    Args:
        run: The run config.
        out: The run directory.
        data: A store of networks. By default, the networks of the run config are made.
        resume: Whether to require a run to resume; the result of a finished run is then returned. Without it, a stopped
            run is also resumed if its config is the same, but a finished run is an error.
        force: Delete an earlier run in that directory first.
        progress: Whether to show progress on standard error; or a function of the steps done and in total.
        fitting: Called while networks are fitted; see `dataset_for`.
        model: A model to train instead of the one that the run describes.
        loggers: More loggers, besides those that the run names.
        callbacks: More callbacks, besides those that the run names.

    Returns:
        The result, as in `result.json`.
    """
    directory = RunDirectory(out)
    is_first = getattr(rank_zero_only, "rank", 0) == 0  # other processes of the run start after the directory exists
    continues = is_first and _continues(run, directory, resume=resume, force=force)
    if continues and directory.is_finished:
        return directory.read_result()
    require_parts(run.training)
    reads_latents = run.model_name in find_task(run.recipe).latent_models
    if reads_latents and data is None:
        raise UserError(f"The model '{run.model_name}' needs latents: make them with nf encode, then use --data DIR.")
    dataset = WeightDataset(data) if data is not None else dataset_for(run.data, progress=fitting)
    model = _make_model(run, dataset, None if reads_latents else dataset.spec, model)
    task = build_task(run, model, dataset.provenance)
    dataset = task.adapt(dataset)
    _standardize(model, dataset.split("train").spread(run.training.limit))
    task.prepare(dataset[[0]])  # rejects unsuitable data before anything is written
    if continues:
        _require_same_data(dataset, directory)
    elif is_first:
        if force and directory.is_run:
            with directory.hold():
                directory.clear()
        directory.start(_describe(run, dataset, model))
    with directory.hold() if is_first else nullcontext():
        parts: dict[str, Any] = {"loggers": loggers, "callbacks": callbacks}
        trainer = train(task, dataset, directory.path, run.training, progress=progress, **parts)
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
    """Whether the run was started in this directory; raises an error if the directory has anything else."""
    path = directory.path
    if resume and not directory.is_run:
        raise UserError(f"There is no run to resume at {path}. Start it without --resume.")
    if directory.is_free:
        return False
    if not directory.is_run:
        raise UserError(f"Expected a new directory for the run, but {path} has other files. Choose another one.")
    if directory.is_finished and not force and not resume:
        raise UserError(f"{path} has a finished run. Show its result with --resume, or start again with --force.")
    if force and not resume:
        return False
    if not directory.is_finished:
        _require_same(run, directory)
    return True


def _require_same(run: Run, directory: RunDirectory) -> None:
    """Raises an error if the config changed, except for fields that only affect where and how fast it runs."""
    before, now = (flatten(r) for r in (_read_run(directory), run))
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name) and name.removeprefix("training.") not in FREE:
            raise UserError(
                f"The run at {directory.path} was started with {name} {before.get(name)}, but now it is "
                f"{now.get(name)}. Use the same options, choose another directory, or start again with --force."
            )


def _require_same_data(dataset: WeightDataset, directory: RunDirectory) -> None:
    """Raises an error if the networks changed; their path may change."""
    before, now = directory.read_config()["data"], json.loads(json.dumps(_describe_data(dataset)))
    other = [n for n in sorted(before.keys() | now.keys()) if n != "path" and before.get(n) != now.get(n)]
    if other:
        raise UserError(
            f"The run at {directory.path} was started with other networks than those of {dataset.path}: they differ in "
            f"{', '.join(other)}. Use the same data, choose another directory, or start again with --force."
        )


def _standardize(model: nn.Module, train_set: WeightDataset) -> None:
    """Sets the scale of the model's inputs from the training networks."""
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
    """The commit of the code, with a plus if files were changed; None outside a clone."""
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
    if shown.can_render and "image_shape" in shown.provenance:  # for pictures, even if the task needs no images
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
    """Measures the task's metrics on a split, or on `limit` of its networks; uses at most 2,000 training networks.

    Networks of another form than those of the model are converted first; see `Task.adapt`.
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
    """Opens a finished run with its best model, by its directory or the name of a shipped model.

    Example:
        >>> open_run("RUN").task.edit(my_siren)  # doctest: +SKIP
        Siren(...)
    """
    path = Path(path).expanduser()
    directory = RunDirectory(find_shipped(path)).require()
    is_shipped = directory.path != path
    with imports_for(None if is_shipped else directory.path):
        run, config = _read_run(directory), directory.read_config()
    model = from_pretrained(os.fspath(path) if is_shipped else directory.model)
    made = config.get("data", {})
    data = made.get("path")
    return TrainedRun(run, build_task(run, model, made), None if data is None else Path(data), directory)


def _read_run(directory: RunDirectory) -> Run:
    """Reads the config of a run; its recipe and model must exist."""
    values, file = directory.read_config().get("run", {}), directory.config_file
    for name in ("recipe", "model_name"):  # users' own are imported if this directory may request it
        if "." in (path := str(values.get(name)).partition("/")[0]):
            import_for_file(path)
    run = read_run(values, f"{file}: run")
    try:
        find_run(run.recipe, model=run.model_name)
    except UserError as error:
        raise UserError(f"{file}: {error}") from error
    return run
