"""What the README and the examples show must run."""

import re
import subprocess
import sys

import pytest
import yaml

from documents import FENCE, ROOT, pages


def run(code, *arguments, cwd):
    result = subprocess.run([sys.executable, *code, *arguments], capture_output=True, text=True, cwd=cwd, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_readmes_code_runs(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert blocks
    assert all(len([line for line in block.splitlines() if line.strip()]) <= 12 for block in blocks)
    output = run(["-c"], "\n".join(blocks), cwd=tmp_path)
    assert float(re.search(r"tensor\(([^,)]*)", output)[1]) < 1e-5


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_of_a_page_lead_to_files(page):
    for link in re.findall(r"\]\(((?!http)[^)#]+)\)", FENCE.sub("", page.read_text())):
        assert (page.parent / link).is_file(), link


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_run(path, tmp_path):
    assert len(path.read_text().splitlines()) <= 80
    assert run([str(path)], cwd=tmp_path)


def test_sine_twins_share_picture_and_canonical_form(tmp_path):
    lines = run([str(ROOT / "examples/sine_twins.py")], cwd=tmp_path).splitlines()
    weights, pictures, forms = (float(line.rpartition(" ")[2]) for line in lines[:3])
    assert weights > 0.1
    assert max(pictures, forms) < 1e-4


def test_shuffling_changes_the_weights_but_neither_function_nor_answers(tmp_path):
    picture = tmp_path / "shuffled.png"
    lines = run([str(ROOT / "examples/shuffled_neurons.py"), "--picture", str(picture)], cwd=tmp_path).splitlines()
    changes = {line[:40].strip(): float(line.rpartition(" ")[2]) for line in lines if "largest change" in line}
    assert changes["weights"] > 1
    assert changes["output of a linear model"] > 0.1
    assert max(list(changes.values())[1:2] + list(changes.values())[3:]) < 1e-5
    assert picture.stat().st_size > 10_000


def test_citation_is_valid_yaml():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert citation["title"] == "neuralfunctionals"
