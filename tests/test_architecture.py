"""Imports point downwards only: the parts of the package and what each may use."""

import ast
import subprocess
import sys
from pathlib import Path

import neuralfunctionals

ROOT = Path(neuralfunctionals.__file__).parent
PLAIN = {"json_files", "checksums", "budget", "errors", "imports", "config"}  # plain values and files, without torch
EVERYTHING = PLAIN | {
    "weight_space",
    "layers",
    "models",
    "inr",
    "data",
    "tasks",
    "registry",
    "report",
    "testing",
    "native",
    "shipped",
}
MAY_IMPORT = {
    "errors": set(),
    "checksums": {"errors"},
    "imports": {"errors"},
    "json_files": {"errors"},
    "config": {"errors", "json_files"},
    "native": {"errors"},
    "budget": {"errors"},
    "shipped": {"errors"},
    "weight_space": {"errors"},
    "layers": {"errors", "weight_space", "inr", "native"},
    "models": PLAIN | {"weight_space", "layers", "inr", "shipped"},
    "inr": {"errors", "weight_space", "native"},
    "data": PLAIN | {"weight_space", "inr", "native"},
    "tasks": PLAIN | {"weight_space", "inr", "data"},
    "registry": PLAIN | {"tasks", "data", "models"},
    "report": PLAIN | {"weight_space", "inr", "data", "tasks", "registry"},
    "testing": {"errors", "weight_space"},
    "recipes": EVERYTHING,
    "web": EVERYTHING,
    "pipelines": EVERYTHING | {"recipes"},
    "cli": EVERYTHING | {"recipes", "web", "pipelines"},
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


def test_nothing_inside_calls_the_command_line():
    """Neither as a module nor as the command `nf`: what a command does is a function."""
    for path in ROOT.rglob("*.py"):
        if path.relative_to(ROOT).parts[0] == "cli":
            continue
        words = [n.value for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Constant)]
        texts = [word for word in words if isinstance(word, str)]
        assert not [text for text in texts if "neuralfunctionals.cli" in text or text == "nf"], path


def test_descriptions_of_tasks_and_models_need_no_torch():
    code = "import sys; from neuralfunctionals.registry import RECIPES, find_run; find_run(next(iter(RECIPES)))"
    code += "; sys.exit(bool({'torch', 'lightning', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_importing_the_package_stays_cheap():
    heavy = "lightning matplotlib cv2 ray optuna gradio scipy"
    parts = "nf.layers, nf.models, nf.testing, nf.inr"
    code = f"import sys, neuralfunctionals as nf; {parts}; print([m for m in '{heavy}'.split() if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
