"""Equations as MathML, which browsers show by themselves: no script, no network."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

LOGGER = logging.getLogger(__name__)


def to_mathml(node: nodes.math | nodes.math_block) -> str:
    """The equation of a node; warns of commands that the converter does not know."""
    display = "block" if isinstance(node, nodes.math_block) else "inline"
    mathml = convert(" ".join(node.astext().split()), display=display)
    if "\\" in mathml:
        LOGGER.warning("cannot show the equation %s", node.astext(), location=node)
    return mathml


def visit_inline(self: HTML5Translator, node: nodes.math) -> None:
    """Writes it into the line."""
    self.body.append(to_mathml(node))
    raise nodes.SkipNode


def visit_block(self: HTML5Translator, node: nodes.math_block) -> None:
    """Writes it on a line of its own, which scrolls where the page is narrow."""
    self.body.append(f'<div class="equation">{to_mathml(node)}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
