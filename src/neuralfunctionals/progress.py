"""Progress of long tasks on standard error, as bars, or as plain lines without a terminal: `Progress`."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import cached_property
from typing import Any

SECONDS = 10.0
"""Maximum time between lines."""
SHARE = 0.05
"""Maximum share of the work between lines."""


class ProgressLines:
    """Prints a line on standard error every 10 seconds or 5% of the work, whichever comes first, and one at the end.

    A line looks like `training: 400/1000 (40%), 35.2 steps/s, 0:00:17 left, loss 0.0312`. The rate is measured from
    the last `start`, or else from the first `update`.

    Args:
        what: Name of the task, such as `training`.
        unit: What is counted, such as `steps`.
        clock: Returns the time in seconds.
    """

    def __init__(self, what: str, unit: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.what, self.unit, self.clock = what, unit, clock
        self._lock = threading.Lock()
        self._first: tuple[int, float] | None = None
        self._last = (0, 0.0)

    def start(self, done: int = 0) -> None:
        """Starts measuring, with `done` already finished."""
        self._first = self._last = (done, self.clock())

    def update(self, done: int, total: int, state: str = "") -> None:
        """Updates the progress; this may print a line.

        Args:
            done: How much is finished.
            total: How much there is in total; 0 if unknown.
            state: Text to append, such as the loss.
        """
        with self._lock:
            if self._first is None:
                self.start(done)
            now = self.clock()
            since, last = done - self._last[0], now - self._last[1]
            if since > 0 and (last >= SECONDS or (total and (since >= SHARE * total or done >= total))):
                self._last = (done, now)
                print(self._line(done, total, state), file=sys.stderr, flush=True)

    def rate(self, done: int) -> float:
        """Amount of work done per second."""
        first, started = self._first or (done, 0.0)
        return (done - first) / max(self.clock() - started, 1e-9)

    def _line(self, done: int, total: int, state: str) -> str:
        rate = self.rate(done)
        left = f"{timedelta(seconds=round((total - done) / rate))} left" if total else ""
        count = f"{done}/{total} ({done / total:.0%})" if total else f"{done} {self.unit}"
        parts = [f"{self.what}: {count}", f"{rate:.3g} {self.unit}/s", left, state]
        return ", ".join(part for part in parts if part)


class Progress(AbstractContextManager["Progress"]):
    """Shows the progress of several tasks, each with its name, rate and remaining time.

    Nothing is shown before the first update, so that an error message is a single line.

    Args:
        unit: What is counted, such as `steps`.
        from_zero: Whether the work in the first update of a task was done since its start, rather than before it.
    """

    def __init__(self, unit: str = "items", *, from_zero: bool = False) -> None:
        self.unit, self.from_zero = unit, from_zero
        self._works: dict[str, ProgressLines] = {}
        self._tasks: dict[str, Any] = {}

    def start(self, name: str) -> None:
        """Starts a task at 0; restarts it if it was started before."""
        self._works.setdefault(name, ProgressLines(name, self.unit)).start()
        if name in self._tasks:
            self._bars.reset(self._tasks[name])

    def update(self, name: str, done: int, total: int, state: str = "") -> None:
        """Updates the progress of a task; arguments as for `ProgressLines.update`."""
        if name not in self._works or not done:  # a task that waits at 0 has not started
            work = self._works.setdefault(name, ProgressLines(name, self.unit))
            work.start(0 if self.from_zero else done)
        if self._bars is None:
            self._works[name].update(done, total, state)
            return
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, state="")
        rate = f"{self._works[name].rate(done):.3g} {self.unit}/s"
        self._bars.update(self._tasks[name], completed=done, total=total or None, state=f"{rate} {state}")

    @cached_property
    def _bars(self) -> Any:
        """The bars, started; None if standard error cannot show them."""
        from rich import progress
        from rich.console import Console

        console = Console(stderr=True)
        if not console.is_terminal and not console.is_jupyter:
            return None
        columns = [progress.TextColumn("{task.description}"), progress.BarColumn()]
        if self.unit == "bytes":
            columns += [progress.DownloadColumn(), progress.TransferSpeedColumn()]
        else:
            columns += [progress.MofNCompleteColumn(), progress.TextColumn("{task.fields[state]}")]
        bars = progress.Progress(*columns, progress.TimeRemainingColumn(), console=console)
        bars.start()
        return bars

    def __exit__(self, *error: object) -> None:
        if self._tasks:
            self._bars.stop()
