"""What the README and the examples show must run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]


def run(code, *arguments, cwd):
    result = subprocess.run([sys.executable, *code, *arguments], capture_output=True, text=True, cwd=cwd, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_readmes_code_runs(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert blocks
    for block in blocks:
        assert len([line for line in block.splitlines() if line.strip()]) <= 14
        output = run(["-c"], block, cwd=tmp_path)
        assert float(re.search(r"tensor\(([^,)]*)", output)[1]) < 1e-5


def test_the_readmes_links_and_commands_exist():
    text = (ROOT / "README.md").read_text()
    for link in re.findall(r"\]\(((?!http)[^)#]+)\)", text):
        assert (ROOT / link).is_file(), link
    targets = (ROOT / "Makefile").read_text()
    for command in re.findall(r"^make (\w+)", text, re.M):
        assert f"\n{command}:" in targets


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_run(path, tmp_path):
    assert len(path.read_text().splitlines()) <= 80
    assert run([str(path)], cwd=tmp_path)


@pytest.mark.parametrize("guide", ["fitting", "training", "zoo", "latents"])
def test_guides_code_runs_after_its_commands(tmp_path, guide):
    """A guide from its first command to its last line of Python."""
    text = (ROOT / f"docs/guide/{guide}.md").read_text()
    (commands,) = re.findall(r"```\n(nf .*?)```", text, re.S)
    for command in commands.splitlines():
        run(["-m", "neuralfunctionals.cli"], *command.split()[1:], cwd=tmp_path)
    run(["-c"], "\n".join(re.findall(r"```python\n(.*?)```", text, re.S)), cwd=tmp_path)


def test_the_guide_to_sine_symmetries_runs(tmp_path):
    text = (ROOT / "docs/guide/sine_symmetry.md").read_text()
    run(["-c"], "\n".join(re.findall(r"```python\n(.*?)```", text, re.S)), cwd=tmp_path)
    for link in re.findall(r"\]\(((?!http)[^)#]+)\)", text):
        assert (ROOT / "docs/guide" / link).is_file(), link


def test_sine_twins_share_picture_and_canonical_form(tmp_path):
    lines = run([str(ROOT / "examples/sine_twins.py")], cwd=tmp_path).splitlines()
    weights, pictures, forms = (float(line.rpartition(" ")[2]) for line in lines[:3])
    assert weights > 0.1
    assert max(pictures, forms) < 1e-4


def test_shuffling_changes_the_weights_but_neither_function_nor_answers(tmp_path):
    picture = tmp_path / "shuffled.png"
    lines = run([str(ROOT / "examples/shuffled_neurons.py"), "--picture", str(picture)], cwd=tmp_path).splitlines()
    changes = {line[:40].strip(): float(line.rpartition(" ")[2]) for line in lines if "largest change" in line}
    assert changes["the weights themselves"] > 1
    assert changes["what a plain linear reader answers"] > 0.1
    assert max(list(changes.values())[1:2] + list(changes.values())[3:]) < 1e-5
    assert picture.stat().st_size > 10_000


def test_citation_is_valid_yaml():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert citation["title"] == "neuralfunctionals"
