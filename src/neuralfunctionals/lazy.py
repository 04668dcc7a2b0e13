"""Imports the names of a package on first use, so that commands start without loading torch: `exports`."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package, from the imports in its stub `__init__.pyi`.

    Type checkers read the stub; at run time each name is imported from the module that the stub names.
    """
    stub = ast.parse(Path(str(sys.modules[package].__file__)).with_suffix(".pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    places = {alias.name: str(node.module) for node in imports for alias in node.names}

    def load(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if places[name] == package:
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(places[name]), name)

    return load, lambda: sorted(places), sorted(places)
