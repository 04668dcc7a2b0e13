"""The training curve in `metrics.csv`, with loss and metrics by step and training time: `Curves`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from neuralfunctionals.run_directory import RunDirectory


class Curves(Callback):
    """Writes one row every few steps, with the mean loss since the previous row, and one row per validation.

    Seconds count only training, without validation, summed over all launches of the run. On a CPU they are CPU seconds
    of one core, so that other work on the machine does not count; on other devices they are wall-clock seconds. The
    file is written at validations, from which a run can be resumed; a resumed run drops the rows that it writes again.

    Args:
        run: The run directory. Columns are `step`, `seconds`, `lr`, `loss` and one per metric.
        every: Steps between rows.
    """

    def __init__(self, run: RunDirectory, *, every: int) -> None:
        self.run, self.every = run, every
        self.seconds = 0.0
        self._clock: Callable[[], float] = time.perf_counter
        self._since: float | None = None
        self._losses: list[Tensor] = []
        self._rows: list[dict[str, Any]] = []

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self._elapsed()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.seconds = state_dict["seconds"]

    def _elapsed(self) -> float:
        return self.seconds + (0.0 if self._since is None else self._clock() - self._since)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._rows = [row for row in self.run.read_curve() if row["step"] <= trainer.global_step]
        self._clock = time.process_time if trainer.strategy.root_device.type == "cpu" else time.perf_counter
        self._since = self._clock()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.seconds, self._since = self._elapsed(), None

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        metrics = {name: value.item() for name, value in trainer.callback_metrics.items() if name.startswith("val/")}
        self._add_row(trainer, metrics)
        if trainer.is_global_zero:
            self.run.write_curve(self._rows)
        self._since = self._clock()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._losses.append(outputs["loss"].detach())
        if trainer.global_step % self.every == 0 and (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            # With gradient accumulation, Lightning passes the loss divided by the number of parts.
            mean = torch.stack(self._losses).mean() * trainer.accumulate_grad_batches
            self._losses.clear()
            self._add_row(trainer, {"loss": trainer.strategy.reduce(mean, reduce_op="mean").item()})

    def _add_row(self, trainer: Trainer, values: dict[str, float]) -> None:
        if not trainer.is_global_zero:
            return
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        self._rows.append({"step": trainer.global_step, "seconds": round(self._elapsed(), 3), "lr": rate, **values})
        for logger in trainer.loggers:
            logger.log_metrics({"lr": rate, **values}, step=trainer.global_step)
