"""The reference of one part of the package: a table of its public names, then each with its docstring."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import nested_parse_with_titles

from markdown_docstrings import translate


def docstring_of(module: ModuleType, name: str) -> str:
    """The docstring of a public name; that of a constant is the string below its assignment."""
    value = getattr(module, name)
    if inspect.isclass(value) or inspect.isfunction(value):
        return inspect.getdoc(value) or ""
    package = importlib.import_module(module.__name__.partition(".")[0])
    parts = [part.name for part in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    # Those of the module first: a constant may also come from another room.
    parts.sort(key=lambda part: not part.startswith(f"{module.__name__}."))
    for part in parts:
        analyzer = ModuleAnalyzer.for_module(part)
        analyzer.analyze()
        if ("", name) in analyzer.attr_docs and getattr(importlib.import_module(part), name) is value:
            return "\n".join(analyzer.attr_docs["", name]).strip()
    raise ValueError(f"Expected a docstring below {module.__name__}.{name}, but found none. Write one.")


def entry(module: ModuleType, name: str) -> list[str]:
    """The directive that documents one name."""
    value, path = getattr(module, name), f"{module.__name__}.{name}"
    if inspect.isclass(value):
        return [
            f".. autoclass:: {path}",
            "   :members:",
            "   :undoc-members:",
            "   :exclude-members: extra_repr, reset_parameters, symmetry",
            "",
        ]
    if inspect.isfunction(value):
        return [f".. autofunction:: {path}", ""]
    lines = [
        f".. py:data:: {path}",
        "",
        *("   " + line for line in translate(docstring_of(module, name)).split("\n")),
        "",
    ]
    if isinstance(value, (dict, tuple, list)):
        lines += [
            "   " + ("Names: " if isinstance(value, dict) else "Values: ") + ", ".join(f"``{v}``" for v in value),
            "",
        ]
    return lines


class ApiPage(SphinxDirective):
    """All public names of a module that are no modules, and are not left out."""

    required_arguments = 1
    option_spec = {"leave-out": str.split}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        """Called by Sphinx."""
        module = importlib.import_module(self.arguments[0])
        names = [n for n in module.__all__ if n not in self.options.get("leave-out", ())]
        names = [n for n in names if not inspect.ismodule(getattr(module, n))]
        lines = ["", ".. list-table::", "   :widths: auto", "   :class: names", ""]
        for name in names:
            summary = docstring_of(module, name).strip().split("\n\n")[0].replace("\n", " ")
            lines += [f"   * - :py:obj:`{name} <{module.__name__}.{name}>`", f"     - {translate(summary)}"]
        lines += ["", *(line for name in names for line in entry(module, name))]
        node = nodes.section()
        node.document = self.state.document
        nested_parse_with_titles(self.state, StringList(lines, source=self.arguments[0]), node)
        return node.children


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_directive("api", ApiPage)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
