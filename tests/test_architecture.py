"""Imports point downwards only: the parts of the package and what each may use."""

import ast
import subprocess
import sys
from pathlib import Path

import neuralfunctionals

ROOT = Path(neuralfunctionals.__file__).parent
BASE = {"errors", "files", "imports", "lazy", "machine", "progress"}  # nothing of networks yet
NETWORKS = {"native", "weight_space", "kernels", "images", "inr", "cnn"}
MODELS = {"layers", "models", "shipped"}
RUNS = {"config", "data", "run_directory", "tasks", "registry", "report"}
BELOW_RUNS = BASE | NETWORKS | MODELS | RUNS | {"testing"}
# In the order in which the data flows: from files and images to networks, stores, tasks, runs, studies.
MAY_IMPORT = {
    "errors": set(),
    "lazy": set(),
    "machine": set(),
    "progress": set(),
    "imports": {"errors"},
    "native": {"errors", "machine"},
    "files": {"errors"},
    "weight_space": {"errors", "lazy"},
    "kernels": {"errors", "native", "weight_space"},
    "images": BASE,
    "inr": {"errors", "lazy", "machine", "weight_space", "kernels"},
    "cnn": {"errors", "weight_space", "kernels"},
    "layers": {"errors", "weight_space", "kernels", "inr"},
    "models": BASE | {"config", "weight_space", "inr", "layers", "shipped"},
    "shipped": {"errors"},
    "testing": {"errors", "weight_space"},
    "data": BASE | NETWORKS,
    "config": {"errors", "files"},
    "run_directory": BASE | {"data"},
    "tasks": BASE | NETWORKS | {"config", "data", "run_directory"},
    "registry": BASE | {"config", "data", "models", "tasks"},
    "report": BASE | {"config", "weight_space", "inr", "data", "run_directory", "tasks", "registry"},
    "runs": BELOW_RUNS - {"report"},
    "studies": BELOW_RUNS | {"runs"},
    "pipelines": BELOW_RUNS | {"runs"},
    "web": BELOW_RUNS | {"runs"},
    "cli": BELOW_RUNS | {"runs", "studies", "pipelines", "web"},
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


def test_lazy_names_are_not_those_of_modules_beside_them():
    """`inr.fit` would be the function before the module of that name is imported, and the module after."""
    stubs = sorted(ROOT.rglob("__init__.pyi"))
    assert stubs
    for stub in stubs:
        imports = [node for node in ast.parse(stub.read_text()).body if isinstance(node, ast.ImportFrom)]
        package = ".".join(("neuralfunctionals", *stub.parent.relative_to(ROOT).parts))
        names = {alias.name for node in imports for alias in node.names if node.module != package}
        assert not names & {path.stem for path in stub.parent.iterdir()}, stub


def test_the_header_of_a_store_is_read_without_torch():
    code = "import sys; from neuralfunctionals.data import SPLITS, Store; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_importing_the_package_stays_cheap():
    heavy = "lightning matplotlib cv2 ray optuna gradio scipy"
    parts = "nf.layers, nf.models, nf.testing, nf.inr"
    code = f"import sys, neuralfunctionals as nf; {parts}; print([m for m in '{heavy}'.split() if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
