"""The page's actions and scripts: `guarded`, `OPTIONS`, `script`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

# One action at a time, because parallel ones would slow each other down.
OPTIONS: dict[str, Any] = {"concurrency_id": "actions", "concurrency_limit": 1, "show_progress": "minimal"}
"""Options of every event of the page."""


def guarded(action: Callable[..., Any]) -> Callable[..., Any]:
    """Shows errors of an action on the page; unexpected ones are logged, and the page only says that it failed."""
    import gradio as gr

    def run(*inputs: Any) -> Any:
        try:
            return action(*inputs)
        except ValueError as error:
            raise gr.Error(str(error), print_exception=False, title="This does not work") from error
        except Exception as error:
            logging.getLogger(__name__).exception("an action of the page failed")
            raise gr.Error("Something went wrong here. Try again.", print_exception=False) from error

    return run


def script(name: str, max_bytes: int) -> str:
    """One of the page's scripts, after the functions that they share.

    Args:
        name: Its file.
        max_bytes: Maximum size of a file that it sends.
    """
    shared, own = (Path(__file__).with_name(file).read_text() for file in ("files.js", name))
    return shared + own.replace("MAX_BYTES", str(max_bytes))
