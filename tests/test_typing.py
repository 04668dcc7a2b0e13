"""The public names have types that hold in a project of someone else, under pyright's strict rules."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import neuralfunctionals as nf

PROJECT = """
from pathlib import Path

import torch
import neuralfunctionals as nf
from neuralfunctionals.inr import Siren


def summarize(files: list[Path]) -> list[str]:
    classify = nf.pipeline("digits-classify")
    return [f"{file}: {classify(file)}" for file in files]


def shuffled(modules: list[Siren]) -> nf.WeightSpaceFeatures:
    features = nf.WeightSpaceFeatures.from_modules(modules)
    spec: nf.NetworkSpec = features.spec
    permutation = nf.NeuronPermutation.random(spec, generator=torch.Generator().manual_seed(0))
    return nf.cat([features, permutation(features)]) * 2.0


def count(features: nf.WeightSpaceFeatures) -> int:
    names: list[str] = nf.list_pretrained()
    return len(features) + features.spec.num_entries + len(names)


print(count(shuffled([Siren()])), summarize([]))
"""
WRONG = "import neuralfunctionals as nf\n\nnames: list[int] = nf.list_pretrained()\nnf.cat(3)\n"


def check(folder, code):
    (folder / "project.py").write_text(code)
    source = Path(nf.__file__).parent.parent
    config = {"typeCheckingMode": "strict", "extraPaths": [str(source)], "pythonVersion": "3.11"}
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    words = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "project.py"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    return [
        f"{found['range']['start']['line'] + 1}: {found['message']}"
        for found in json.loads(done.stdout)["generalDiagnostics"]
    ]


def test_the_package_says_that_it_is_typed():
    assert (Path(nf.__file__).parent / "py.typed").is_file()


@pytest.mark.slow
def test_a_users_project_passes_strict_checks(tmp_path):
    pytest.importorskip("pyright")
    assert check(tmp_path, PROJECT) == []


@pytest.mark.slow
def test_wrong_uses_are_noticed(tmp_path):
    pytest.importorskip("pyright")
    assert {line.partition(":")[0] for line in check(tmp_path, WRONG)} == {"3", "4"}
