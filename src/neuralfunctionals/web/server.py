"""The server of the page: `serve`."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import sys
import tempfile
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from neuralfunctionals.errors import UserError
from neuralfunctionals.files.writing import is_running
from neuralfunctionals.web.digits import samples
from neuralfunctionals.web.exhibit import Exhibit, Models
from neuralfunctionals.web.guard import LOOPBACK, Guard
from neuralfunctionals.web.uploads import SCRATCH


def open_socket(host: str, port: int) -> socket.socket:
    """Opens a listening socket; port 0 chooses a free port."""
    if not 0 <= port <= 65535:
        raise UserError(f"Expected a port from 0 to 65535, but got {port}.")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise UserError(f"Expected an address of this machine, but got '{host}'. Try --host 127.0.0.1.") from error
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise UserError(
            f"Cannot listen at {host}, port {port}: {error.strerror or error}. Choose another one with --port."
        ) from error
    return listener


def _remove_scratch_of_killed() -> None:
    """Removes the temporary directories of this user's killed servers."""
    for path in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*-*"):
        owner = path.name.removeprefix(SCRATCH).partition("-")[0]
        with suppress(OSError):
            if owner.isdecimal() and not is_running(int(owner)) and path.lstat().st_uid == os.getuid():
                shutil.rmtree(path, ignore_errors=True)


def _require_gradio() -> None:
    if importlib.util.find_spec("gradio") is None:
        raise UserError("The page needs gradio. Install it with pip install 'neuralfunctionals[web]'.")
    # Disables telemetry; Gradio reads this at import.
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"


def build_app(models: Models, *, hosts: tuple[str, ...] | None = LOOPBACK) -> Guard:
    """Builds the page as an ASGI app behind a `Guard`."""
    _require_gradio()
    import gradio
    from fastapi import FastAPI

    from neuralfunctionals.web.page import CSS, build_page, theme

    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    page = build_page(models)
    gradio.mount_gradio_app(
        app,
        page,
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
    return Guard(app, hosts, {number: len(fn.inputs) for number, fn in page.fns.items()})


def serve(open_models: Callable[[], Models], *, host: str = "127.0.0.1", port: int = 7860, browser: bool = True) -> str:
    """Serves the page until it is interrupted.

    Args:
        open_models: Opens the models; called after the port is known to be free.
        host: Address to listen on; only this machine can reach 127.0.0.1.
        port: Port to listen on; 0 chooses a free one.
        browser: Whether to open the page in a browser.

    Returns:
        The address.
    """
    _require_gradio()
    import uvicorn

    from neuralfunctionals.web.connections import bounded_protocol, raise_file_limit

    listener = open_socket(host, port)
    _remove_scratch_of_killed()
    prefix = f"{SCRATCH}{os.getpid()}-"
    with listener, tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as scratch:
        os.environ["GRADIO_TEMP_DIR"] = scratch
        models = open_models()
        Exhibit.fit(samples()[0]).read(models)  # warm-up, so that the first visitor does not wait for compilation
        is_local = listener.getsockname()[0] in ("127.0.0.1", "::1")
        app = build_app(models, hosts=LOOPBACK if is_local else None)
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{listener.getsockname()[1]}"
        print(f"nf: the page is at {address} (Ctrl-C stops it).", file=sys.stderr, flush=True)
        if browser:
            with suppress(webbrowser.Error):
                webbrowser.open(address)
        config = uvicorn.Config(
            app,
            log_level="critical",
            access_log=False,
            timeout_graceful_shutdown=1,
            limit_concurrency=max(64, raise_file_limit() - 256),  # refuses connections before files run out
            http=bounded_protocol(),
            ws="none",
        )
        # A termination signal stops it like Ctrl-C, so that temporary files are removed.
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            uvicorn.Server(config).run(sockets=[listener])
        except KeyboardInterrupt:
            pass
        finally:
            signal.signal(signal.SIGTERM, before)
    return address
