"""`nf serve`: the web page with trained models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neuralfunctionals.cli.command import Add, Command
from neuralfunctionals.errors import UserError

# Torch and everything that needs it is imported inside the functions, so that --help is fast.

_EDITORS = ("dilate", "erode", "gradient")


def _add_serve_arguments(add: Add) -> None:
    add("--port", type=int, default=7860, help="port of the page (7860); 0 chooses a free one")
    add(
        "--host",
        default="127.0.0.1",
        help="address to listen on: this machine only (127.0.0.1), or every interface (0.0.0.0)",
    )
    add("--no-browser", action="store_true", help="do not open the page in a browser")
    add(
        "--models",
        metavar="DIR",
        help="run directories digits-dilate, -erode, -gradient, -classify, -inr2array; defaults to the shipped ones",
    )


def open_models(directory: str | None) -> Any:
    """Opens the models of the page, from a directory of run directories or from the package."""
    from neuralfunctionals.runs import open_run
    from neuralfunctionals.tasks import ClassifyTask, EditTask, ReconstructTask
    from neuralfunctionals.web import Models

    def task(name: str, kind: type[Any]) -> Any:
        full = f"digits-{name}"
        try:
            found = open_run(full if directory is None else Path(directory) / full).task
        except (ValueError, OSError) as error:
            raise UserError(
                f"The page needs the trained model {full}. {error} Or choose a directory that has it with --models."
            ) from error
        if not isinstance(found, kind):
            raise UserError(f"Expected the task of run {full} to be {kind.__name__}, but got {type(found).__name__}.")
        return found

    editors = {name: task(name, EditTask) for name in _EDITORS}
    return Models(editors, task("classify", ClassifyTask), task("inr2array", ReconstructTask))


def _serve(models: str | None, *, no_browser: bool, **where: Any) -> dict[str, Any]:
    from neuralfunctionals.web import serve

    return {"address": serve(lambda: open_models(models), browser=not no_browser, **where)}


COMMANDS = {
    "serve": Command(
        "Open a web page: draw a digit, watch it become a network, edit its weights, shuffle its neurons.",
        "nf serve --port 7860",
        _add_serve_arguments,
        _serve,
    ),
}
