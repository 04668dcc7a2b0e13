"""Which form runs, and when libraries are built. Cases that build are processes with caches of their own."""

import json
import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from neuralfunctionals import NetworkSpec, WeightSpaceFeatures, kernels, native
from neuralfunctionals.layers import Block, NeuronStates
from operators import operators

needs_compiler = pytest.mark.skipif(native.find_compiler() is None, reason="no C++ compiler here")

SPEC = NetworkSpec.mlp([2, 4, 3, 1])
RUN = """
import pickle, sys, torch, warnings
warnings.simplefilter("always")
from neuralfunctionals.layers import NeuronStates
from neuralfunctionals.weight_space import NetworkSpec, WeightSpaceFeatures
from operators import operators
torch.manual_seed(0)
spec = NetworkSpec.mlp([2, 4, 3, 1])
layer = pickle.load(open(sys.argv[1], "rb")) if sys.argv[1:] else NeuronStates(spec, 1, 16, num_rounds=2)
with operators() as called:
    layer(WeightSpaceFeatures(spec, torch.randn(2, spec.num_entries, 1)))
    layer(WeightSpaceFeatures(spec, torch.randn(2, spec.num_entries, 1)))
print(*called)
"""


def run(cache, *arguments, **environment):
    """The operators that ran in a new process, and what it said on standard error."""
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    values = {**os.environ, "PYTHONPATH": path, "NF_CACHE": str(cache), **environment}
    result = subprocess.run([sys.executable, "-c", RUN, *arguments], capture_output=True, text=True, env=values)
    assert result.returncode == 0, result.stderr
    return result.stdout.split(), result.stderr


@needs_compiler
def test_the_first_use_compiles_and_says_so(tmp_path):
    called, said = run(tmp_path)
    assert called == ["neuron_update"] * 8
    assert said == "neuralfunctionals: compiling neuron_update.cpp (once, about 10 s)\n"
    assert run(tmp_path) == (called, "")
    # Without a compiler, a library built before is used.
    assert run(tmp_path, CXX="no-such-compiler") == (called, "")


@needs_compiler
def test_forward_never_compiles(tmp_path):
    file = tmp_path / "layer.pickle"
    file.write_bytes(pickle.dumps(NeuronStates(SPEC, 1, 16, num_rounds=2)))
    called, said = run(tmp_path, str(file))
    assert not called
    assert said.count("neuron_update.cpp, which is not built. Run 'nf build' once.") == 1


def test_plain_is_silent(tmp_path):
    assert run(tmp_path, NF_KERNELS="plain") == ([], "")
    assert not list(tmp_path.iterdir())


def test_without_a_compiler_one_warning_says_so(tmp_path):
    called, said = run(tmp_path, CXX="no-such-compiler")
    assert not called
    assert said.count("there is no C++ compiler. Install g++ or clang++, or set CXX") == 1


@pytest.mark.skipif(os.name != "posix", reason="the compiler is a shell script")
def test_a_failed_build_warns_once_and_says_why(tmp_path):
    compiler = tmp_path / "c++"
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] && exit 0\necho "x.cpp:1: error: no such luck" >&2\nexit 1\n')
    compiler.chmod(0o755)
    called, said = run(tmp_path, CXX=str(compiler))
    assert not called
    assert said.count("cannot build neuron_update.cpp: x.cpp:1: error: no such luck") == 1


@needs_compiler
def test_use_chooses_the_form(monkeypatch):
    block = Block(SPEC, 16, 32, 4)
    features = WeightSpaceFeatures(SPEC, torch.randn(2, SPEC.num_entries, 16))
    monkeypatch.setenv("NF_KERNELS", "plain")
    with operators() as called:
        block(features)
        with kernels.use("auto"), kernels.use("plain"):
            block(features)
        assert not called
        with kernels.use("auto"):
            block(features)
    assert called == ["residual_attention", "residual_feed_forward"]


@needs_compiler
def test_compiled_says_why_it_is_not(monkeypatch):
    monkeypatch.setattr(kernels.choice, "_warned", set())
    features = WeightSpaceFeatures(SPEC, torch.randn(2, SPEC.num_entries, 16))
    block = Block(SPEC, 16, 32, 4, symmetry="HNP")
    with kernels.use("compiled"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        block(features)
        block(features)
        block.double()(features.with_tensor(features.tensor.double()))
    assert [str(w.message).partition(": ")[::2] for w in caught] == [
        (
            "Using the plain form of residual_attention",
            "its modules have hooks, dropout, parametrizations, other classes or unsupported options.",
        ),
        ("Using the plain form of residual_feed_forward", "x is not a plain float32 tensor on the CPU."),
    ]


def test_wrong_forms_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="Expected kernels 'auto', 'plain' or 'compiled', but got 'fast'"):
        kernels.use("fast").__enter__()  # pyright: ignore
    monkeypatch.setenv("NF_KERNELS", "fast")
    with pytest.raises(ValueError, match="Expected NF_KERNELS to be auto, plain or compiled, but got 'fast'"):
        Block(SPEC, 16, 32, 4)


@needs_compiler
def test_nf_build_compiles_everything_ahead(tmp_path):
    command = [sys.executable, "-m", "neuralfunctionals.cli", "build", "--json"]
    values = {**os.environ, "NF_CACHE": str(tmp_path)}
    result = subprocess.run(command, capture_output=True, text=True, env=values, check=True)
    assert json.loads(result.stdout) == {
        "built": dict.fromkeys(kernels.KERNELS, True),
        "cache": str(tmp_path / "kernels"),
    }
    assert result.stderr.count("(once, about 10 s)") == len(kernels.KERNELS)
    assert run(tmp_path) == (["neuron_update"] * 8, "")
