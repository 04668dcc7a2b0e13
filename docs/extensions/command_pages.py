"""The reference of `nf`: each command's own help, read when the site is built."""

from __future__ import annotations

import io
import os
from contextlib import redirect_stdout
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from neuralfunctionals import cli


def help_of(*words: str) -> str:
    """What a command prints when asked for help."""
    out = io.StringIO()
    try:
        with redirect_stdout(out):
            cli.main([*words, "--help"])
    except SystemExit as leaving:
        if leaving.code:
            raise ValueError(f"Expected help from nf {' '.join(words)}, but it failed.") from leaving
    return out.getvalue().strip()


class CommandReference(SphinxDirective):
    """One section for each command; with arguments, the help of that one call."""

    optional_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Called by Sphinx."""
        if self.arguments:
            return [nodes.literal_block(text=help_of(*self.arguments[0].split()), language="text")]
        return [self._section(name, command.summary) for name, command in cli.COMMANDS.items()]

    def _section(self, name: str, summary: str) -> nodes.section:
        section = nodes.section(ids=[nodes.make_id(f"nf {name}")], names=[f"nf {name}"])
        section += nodes.title(text=f"nf {name}")
        section += nodes.paragraph(text=summary)
        section += nodes.literal_block(text=help_of(*name.split()), language="text")
        self.state.document.note_explicit_target(section)
        return section


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    os.environ["COLUMNS"] = "100"  # argparse folds its lines there
    app.add_directive("command-reference", CommandReference)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
