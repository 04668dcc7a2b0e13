"""Which form runs, and when libraries are built."""

import os
import warnings

import pytest
import torch

from commands import run
from neuralfunctionals import NetworkSpec, WeightSpaceFeatures, kernels, native
from neuralfunctionals.layers import Block, NeuronStates
from operators import operators

needs_compiler = pytest.mark.skipif(native.find_compiler() is None, reason="no C++ compiler here")

SPEC = NetworkSpec.mlp([2, 4, 3, 1])


@pytest.fixture
def forget(monkeypatch):
    """A function after which nothing is loaded and no warning was given, as in a new process."""

    def reset():
        monkeypatch.setattr(kernels.choice, "_libraries", {})
        monkeypatch.setattr(kernels.choice, "_warned", set())

    reset()
    return reset


@pytest.fixture
def cache(forget, tmp_path, monkeypatch):
    """An empty cache."""
    monkeypatch.setenv("NF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


def compute(layer=None):
    """The operators of two forward passes, and the warnings; by default through a new layer."""
    with warnings.catch_warnings(record=True) as caught, operators() as called:
        warnings.simplefilter("always")
        layer = layer or NeuronStates(SPEC, 1, 16, num_rounds=2)
        for _ in range(2):
            layer(WeightSpaceFeatures(SPEC, torch.randn(2, SPEC.num_entries, 1)))
    return called, [str(w.message) for w in caught]


@needs_compiler
def test_the_first_use_compiles_and_says_so(cache, forget, monkeypatch, capsys):
    expected = ["neuron_update"] * 8, []
    assert compute() == expected
    assert capsys.readouterr().err == "neuralfunctionals: compiling neuron_update.cpp (once, about 10 s)\n"
    forget()
    assert compute() == expected
    # Without a compiler, a library that was built earlier is used.
    forget()
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert compute() == expected
    assert capsys.readouterr().err == ""


@needs_compiler
def test_forward_never_compiles(cache, capsys):
    with kernels.use("plain"):
        layer = NeuronStates(SPEC, 1, 16, num_rounds=2)
    called, said = compute(layer)
    assert not called
    assert said == ["Using plain PyTorch instead of neuron_update.cpp, which is not built. Run 'nf build' once."]
    assert capsys.readouterr().err == ""


def test_plain_is_silent(cache, monkeypatch, capsys):
    monkeypatch.setenv("NF_KERNELS", "plain")
    assert compute() == ([], [])
    assert capsys.readouterr().err == ""
    assert not cache.exists()


def test_without_a_compiler_one_warning_says_so(cache, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    called, (said,) = compute()
    assert not called
    assert "there is no C++ compiler. Install g++ or clang++, or set CXX" in said


@pytest.mark.skipif(os.name != "posix", reason="the compiler is a shell script")
def test_a_failed_build_warns_once_says_why_and_is_not_repeated(cache, tmp_path, monkeypatch):
    compiler, log = tmp_path / "c++", tmp_path / "log"
    compiler.write_text(
        f'#!/bin/sh\necho "$1" >> {log}\n[ "$1" = --version ] && exit 0\n'
        'echo "x.cpp:1: error: no such luck" >&2\nexit 1\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    called, (said,) = compute()
    assert not called
    assert "cannot build neuron_update.cpp: x.cpp:1: error: no such luck" in said
    calls = log.read_text()
    assert compute() == ([], [])
    assert log.read_text() == calls
    kernels.build(["neuron_update"])  # only a request tries again
    assert log.read_text() == 2 * calls


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
def test_nf_build_compiles_everything_ahead(forget, capsys):
    cache = native.cache_directory() / "kernels"
    code, result, err = run(capsys, "build", "--json")
    assert (code, result) == (0, {"built": dict.fromkeys(kernels.KERNELS, True), "cache": str(cache)}), err
    assert {file.name.partition("-")[0] for file in cache.glob("*.so")} == set(kernels.KERNELS)
