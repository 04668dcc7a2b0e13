"""Limits on idle connections: `bounded_protocol`, `raise_file_limit`."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 10.0
"""Maximum time to receive the headers of a request."""
MAX_WAITING = 512
"""Maximum number of connections without a request; beyond it, the oldest is closed."""


def bounded_protocol(
    *, header_seconds: float = HEADER_SECONDS, max_waiting: int = MAX_WAITING
) -> type[asyncio.Protocol]:
    """Creates a protocol for one server that does not wait forever for requests.

    Args:
        header_seconds: Maximum time to receive the headers of a request.
        max_waiting: Maximum number of connections without a request.
    """
    waiting: dict[Any, asyncio.TimerHandle] = {}  # oldest first

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
            elif self not in waiting:  # partial data does not extend the time
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
    """Raises the limit of open files and connections of this process, up to `wanted`; returns the new limit."""
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
