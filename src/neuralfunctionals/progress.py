"""The progress of long work, on standard error: `Progress`, as bars, or as plain lines where there is no terminal."""

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
"""After so much time there is a line."""
SHARE = 0.05
"""And after so much of the work."""


class ProgressLines:
    """Prints a line on standard error every 10 seconds or 5% of the work, whichever comes first, and one at the end.

    A line looks like `training: 400/1000 (40%), 35.2 steps/s, 0:00:17 left, loss 0.0312`. The rate counts from the last
    `start`, or else from the first `update`.

    Args:
        what: The work, such as `training`.
        unit: What is counted, such as `steps`.
        clock: Gives the time in seconds.
    """

    def __init__(self, what: str, unit: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.what, self.unit, self.clock = what, unit, clock
        self._lock = threading.Lock()
        self._first: tuple[int, float] | None = None
        self._last = (0, 0.0)

    def start(self, done: int = 0) -> None:
        """Begins to count, with so much done before."""
        self._first = self._last = (done, self.clock())

    def update(self, done: int, total: int, state: str = "") -> None:
        """Tells how much is done of how much; a line may follow.

        Args:
            done: How much is done.
            total: How much there is; 0 if that is not known.
            state: What else to say, such as the loss.
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
        """How much was done in a second."""
        first, started = self._first or (done, 0.0)
        return (done - first) / max(self.clock() - started, 1e-9)

    def _line(self, done: int, total: int, state: str) -> str:
        rate = self.rate(done)
        left = f"{timedelta(seconds=round((total - done) / rate))} left" if total else ""
        count = f"{done}/{total} ({done / total:.0%})" if total else f"{done} {self.unit}"
        parts = [f"{self.what}: {count}", f"{rate:.3g} {self.unit}/s", left, state]
        return ", ".join(part for part in parts if part)


class Progress(AbstractContextManager["Progress"]):
    """Shows works side by side, each under its name, with their rates and the time left.

    Nothing is shown before there is something to report, so that a mistake is one line.

    Args:
        unit: What is counted, such as `steps`.
        from_zero: Whether the first report of a work tells what was done since its start, or else before it.
    """

    def __init__(self, unit: str = "items", *, from_zero: bool = False) -> None:
        self.unit, self.from_zero = unit, from_zero
        self._works: dict[str, ProgressLines] = {}
        self._tasks: dict[str, Any] = {}

    def start(self, name: str) -> None:
        """Begins to count a work now, from 0; one that was counted before begins again."""
        self._works.setdefault(name, ProgressLines(name, self.unit)).start()
        if name in self._tasks:
            self._bars.reset(self._tasks[name])

    def update(self, name: str, done: int, total: int, state: str = "") -> None:
        """Tells how much of a work is done; arguments as for `ProgressLines.update`."""
        if name not in self._works:
            self._works[name] = work = ProgressLines(name, self.unit)
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
        """The bars, started; none where standard error cannot show any that move."""
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
