"""Checks requests before they reach the app, and blocks what the page does not need: `Guard`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, TypedDict

from neuralfunctionals.files.strict_json import JsonError, conform, parse_json
from neuralfunctionals.web.uploads import MAX_BYTES

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

# Everything that the page needs. Uploads to disk, files by path, proxies and the like are blocked.
_OPEN_PATHS = ("/", "/config", "/theme.css", "/favicon.ico", "/manifest.json", "/robots.txt")
_OPEN_FOLDERS = ("/assets/", "/static/", "/svelte/")
_OPEN_CALLS = ("/queue/data", "/heartbeat/", "/info", "/theme.css", "/startup-events")
_OPEN_POSTS = ("/queue/join", "/reset", "/cancel")
_MAX_BODY = 4 * (MAX_BYTES // 3 + 1) + 2**16  # a file in base64, and the rest of the request
_BUFFER = 8 * _MAX_BODY
"""Maximum total size of unfinished requests, over all visitors."""
BODY_SECONDS = 30.0
"""Maximum time to receive a request."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
_HOST = re.compile(r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9.-]+))(?::[0-9]{1,5})?")
_SESSION = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TOO_LARGE = f"The file is too large: expected at most {MAX_BYTES // 2**20} MB."


class _Body(TypedDict, total=False):
    """The request of the page's script; other fields are left to the app."""

    data: list[Any]
    fn_index: int
    session_hash: str
    trigger_id: int | None
    event_id: str | None


class _RefusedError(Exception):
    """A request was refused, with this status and text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


class Guard:
    """Wraps an ASGI app: blocks what the page does not need, and limits the size and time of requests.

    Args:
        app: The app.
        hosts: Allowed host names of the server. Defaults to any.
        calls: The number of inputs of each action, by its index. Defaults to any.
        body_seconds: Maximum time to receive a request.
    """

    def __init__(
        self,
        app: Callable[..., Awaitable[None]],
        hosts: tuple[str, ...] | None,
        calls: Mapping[int, int] | None = None,
        *,
        body_seconds: float = BODY_SECONDS,
    ) -> None:
        self.app, self.hosts, self.calls, self.body_seconds = app, hosts, calls, body_seconds
        self._buffered = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            closing = {"type": "websocket.close", "code": 1008}
            return await (self.app(scope, receive, send) if scope["type"] == "lifespan" else send(closing))
        try:
            self._check(scope)
            if scope["method"] == "POST":
                receive = _replay(await self._read_body(receive), receive)
        except _RefusedError as refused:
            return await _answer(send, refused.status, refused.text)
        return await self.app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        """Checks the headers of a request."""
        hosts, origins, sites, lengths = (
            [value.decode("latin-1") for key, value in scope["headers"] if key == name]
            for name in (b"host", b"origin", b"sec-fetch-site", b"content-length")
        )
        found = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        name = (found["address"] or found["name"]).lower() if found else None
        if name is None or (self.hosts is not None and name not in self.hosts):
            raise _RefusedError(403, "Expected to be addressed as localhost. Open the address that nf serve printed.")
        # Pages of other origins in the same browser must not send requests here.
        own = {f"{scheme}://{hosts[0]}".lower() for scheme in ("http", "https")}
        if any(origin.lower() not in own for origin in origins) or "cross-site" in sites:
            raise _RefusedError(403, "Expected a request from this page. Open the address that nf serve printed.")
        posts = _is_post(scope["path"])
        if not posts and not _is_open(scope["path"]):
            raise _RefusedError(404, "There is nothing here.")
        if scope["method"] not in (("POST",) if posts else ("GET", "HEAD")):
            raise _RefusedError(405, f"Expected {'POST' if posts else 'GET'}, but got another method.")
        if any(not (length.isascii() and length.isdecimal()) for length in lengths):
            raise _RefusedError(400, "Expected a Content-Length.")
        if any(len(length) > 12 or int(length) > _MAX_BODY for length in lengths):
            raise _RefusedError(413, _TOO_LARGE)

    async def _read_body(self, receive: Receive) -> bytes:
        """Receives the whole body; checks that it is in time, not too large, and a request of the page's script."""
        body = bytearray()
        try:
            await asyncio.wait_for(self._fill(body, receive), self.body_seconds)
        except asyncio.TimeoutError as error:
            raise _RefusedError(408, "The request did not arrive in time. Try again.") from error
        finally:
            self._buffered -= len(body)
        self._check_body(bytes(body))
        return bytes(body)

    async def _fill(self, body: bytearray, receive: Receive) -> None:
        while True:
            part = await receive()
            if part["type"] != "http.request":
                raise _RefusedError(400, "The connection was closed.")
            new = part.get("body", b"")
            body += new
            self._buffered += len(new)
            if len(body) > _MAX_BODY:
                raise _RefusedError(413, _TOO_LARGE)
            if self._buffered > _BUFFER:
                raise _RefusedError(503, "Too many uploads at once. Try again in a moment.")
            if not part.get("more_body", False):
                return

    def _check_body(self, body: bytes) -> None:
        try:
            content = conform(parse_json(body, "the request"), _Body, "the request", open_names=True)
        except JsonError as error:
            raise _RefusedError(400, str(error)) from error
        if not _SESSION.fullmatch(content.get("session_hash", "none")):
            raise _RefusedError(400, "the request: session_hash: expected letters and digits.")
        call = content.get("fn_index")
        if self.calls is not None and call is not None and call not in self.calls:
            raise _RefusedError(400, "the request: fn_index: expected an action of the page.")
        if self.calls is not None and "data" in content and len(content["data"]) != self.calls.get(call or 0):
            raise _RefusedError(400, "the request: data: expected as many values as the action takes.")


def _is_post(path: str) -> bool:
    return path.startswith("/gradio_api/") and path.removeprefix("/gradio_api") in _OPEN_POSTS


def _is_open(path: str) -> bool:
    if any(part in path for part in ("..", "\\", "//", "\0")):
        return False
    call = path.removeprefix("/gradio_api")
    if call != path:
        return any(call == name or (name.endswith("/") and call.startswith(name)) for name in _OPEN_CALLS)
    return path in _OPEN_PATHS or path.startswith(_OPEN_FOLDERS)


def _replay(body: bytes, receive: Receive) -> Receive:
    left: list[bytes] = [body]

    async def replay() -> Any:
        return {"type": "http.request", "body": left.pop(), "more_body": False} if left else await receive()

    return replay


async def _answer(send: Send, status: int, text: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})
