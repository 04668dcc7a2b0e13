"""Compiled libraries: only intact ones of the user's own are loaded. Each case is a process of its own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from neuralfunctionals import native

pytestmark = pytest.mark.skipif(native.find_compiler() is None, reason="no C++ compiler here")

SOURCE = 'extern "C" int answer() { return 42; }\n'
LOAD = """
import sys, warnings
from pathlib import Path
from neuralfunctionals import native
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    library = native.load_library(Path(sys.argv[1]))
print(None if library is None else library.answer(), *[w.message for w in caught])
"""


@pytest.fixture
def source(tmp_path):
    file = tmp_path / "small.cpp"
    file.write_text(SOURCE)
    return file


def load(source, cache, **environment):
    """What the library answers in a new process, and the warnings."""
    command = [sys.executable, "-c", LOAD, str(source)]
    scratch = source.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    values = {**os.environ, "NF_CACHE": str(cache), "TMPDIR": str(scratch), **environment}
    result = subprocess.run(command, capture_output=True, text=True, env=values)
    assert result.returncode == 0, result.stderr
    assert not list(scratch.iterdir())
    answer, _, warning = result.stdout.strip().partition(" ")
    return answer, warning


def library_in(cache) -> Path:
    (found,) = (cache / "kernels").glob("*.so")
    return found


NO_COMPILER = {"CXX": "no-such-compiler"}


def plant(source, cache, canary):
    """Puts a library in place of the user's own that leaves a trace once it is loaded; its checksum fits."""
    load(source, cache)
    mine = library_in(cache)
    evil = source.with_name("evil.cpp")
    evil.write_text(
        f'#include <cstdio>\n__attribute__((constructor)) static void run() {{ fclose(fopen("{canary}", "w")); }}\n'
        'extern "C" int answer() { return 666; }\n'
    )
    subprocess.run([native.find_compiler(), "-shared", "-fPIC", "-o", mine, evil], check=True)
    checksum = mine.with_name(f"{mine.name}.sha256")
    checksum.write_bytes(native._checksum(mine.read_bytes(), mine.name))
    return mine, checksum


def test_a_library_is_built_once(source, tmp_path):
    assert load(source, tmp_path / "cache") == ("42", "")
    built = library_in(tmp_path / "cache")
    before = built.stat().st_ino, built.stat().st_mtime_ns
    assert load(source, tmp_path / "cache") == ("42", "")
    assert (built.stat().st_ino, built.stat().st_mtime_ns) == before
    assert {p.name for p in built.parent.iterdir()} == {built.name, f"{built.name}.sha256"}
    assert built.parent.stat().st_mode & 0o777 == 0o700
    if shutil.which("sha256sum"):
        subprocess.run(["sha256sum", "--check", "--quiet", f"{built.name}.sha256"], cwd=built.parent, check=True)


def test_the_trap_works(source, tmp_path):
    plant(source, tmp_path / "cache", tmp_path / "canary")  # by the user, for the user
    assert load(source, tmp_path / "cache") == ("666", "")
    assert (tmp_path / "canary").exists()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_directory_that_others_can_write_to_is_not_used(source, tmp_path, mode):
    plant(source, tmp_path / "cache", tmp_path / "canary")
    (tmp_path / "cache" / "kernels").chmod(mode)
    answer, warning = load(source, tmp_path / "cache")
    assert answer == "42"
    assert "can be written by others" in warning
    assert "chmod go-w" in warning
    assert load(source, tmp_path / "cache", **NO_COMPILER)[0] == "None"
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize("which", [0, 1], ids=["library", "checksum"])
def test_a_file_that_others_can_write_to_is_built_again(source, tmp_path, which):
    planted = plant(source, tmp_path / "cache", tmp_path / "canary")
    planted[which].chmod(0o666)
    assert load(source, tmp_path / "cache", **NO_COMPILER) == ("None", "")
    assert load(source, tmp_path / "cache") == ("42", "")
    assert load(source, tmp_path / "cache", **NO_COMPILER) == ("42", "")
    assert not (tmp_path / "canary").exists()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("which", ["directory", "library"])
