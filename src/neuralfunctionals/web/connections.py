"""Connections that send nothing are closed: `bounded_protocol`, `raise_file_limit`."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 10.0
"""Time in which the head of a request must have arrived."""
MAX_WAITING = 512
"""Connections that have not sent a request yet; of more, the oldest is closed."""


def bounded_protocol(
    *, header_seconds: float = HEADER_SECONDS, max_waiting: int = MAX_WAITING
) -> type[asyncio.Protocol]:
    """A protocol for one server, that does not wait for ever for requests.

    Args:
        header_seconds: Time in which the head of a request must have arrived.
        max_waiting: Connections that may wait at the same time.
    """
    waiting: dict[Any, asyncio.TimerHandle] = {}  # in the order in which they came

    class BoundedProtocol(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._update_waiting()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._update_waiting()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def _update_waiting(self) -> None:
            if self.transport.is_closing() or (self.cycle is not None and not self.cycle.response_complete):
                self._stop_waiting()
            elif self not in waiting:  # what trickles in does not buy more time
                waiting[self] = self.loop.call_later(header_seconds, self._give_up)
                if len(waiting) > max_waiting:
                    next(iter(waiting))._give_up()

        def _stop_waiting(self) -> None:
            timer = waiting.pop(self, None)
            if timer is not None:
                timer.cancel()

        def _give_up(self) -> None:
            self._stop_waiting()
            self.transport.close()

    return BoundedProtocol


def raise_file_limit(wanted: int = 8192) -> int:
    """Lets this process open as many files and connections as it may; returns how many."""
    try:
        import resource
    except ImportError:  # not on Windows
        return 1024
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        return limit
    return wanted if soft == resource.RLIM_INFINITY else soft
