"""How the page's actions run: `guarded`, `OPTIONS`; and the scripts that call them: `script`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

# One action at a time: more would only slow each other down.
OPTIONS: dict[str, Any] = {"concurrency_id": "actions", "concurrency_limit": 1, "show_progress": "minimal"}
"""For every event of the page."""


def guarded(action: Callable[..., Any]) -> Callable[..., Any]:
    """Says on the page what is wrong; what nobody foresaw goes to the log, and the page says so."""
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
    """One of the page's own scripts, behind the functions that all share.

    Args:
        name: Its file.
        max_bytes: The largest file that it sends.
    """
    shared, own = (Path(__file__).with_name(file).read_text() for file in ("files.js", name))
    return shared + own.replace("MAX_BYTES", str(max_bytes))
