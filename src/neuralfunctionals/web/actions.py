"""How the page's actions run: `guarded`, `OPTIONS`."""

from __future__ import annotations

import logging
from collections.abc import Callable
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
