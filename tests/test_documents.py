"""Every block of code that people read runs as it stands, and the site is whole."""

import importlib
import os
import re
import subprocess
import sys

import pytest

import neuralfunctionals as nf
from documents import ROOT, Block, blocks_of, pages

WITH_CODE = [page for page in pages() if any(block.mark != "not run" for block in blocks_of(page))]
NOT_RUN = {
    "README.md": 1,
    "docs/guide/training.md": 1,
    "docs/index.md": 1,
    "docs/guide/serve.md": 2,
    "docs/guide/trust.md": 1,
    "docs/tutorials/3_from_images_to_a_table.md": 1,
}
"""Blocks marked as not run; each says why in its page."""
SLOW = {
    "docs/guide/latents.md",
    "docs/guide/pretrained.md",
    "docs/guide/training.md",
    "docs/guide/zoo.md",
    "docs/tutorials/1_your_own_sirens.md",
    "docs/tutorials/3_from_images_to_a_table.md",
}
"""Pages that take the better part of a minute; others are slow only in blocks that say so."""
NEEDS = {"docs/coming_from.md": ("nfn", "peers")}


def name_of(page):
    return page.relative_to(ROOT).as_posix()


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    """As people have it: `nf` on the path, and a cache of its own."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "nf").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m neuralfunctionals.cli "$@"\n')
    (folder / "nf").chmod(0o755)
    cache = str(tmp_path_factory.mktemp("cache"))
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "NF_CACHE": cache}


def run_page(page, environment, folder, *options):
    if name_of(page) in NEEDS:
        package, extra = NEEDS[name_of(page)]
        pytest.importorskip(package, reason=f"install the extra '{extra}'")
    command = [sys.executable, str(ROOT / "tests/documents.py"), str(page), *options]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def is_slow(page):
    return name_of(page) in SLOW or any(block.mark == "slow" for block in blocks_of(page))


@pytest.mark.parametrize("page", [page for page in WITH_CODE if name_of(page) not in SLOW], ids=name_of)
def test_every_block_of_a_page_runs(page, environment, tmp_path):
    run_page(page, environment, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", [page for page in WITH_CODE if is_slow(page)], ids=name_of)
def test_every_block_of_a_page_runs_slow_ones_too(page, environment, tmp_path):
    run_page(page, environment, tmp_path, "--slow")


def test_few_blocks_are_left_out_and_the_list_is_known():
    counts = {name_of(page): sum(block.mark == "not run" for block in blocks_of(page)) for page in pages()}
    assert {name: count for name, count in counts.items() if count} == NOT_RUN
    assert {block.mark for page in pages() for block in blocks_of(page)} <= {"", "slow", "not run"}


def test_make_targets_that_pages_name_exist():
    targets = (ROOT / "Makefile").read_text()
    commands = [block.code for page in pages() for block in blocks_of(page) if block.kind == "shell"]
    named = set(re.findall(r"^make ([a-z-]+)", "\n".join(commands), re.M))
    named |= {target for page in pages() for target in re.findall(r"`make ([a-z-]+)`", page.read_text())}
    assert {"demo", "docs", "test"} <= named
    for target in named:
        assert f"\n{target}:" in targets, target


def test_a_page_is_read_with_its_marks_and_its_output(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nx = 1\n```\n\n<!-- slow: why -->\n```sh\nnf a\n```\n\n```\nnf b\n```\n\n```text\n3 things\n```\n\n"
        "Words.\n\n```text\na tree\n```\n\n```{toctree}\nhidden\n```\n"
    )
    assert blocks_of(page) == [
        Block(2, "python", "x = 1\n", ""),
        Block(7, "shell", "nf a\n", "slow"),
        Block(11, "shell", "nf b\n", "", "3 things\n"),
    ]
    page.write_text("```rust\nfn\n```\n")
    with pytest.raises(ValueError, match="Expected python, sh or text in page.md, but got 'rust'"):
        blocks_of(page)


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("```python\n1 / 0\n```\n", "ZeroDivisionError"),
        ("```sh\nfalse\ntrue\n```\n", "returned non-zero exit status"),
        ("```python\nprint('4 apples')\n```\n\n```text\n5 pears\n```\n", "expected\n5 pears"),
    ],
)
def test_a_page_that_does_not_do_what_it_says_fails(tmp_path, code, complaint):
    (tmp_path / "page.md").write_text(code)
    command = [sys.executable, str(ROOT / "tests/documents.py"), "page.md"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode != 0
    assert complaint in result.stderr


def resolve(dotted):
    """The object of a dotted name, importing as far as needed."""
    first, *rest = dotted.split(".")
    value = importlib.import_module(first)
    for name in rest:
        value = getattr(value, name) if hasattr(value, name) else importlib.import_module(f"{value.__name__}.{name}")
    return value


def test_names_of_the_peers_page_exist_on_both_sides():
    pytest.importorskip("nfn", reason="install the extra 'peers'")
    text = (ROOT / "docs/coming_from.md").read_text()
    theirs = set(re.findall(r"`(nfn\.[\w.]+)", text))
    assert len(theirs) > 20
    for name in theirs:
        assert resolve(name)
    for name in {name for page in pages() for name in re.findall(r"`nf\.([\w.]+)", page.read_text())}:
        assert resolve(f"{nf.__name__}.{name.rstrip('.')}") is not None
