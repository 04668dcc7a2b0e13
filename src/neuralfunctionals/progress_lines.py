"""Progress as plain lines, for logs and other places without a terminal: `ProgressLines`."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta

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
                print(self._line(done, total, now, state), file=sys.stderr, flush=True)

    def _line(self, done: int, total: int, now: float, state: str) -> str:
        assert self._first is not None
        rate = (done - self._first[0]) / max(now - self._first[1], 1e-9)
        left = f"{timedelta(seconds=round((total - done) / rate))} left" if total else ""
        count = f"{done}/{total} ({done / total:.0%})" if total else f"{done} {self.unit}"
        parts = [f"{self.what}: {count}", f"{rate:.3g} {self.unit}/s", left, state]
        return ", ".join(part for part in parts if part)
