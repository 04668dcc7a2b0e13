"""Trains a task with Lightning and writes a run directory: `train`."""

from __future__ import annotations

import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, ProgressBar, WeightAveraging
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from torch import Tensor

from neuralfunctionals.config import TrainingConfig
from neuralfunctionals.data import WeightDataset
from neuralfunctionals.errors import UserError
from neuralfunctionals.files.checksums import require_intact
from neuralfunctionals.files.writing import write_recorded
from neuralfunctionals.progress import Progress
from neuralfunctionals.run_directory import REMEDY, RunDirectory
from neuralfunctionals.tasks.batches import EvalBatches, TrainBatches
from neuralfunctionals.tasks.curves import Curves
from neuralfunctionals.tasks.named_parts import make_callbacks, make_loggers
from neuralfunctionals.tasks.task import Task


class WholeFiles(TorchCheckpointIO):
    """Writes checkpoints atomically, with a checksum; loading one never runs code in it."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        data = io.BytesIO()
        torch.save(checkpoint, data)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_recorded(Path(path), data.getvalue())

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = True) -> dict[str, Any]:
        require_intact(Path(path), REMEDY)
        try:
            found = torch.load(path, map_location=map_location or "cpu", weights_only=True)
            if not isinstance(found, dict) or "state_dict" not in found:
                raise UserError("it has no state_dict")
            return found
        except Exception as error:  # torch may raise anything for a file that is not a checkpoint
            reason = str(error).strip().partition("\n")[0][:200]
            raise UserError(f"{path} is damaged or not a checkpoint: {reason}. {REMEDY}") from error


class StepReport(Callback):
    """Reports the number of steps done and in total; a bar also shows the loss and the metric.

    Args:
        progress: The bar, or a function to call.
    """

    def __init__(self, progress: Progress | Callable[[int, int], None]) -> None:
        self.progress = progress

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._report(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._report(trainer)

    def _report(self, trainer: Trainer) -> None:
        if not trainer.is_global_zero:
            return
        done, total = trainer.global_step, int(trainer.estimated_stepping_batches)
        if isinstance(self.progress, Progress):
            state = " ".join(f"{name} {float(value):.4f}" for name, value in trainer.progress_bar_metrics.items())
            self.progress.update("training", done, total, state)
        else:
            self.progress(done, total)


def train(
    task: Task,
    dataset: WeightDataset,
    out: str | os.PathLike[str],
    config: TrainingConfig | None = None,
    *,
    progress: bool | Callable[[int, int], None] = True,
    loggers: Sequence[Logger] = (),
    callbacks: Sequence[Callback] = (),
) -> Trainer:
    """Trains on the training split and validates on the validation split; resumes an interrupted run.

    The directory gets `metrics.csv` (the training curve), `tensorboard/`, `checkpoints/last.ckpt` (everything needed to
    resume) and `checkpoints/best.ckpt` (the best by validation). Finally, the task's model has the best parameters.

    An epoch of Lightning is the interval between two validations: a checkpoint is written after each, so that a killed
    run can be resumed from there, with the same result as without interruption.

    Args:
        task: What to train.
        dataset: Networks with splits.
        out: The run directory.
        config: How long to train, and on which devices.
        progress: Whether to show a progress bar on standard error; or a function of the steps done and in total.
        loggers: Loggers besides TensorBoard's and those that the config names.
        callbacks: Callbacks besides those that the config names.
    """
    config, run = config or TrainingConfig(), RunDirectory(out)
    dataset = task.adapt(dataset)
    train_set, val_set = dataset.split("train"), dataset.split("val")
    for name, part in (("training", train_set), ("validation", val_set)):
        if len(part) < config.devices * config.nodes:
            count = f"only {len(part)} for {config.devices * config.nodes} processes" if len(part) else "none"
            raise UserError(f"Expected networks in the {name} split of {dataset.path}, but there are {count}.")
    train_set = train_set.spread(config.limit)
    if config.threads is not None:
        torch.set_num_threads(config.threads)

    better = "max" if task.higher_is_better else "min"
    keep: dict[str, Any] = {"dirpath": run.checkpoints, "save_top_k": 1, "enable_version_counter": False}
    best = ModelCheckpoint(**keep, filename="best", monitor=f"val/{task.metric}", mode=better, save_weights_only=True)
    given = [*callbacks, *make_callbacks(config.callbacks)]
    loggers = [*loggers, *make_loggers(config.loggers, run.path)]
    has_bar = any(isinstance(part, ProgressBar) for part in given)
    callbacks = [Curves(run, every=config.log_every), best, *given]
    if config.ema_decay is not None:
        callbacks.append(WeightAveraging(multi_avg_fn=partial(_average, decay=config.ema_decay)))
    if config.patience is not None:
        callbacks.append(EarlyStopping(f"val/{task.metric}", patience=config.patience, mode=better, min_delta=0.0))
    shown = Progress("steps")
    if progress and not has_bar:
        callbacks.append(StepReport(shown if progress is True else progress))
    # Last, so that its checkpoint includes the state of the other callbacks after the validation.
    callbacks.append(ModelCheckpoint(**keep, filename="last", every_n_epochs=1, save_on_train_epoch_end=True))

    with _quiet(), shown:
        trainer = Trainer(
            accelerator=config.accelerator,
            devices=config.devices,
            num_nodes=config.nodes,
            strategy="ddp" if config.devices * config.nodes > 1 else "auto",
            precision="bf16-mixed" if config.precision == "bf16" else "32-true",
            max_epochs=config.steps // config.interval,
            accumulate_grad_batches=config.accumulate,
            gradient_clip_val=task.optimizer.clip_norm,
            callbacks=callbacks,
            logger=[TensorBoardLogger(run.path, name="", version="tensorboard"), *loggers],
            plugins=[WholeFiles()],
            use_distributed_sampler=False,
            enable_model_summary=False,
            enable_progress_bar=has_bar,  # ours counts the steps of the whole run
            num_sanity_val_steps=0,
            log_every_n_steps=config.log_every if given else config.steps,  # ours is logged by `Curves`
        )
        share = (trainer.global_rank, trainer.world_size)
        batches = TrainBatches(
            train_set,
            task.prepare,
            canonical=task.canonical,
            batch_size=config.batch_size // config.accumulate,
            seed=task.seed,
            length=config.interval * config.accumulate,
            first=lambda: trainer.global_step * config.accumulate,
            share=share,
        )
        part = max(1, config.batch_size // config.accumulate // share[1])
        validation = EvalBatches(val_set, task.prepare, batch_size=part, share=share)
        last, kept = (run.checkpoints / name for name in ("last.ckpt", "best.ckpt"))
        if last.exists():
            if not kept.exists():
                raise UserError(f"{kept} is missing. {REMEDY}")
            require_intact(kept, REMEDY)
        try:
            trainer.fit(task, batches, validation, ckpt_path=last if last.exists() else None, weights_only=True)
        except SystemExit as stopped:  # raised by Lightning after Ctrl-C
            raise KeyboardInterrupt from stopped
    state = WholeFiles().load_checkpoint(kept)["state_dict"]
    task.load_state_dict(state)
    return trainer


def _average(means: list[Tensor], new: list[Tensor], count: Tensor, *, decay: float) -> None:
    """Updates moving averages of parameters and buffers in place; they forget the initial parameters quickly."""
    decay = min(decay, (1 + int(count)) / (10 + int(count)))
    if means[0].is_floating_point():  # all have the same type
        torch._foreach_lerp_(means, new, 1 - decay)
    else:
        torch._foreach_copy_(means, new)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences the messages and warnings of Lightning."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="lightning.*")
            warnings.filterwarnings("ignore", message=".*LeafSpec.*")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
