"""Builds the wheel and the sdist, and tries the wheel in an environment of its own.

    python tools/release.py                 # minutes: installs everything the wheel needs, from scratch
    python tools/release.py --reuse         # quick: takes torch and the rest from the environment that runs this

The files end in `dist/`. The wheel must hold every file of the package, and from another folder these must work:
`nf --version`, `nf models`, and `nf demo --scale tiny`.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "neuralfunctionals"


def version() -> str:
    text = (ROOT / "src" / PACKAGE / "__init__.py").read_text()
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.M)
    assert found is not None
    return found[1]


def package_files() -> set[str]:
    """What a wheel must hold: modules, C++ sources, shipped models, samples, and the assets of the page."""
    folder = ROOT / "src"
    files = (path for path in (folder / PACKAGE).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix() for path in files}


def missing_files(names: Iterable[str]) -> list[str]:
    """The files of the package that are not among these names, as a wheel or the `src` of an sdist lists them."""
    return sorted(package_files() - set(names))


def names_in(archive: Path) -> list[str]:
    if archive.suffix == ".whl":
        return zipfile.ZipFile(archive).namelist()
    with tarfile.open(archive) as content:
        return [name.partition("/src/")[2] for name in content.getnames() if "/src/" in name]


def require_changelog() -> None:
    """A release has a section of its own in the changelog."""
    if not re.search(rf"^## {re.escape(version())}\b", (ROOT / "CHANGELOG.md").read_text(), re.M):
        raise SystemExit(f"release: CHANGELOG.md has no section '## {version()}'. Name the unreleased one after it.")


def run(*words: str | Path, cwd: Path = ROOT) -> None:
    print("$", *words, flush=True)
    # Neither the source tree nor what the user installed beside it may stand in for the wheel.
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    subprocess.run([str(word) for word in words], cwd=cwd, env=environment, check=True)


def make_environment(folder: Path, *, reuse: bool) -> Path:
    """A new virtual environment; with `reuse`, packages of the running one are found after its own."""
    run(sys.executable, "-m", "venv", folder)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if reuse:
        answer = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        place = Path(subprocess.run(answer, capture_output=True, text=True, check=True).stdout.strip())
        (place / "reused.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def build(out: Path, scratch: Path) -> tuple[Path, Path]:
    """The wheel and the sdist."""
    python = make_environment(scratch / "build", reuse=False)
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "build")
    run(python, "-m", "build", "--outdir", out, ROOT)
    return out / f"{PACKAGE}-{version()}-py3-none-any.whl", out / f"{PACKAGE}-{version()}.tar.gz"


def try_wheel(wheel: Path, scratch: Path, *, reuse: bool) -> None:
    """Installs it and uses it, from a folder that has nothing to do with the sources."""
    python = make_environment(scratch / "try", reuse=reuse)
    options = ["--no-deps"] if reuse else []
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *options, wheel)
    elsewhere = scratch / "elsewhere"
    elsewhere.mkdir()
    code = f"import {PACKAGE}, sys; sys.exit(not {PACKAGE}.__file__.startswith(sys.prefix))"
    run(python, "-c", code, cwd=elsewhere)
    for words in (["--version"], ["models"], ["demo", "--scale", "tiny", "--out", "demo"]):
        run(python.parent / "nf", *words, cwd=elsewhere)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where wheel and sdist go (dist)")
    parser.add_argument("--reuse", action="store_true", help="take dependencies from the running environment")
    parser.add_argument("--draft", action="store_true", help="the changelog needs no section for this version yet")
    arguments = parser.parse_args()
    if not arguments.draft:
        require_changelog()
    with tempfile.TemporaryDirectory() as scratch:
        archives = build(arguments.out.resolve(), Path(scratch))
        for archive in archives:
            if missing := missing_files(names_in(archive)):
                raise SystemExit(f"release: {archive.name} lacks {', '.join(missing)}.")
        try_wheel(archives[0], Path(scratch), reuse=arguments.reuse)
    print(f"release: {' and '.join(str(archive) for archive in archives)} work.")


if __name__ == "__main__":
    main()
