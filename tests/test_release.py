"""What people install is whole."""

import importlib.metadata
import importlib.util
import subprocess
import sys
import zipfile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from documents import ROOT

SCRIPT = ROOT / "tools/release.py"


@pytest.fixture(scope="module")
def release():
    loaded = importlib.util.spec_from_file_location("release", SCRIPT)
    module = importlib.util.module_from_spec(loaded)
    loaded.loader.exec_module(module)
    return module


def test_the_files_that_a_wheel_needs_are_known(release):
    needed = release.package_files()
    for ending in (".cpp", ".hpp", ".css", ".js", ".npz", ".safetensors", "py.typed", "digits-dilate/README.md"):
        assert any(name.endswith(ending) for name in needed), ending
    assert all(name.startswith("neuralfunctionals/") for name in needed)


def test_a_wheel_that_lacks_a_file_is_noticed(release, tmp_path):
    needed = sorted(release.package_files())
    lacking = [name for name in needed if not name.endswith(".cpp")]
    with zipfile.ZipFile(tmp_path / "made.whl", "w") as archive:
        for name in lacking:
            archive.writestr(name, "")
    missing = release.missing_files(release.names_in(tmp_path / "made.whl"))
    assert missing == sorted(set(needed) - set(lacking))
    assert missing


def test_the_citation_names_the_version(release):
    assert f"\nversion: {release.version()}\n" in (ROOT / "CITATION.cff").read_text()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_wheel_and_sdist_are_whole_and_the_wheel_works(tmp_path):
    words = [sys.executable, str(SCRIPT), "--reuse", "--draft", "--out", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True)
    if "No matching distribution" in done.stderr or "Failed to establish" in done.stderr:
        pytest.skip("building a wheel needs the package index")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.suffix for path in tmp_path.iterdir()} == {".whl", ".gz"}
    assert "nf 0." in done.stdout
    assert "digits-classify" in done.stdout


def test_every_package_that_an_installation_brings_is_pinned():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {canonicalize_name(Requirement(line).name) for line in lines if line and not line.startswith("#")}
    waiting, seen = [("neuralfunctionals", frozenset({"dev", "docs", "peers", "cluster", "sweep", "web"}))], set()
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            needed = [Requirement(line) for line in importlib.metadata.requires(name) or ()]
        except importlib.metadata.PackageNotFoundError:  # not for this machine
            continue
        for requirement in needed:
            if requirement.marker is None or any(requirement.marker.evaluate({"extra": e}) for e in (*extras, "")):
                waiting.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    installed = {canonicalize_name(d.name) for d in importlib.metadata.distributions()}
    found = {name for name, _ in seen} & installed - {"neuralfunctionals"}
    assert len(found) > 100
    assert sorted(found - pinned) == []
