"""The server behind the page: its socket, what it lets through, how it starts and ends: `serve`."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import sys
import tempfile
import webbrowser
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

from neuralfunctionals.web.digits import MAX_BYTES, samples
from neuralfunctionals.web.exhibit import Exhibit, Models

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

# All that the page needs. Uploads to disk, files by path, proxies and the like stay closed.
_OPEN_PATHS = ("/", "/config", "/theme.css", "/favicon.ico", "/manifest.json", "/robots.txt")
_OPEN_FOLDERS = ("/assets/", "/static/", "/svelte/")
_OPEN_CALLS = (
    "/queue/join",
    "/queue/data",
    "/heartbeat/",
    "/info",
    "/theme.css",
    "/startup-events",
    "/reset",
    "/cancel",
)
_LARGE_BODY = 256 * 2**10
_LARGE_BODIES = 8
_MAX_BODY = 4 * (MAX_BYTES // 3 + 1) + 2**16  # a file as text, and what is sent around it
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Guard:
    """Stands before an ASGI app: closes what the page does not need, and bounds what comes in.

    Args:
        app: The app.
        hosts: Names under which the server may be addressed; any if missing.
    """

    def __init__(self, app: Callable[..., Awaitable[None]], hosts: tuple[str, ...] | None) -> None:
        self.app, self.hosts = app, hosts
        self._large = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await (self.app(scope, receive, send) if scope["type"] == "lifespan" else _close(send))
        headers = dict(scope["headers"])
        refusal = self._refusal(scope["path"], headers)
        if refusal is not None:
            return await _answer(send, *refusal)
        if int(headers.get(b"content-length", b"0") or 0) <= _LARGE_BODY and b"transfer-encoding" not in headers:
            return await self.app(scope, receive, send)
        if self._large >= _LARGE_BODIES:
            return await _answer(send, 503, "Too many uploads at once. Try again in a moment.")
        self._large += 1
        try:
            body = await _read_body(receive)
        finally:
            self._large -= 1
        if body is None:
            return await _answer(send, 413, _TOO_LARGE)
        return await self.app(scope, _replay(body, receive), send)

    def _refusal(self, path: str, headers: dict[bytes, bytes]) -> tuple[int, str] | None:
        host = headers.get(b"host", b"").decode("latin-1")
        if self.hosts is not None and _host_name(host) not in self.hosts:
            return 403, "Expected to be addressed as localhost. Open the address that nf serve printed."
        if not _is_open(path):
            return 404, "There is nothing here."
        length = headers.get(b"content-length", b"0").decode("latin-1")
        if not length.isdecimal():
            return 400, "Expected a length."
        return (413, _TOO_LARGE) if int(length) > _MAX_BODY else None


_TOO_LARGE = f"The file is too large: expected at most {MAX_BYTES // 2**20} MB."


def _is_open(path: str) -> bool:
    if ".." in path or "\\" in path or "//" in path or "\0" in path:
        return False
    call = path.removeprefix("/gradio_api")
    if call != path:
        return any(call == name or (name.endswith("/") and call.startswith(name)) for name in _OPEN_CALLS)
    return path in _OPEN_PATHS or path.startswith(_OPEN_FOLDERS)


def _host_name(host: str) -> str:
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


async def _read_body(receive: Receive) -> bytes | None:
    """The whole body, unless it is too large or the client leaves."""
    body = bytearray()
    while True:
        part = await receive()
        if part["type"] != "http.request":
            return None
        body += part.get("body", b"")
        if len(body) > _MAX_BODY:
            return None
        if not part.get("more_body", False):
            return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    left: list[bytes] = [body]

    async def replay() -> Any:
        return {"type": "http.request", "body": left.pop(), "more_body": False} if left else await receive()

    return replay


async def _answer(send: Send, status: int, text: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})


async def _close(send: Send) -> None:
    await send({"type": "websocket.close", "code": 1008})


def open_socket(host: str, port: int) -> socket.socket:
    """A socket that listens; a port of 0 takes a free one."""
    if not 0 <= port <= 65535:
        raise ValueError(f"Expected a port from 0 to 65535, but got {port}.")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise ValueError(f"Expected an address of this machine, but got '{host}'. Try --host 127.0.0.1.") from error
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(256)
    except OSError as error:
        listener.close()
        raise ValueError(
            f"Cannot listen at {host}, port {port}: {error.strerror or error}. Choose another one with --port."
        ) from error
    return listener


def _require_gradio() -> None:
    if importlib.util.find_spec("gradio") is None:
        raise ValueError("The page needs gradio. Install it with pip install 'neuralfunctionals[web]'.")
    # Read when it is imported: it is to call nobody.
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"


def build_app(models: Models, *, hosts: tuple[str, ...] | None = _LOOPBACK) -> Guard:
    """The page as an ASGI app, guarded."""
    _require_gradio()
    import gradio
    from fastapi import FastAPI

    from neuralfunctionals.web.page import CSS, build_page, theme

    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    gradio.mount_gradio_app(
        app,
        build_page(models),
        path="/",
        css=CSS,
        theme=theme(),
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        mcp_server=False,
        enable_monitoring=False,
        pwa=False,
        show_error=True,
        max_file_size=0,
        app_kwargs={"openapi_url": None, "docs_url": None, "redoc_url": None},
    )
    return Guard(app, hosts)


def serve(open_models: Callable[[], Models], *, host: str = "127.0.0.1", port: int = 7860, browser: bool = True) -> str:
    """Serves the page until it is interrupted.

    Args:
        open_models: Opens the models, once the address is known to be free.
        host: Where to listen; only this machine can reach 127.0.0.1.
        port: Its port; 0 takes a free one.
        browser: Whether to open the page in a browser.

    Returns:
        The address.
    """
    _require_gradio()
    import uvicorn

    listener = open_socket(host, port)
    with listener, tempfile.TemporaryDirectory(prefix="nf-serve-", ignore_cleanup_errors=True) as scratch:
        os.environ["GRADIO_TEMP_DIR"] = scratch
        models = open_models()
        Exhibit.fit(samples()[0]).read(models)  # the first visitor need not wait for what is compiled or loaded once
        is_local = listener.getsockname()[0] in ("127.0.0.1", "::1")
        app = build_app(models, hosts=_LOOPBACK if is_local else None)
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{listener.getsockname()[1]}"
        print(f"nf: the page is at {address} (Ctrl-C ends it).", file=sys.stderr, flush=True)
        if browser:
            with suppress(webbrowser.Error):
                webbrowser.open(address)
        config = uvicorn.Config(
            app, log_level="critical", access_log=False, timeout_graceful_shutdown=1, limit_concurrency=1000, ws="none"
        )
        # Told to end, it ends as after Ctrl-C: nothing is left behind.
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            uvicorn.Server(config).run(sockets=[listener])
        except KeyboardInterrupt:
            pass
        finally:
            signal.signal(signal.SIGTERM, before)
    return address
