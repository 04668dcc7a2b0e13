"""The progress of training: a bar with steps of the whole run, loss, metric, time left: `StepBar`; or `StepReport`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from neuralfunctionals.progress_lines import ProgressLines


class StepBar(ProgressBar):
    """Shown on standard error, so that standard output stays clean; as plain lines where that is no terminal."""

    def __init__(self) -> None:
        super().__init__()
        self._bar: Progress | None = None
        self._lines: ProgressLines | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        console = Console(stderr=True)
        if not console.is_terminal and not console.is_jupyter:
            self._lines = ProgressLines("training", "steps")
            self._lines.start(trainer.global_step)
            return
        columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[state]}"))
        self._bar = Progress(*columns, TimeRemainingColumn(), console=console)
        steps = int(trainer.estimated_stepping_batches)
        self._bar.add_task("training", total=steps, completed=trainer.global_step, state="")
        self._bar.start()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._bar is None and self._lines is None:
            return
        shown = {name: value for name, value in trainer.progress_bar_metrics.items() if name != "v_num"}
        state = " ".join(f"{name} {float(value):.4f}" for name, value in shown.items())
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=trainer.global_step, state=state)
        if self._lines is not None:
            self._lines.update(trainer.global_step, int(trainer.estimated_stepping_batches), state)

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._stop()

    def disable(self) -> None:
        self._stop()


class StepReport(Callback):
    """Calls a function with the number of steps done and in all.

    Args:
        report: The function.
    """

    def __init__(self, report: Callable[[int, int], None]) -> None:
        self.report = report

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.report(trainer.global_step, int(trainer.estimated_stepping_batches))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.report(trainer.global_step, int(trainer.estimated_stepping_batches))
