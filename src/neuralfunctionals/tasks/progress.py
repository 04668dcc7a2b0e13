"""The progress of training: `StepReport`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from neuralfunctionals.progress import Progress


class StepReport(Callback):
    """Reports the number of steps done and in all, on a bar also the loss and the metric.

    Args:
        progress: The bar, or what to call.
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
