"""Imports point downwards only: the parts of the package and what each may use."""

import ast
import subprocess
import sys
from pathlib import Path

import neuralfunctionals

ROOT = Path(neuralfunctionals.__file__).parent
PLAIN = {"json_files", "checksums"}  # what reads and checks files, and knows of nothing else
EVERYTHING = PLAIN | {
    "weight_space",
    "layers",
    "models",
    "inr",
    "data",
    "tasks",
    "report",
    "testing",
    "native",
    "kernels",
    "shipped",
}
MAY_IMPORT = {
    "weight_space": set(),
    "json_files": set(),
    "checksums": set(),
    "native": set(),
    "shipped": set(),
    "kernels": {"weight_space", "native"},
    "layers": {"weight_space", "inr", "kernels"},
    "models": PLAIN | {"weight_space", "layers", "inr", "shipped"},
    "inr": {"weight_space", "kernels"},
    "data": PLAIN | {"weight_space", "inr", "kernels", "native"},
    "tasks": PLAIN | {"weight_space", "inr", "data"},
    "report": PLAIN | {"weight_space", "inr", "data"},
    "testing": {"weight_space"},
    "recipes": EVERYTHING,
    "web": EVERYTHING,
    "cli": EVERYTHING | {"recipes", "web"},
}


def parts_imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if modules == ["neuralfunctionals"]:
            modules = [f"neuralfunctionals.{alias.name}" for alias in node.names if alias.name != "__version__"]
        modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path} has a relative import"
        for module in modules:
            package, _, rest = module.partition(".")
            if package == "neuralfunctionals":
                yield rest.partition(".")[0]


def test_imports_point_downwards():
    files = [p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py"]
    assert files
    for path in files:
        part = path.relative_to(ROOT).parts[0].removesuffix(".py")
        for used in parts_imported(path):
            assert used == part or used in MAY_IMPORT[part], f"{path.relative_to(ROOT)} imports {used}"


def test_importing_the_package_stays_cheap():
    heavy = "lightning matplotlib cv2 ray optuna gradio scipy"
    parts = "nf.layers, nf.models, nf.testing, nf.inr"
    code = f"import sys, neuralfunctionals as nf; {parts}; print([m for m in '{heavy}'.split() if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