def test_what_belongs_to_another_user_is_not_used(source, tmp_path, which):
    library, _ = plant(source, tmp_path / "cache", tmp_path / "canary")
    os.chown(library if which == "library" else library.parent, 12345, 12345)
    answer, warning = load(source, tmp_path / "cache")
    assert answer == "42"
    assert ("belongs to another user" in warning) == (which == "directory")
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize("which", ["directory", "library"])
def test_links_are_not_followed(source, tmp_path, which):
    library, _ = plant(source, tmp_path / "elsewhere", tmp_path / "canary")
    if which == "directory":
        (tmp_path / "cache").mkdir()
        (tmp_path / "cache" / "kernels").symlink_to(library.parent)
    else:
        shutil.copytree(tmp_path / "elsewhere", tmp_path / "cache")
        library_in(tmp_path / "cache").unlink()
        (tmp_path / "cache" / "kernels" / library.name).symlink_to(library)
    assert load(source, tmp_path / "cache")[0] == "42"
    assert not (tmp_path / "canary").exists()


def damage(data: bytes, kind: str) -> bytes:
    middle = len(data) // 2
    return {
        "empty": b"",
        "header only": data[:64],
        "first half": data[:middle],
        "one bit": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
        "zeros from 4096": data[:4096] + bytes(len(data) - 4096),
        "no last byte": data[:-1],
        "one byte more": data + b"\0",
        "text": b"not a library\n",
    }[kind]


KINDS = ["empty", "header only", "first half", "one bit", "zeros from 4096", "no last byte", "one byte more", "text"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_library_is_built_again(source, tmp_path, kind):
    load(source, tmp_path / "cache")
    built = library_in(tmp_path / "cache")
    intact = built.read_bytes()
    built.write_bytes(damage(intact, kind))
    assert load(source, tmp_path / "cache", **NO_COMPILER) == ("None", "")
    assert load(source, tmp_path / "cache") == ("42", "")
    assert built.read_bytes() == intact
    assert load(source, tmp_path / "cache", **NO_COMPILER) == ("42", "")


def test_a_damaged_or_missing_checksum_means_building_again(source, tmp_path):
    load(source, tmp_path / "cache")
    checksum = tmp_path / "cache" / "kernels" / f"{library_in(tmp_path / 'cache').name}.sha256"
    intact = checksum.read_bytes()
    for ruin in (lambda: checksum.write_bytes(b"0" * 64), checksum.unlink):
        ruin()
        assert load(source, tmp_path / "cache", **NO_COMPILER) == ("None", "")
        assert load(source, tmp_path / "cache") == ("42", "")
        assert checksum.read_bytes() == intact


def test_without_a_compiler_the_library_of_an_earlier_one_is_used(source, tmp_path):
    assert load(source, tmp_path / "cache", **NO_COMPILER) == ("None", "")
    load(source, tmp_path / "cache")
    assert load(source, tmp_path / "cache", **NO_COMPILER) == ("42", "")
    source.write_text(SOURCE.replace("42", "43"))
    assert load(source, tmp_path / "cache", **NO_COMPILER) == ("None", "")


def test_a_changed_header_means_building_again(source, tmp_path):
    header = source.with_name("answer.hpp")
    header.write_text("constexpr int value = 1;\n")
    source.write_text('#include "answer.hpp"\nextern "C" int answer() { return value; }\n')
    assert load(source, tmp_path / "cache") == ("1", "")
    header.write_text("constexpr int value = 2;\n")
    assert load(source, tmp_path / "cache", **NO_COMPILER) == ("None", "")
    assert load(source, tmp_path / "cache") == ("2", "")


def test_where_nothing_can_be_kept_the_library_is_built_for_the_process(source, tmp_path):
    (tmp_path / "cache").write_text("a file where a directory should be")
    assert load(source, tmp_path / "cache") == ("42", "")


def test_what_killed_builds_left_is_removed(source, tmp_path):
    kernels = tmp_path / "cache" / "kernels"
    kernels.mkdir(parents=True, mode=0o700)
    old, new = kernels / ".tmp-1-old", kernels / ".tmp-2-new"
    old.write_bytes(b"")
    new.write_bytes(b"")
    os.utime(old, (0, 0))
    load(source, tmp_path / "cache")
    assert not old.exists()
    assert new.exists()
