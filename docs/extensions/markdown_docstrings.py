"""Our docstrings have Markdown's `code` and LaTeX's $math$; Sphinx reads reStructuredText."""

from __future__ import annotations

import re
import textwrap
from typing import Any

from sphinx.application import Sphinx

BLOCK = re.compile(r"^(?P<indent> *)\$\$(?P<equation>.+?)\$\$(?P<after>[^\n]*)$", re.M | re.S)
INLINE = re.compile(r"(?:`(?P<code>[^`\n]+)`|\$(?P<equation>[^$\n]+)\$)(?P<joined>\w?)")


def translate(text: str) -> str:
    """Markdown to reStructuredText, as far as docstrings use it."""
    return BLOCK.sub(_block, INLINE.sub(_inline, BLOCK.sub(_hide, text)).replace("\x00", "$$"))


def _hide(match: re.Match[str]) -> str:
    return match[0].replace("$$", "\x00")


def _inline(match: re.Match[str]) -> str:
    marked = f"``{match['code']}``" if match["code"] else f":math:`{match['equation']}`"
    return f"{marked}\\ {match['joined']}" if match["joined"] else marked


def _block(match: re.Match[str]) -> str:
    equation = " ".join(match["equation"].split())
    lines = ["", ".. math::", "", f"   {equation}", "", match["after"].strip()]
    return textwrap.indent("\n".join(lines), match["indent"])


def on_docstring(app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    """Called by Sphinx for each docstring, before its Google sections are read."""
    lines[:] = translate("\n".join(lines)).split("\n")


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", on_docstring, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
