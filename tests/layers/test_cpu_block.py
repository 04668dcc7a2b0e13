import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neuralfunctionals import NetworkSpec, WeightSpaceFeatures, native
from neuralfunctionals.layers import Block, cpu_block
from strategies import mlp_specs, network_specs

needs_compiler = pytest.mark.skipif(not cpu_block.is_available(), reason="no C++ compiler with OpenMP here")


@pytest.fixture(autouse=True)
def small_inputs_too():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_block, "_MANY_VALUES", 0)
        yield


@pytest.fixture
def calls(monkeypatch):
    """Counts the compiled functions that were called."""
    names = []
    call = cpu_block._call
    monkeypatch.setattr(cpu_block, "_call", lambda name, *arguments: (names.append(name), call(name, *arguments)))
    return names


def make(spec, channels=16, num_heads=4, batch=3, **options):
    block = Block(spec, channels, 2 * channels, num_heads, **options)
    for p in block.parameters():
        p.data += 0.1 * torch.randn_like(p)
    return block, torch.randn(batch, spec.num_entries, channels)


def results(block, x):
    """The output and all gradients of a sum of it."""
    x = x.clone().requires_grad_()
    y = block(WeightSpaceFeatures(block.spec, x)).tensor
    return [y.detach(), *torch.autograd.grad(y.sin().sum(), [x, *block.parameters()])]


def assert_equals_double(block, x):
    found = results(block, x)
    expected = results(block.double(), x.double())
    for mine, exact in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-4, atol=1e-5 * max(1, exact.abs().max().item()))


@needs_compiler
@settings(max_examples=40, deadline=None)
@given(
    spec=mlp_specs(max_layers=3, biases=st.booleans()),
    shape=st.sampled_from([(16, 1), (16, 4), (32, 4), (48, 2), (48, 4), (48, 16)]),
    batch=st.integers(1, 4),
    threads=st.sampled_from([1, 3]),
    mlp=st.sampled_from(["per_layer", "shared"]),
    global_term=st.sampled_from(["reduced", "none"]),
)
def test_equals_the_plain_form_in_double_precision(spec, shape, batch, threads, mlp, global_term):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert_equals_double(*make(spec, *shape, batch=batch, mlp=mlp, global_term=global_term))
    finally:
        torch.set_num_threads(before)


@needs_compiler
@settings(max_examples=20, deadline=None)
@given(spec=network_specs(), symmetry=st.sampled_from(["NP", "HNP"]), global_term=st.sampled_from(["reduced", "full"]))
def test_what_attention_cannot_take_passes_by_it(spec, symmetry, global_term):
    assert_equals_double(*make(spec, symmetry=symmetry, global_term=global_term))


@needs_compiler
def test_many_tiles_and_uneven_threads(calls):
    block, x = make(NetworkSpec.mlp([2, 20, 20, 1]), batch=7)
    assert_equals_double(block, x)
    assert calls == ["attention", "feed_forward", "feed_forward_backward", "attention_backward"]


@needs_compiler
def test_repeats_to_the_last_bit():
    block, x = make(NetworkSpec.mlp([2, 20, 20, 1]), batch=7)
    for first, second in zip(results(block, x), results(block, x), strict=True):
        assert torch.equal(first, second)


@needs_compiler
def test_sharp_attention_and_large_inputs_stay_exact():
    block, x = make(NetworkSpec.mlp([2, 3, 1]))
    block.attention.to_qkv.shared.weight.data *= 30
    block.feed_forward.mlps[0][0].weight.data *= 30
    features = WeightSpaceFeatures(block.spec, 1e3 * x)
    exact = block.double()(features.with_tensor(features.tensor.double())).tensor
    torch.testing.assert_close(block.float()(features).tensor.double(), exact, rtol=1e-4, atol=1e-3)


@needs_compiler
def test_nan_stays_in_its_network():
    block, x = make(NetworkSpec.mlp([2, 3, 1]))
    x[0, 0, 0] = float("nan")
    y = block(WeightSpaceFeatures(block.spec, x)).tensor
    assert y[0].isnan().any()
    assert y[1:].isfinite().all()


@needs_compiler
def test_the_operators_keep_the_rules_of_custom_operators():
    block, x = make(NetworkSpec.mlp([2, 3, 1]))
    norm, attention, feed_forward = block.attention_norm, block.attention, block.feed_forward
    sizes = [g.size for g in block.spec.groups]
    x = x.requires_grad_()
    operators, projection = torch.ops.neuralfunctionals, attention.to_qkv.shared
    arguments = x, norm.scale, norm.shift, list(feed_forward.mlps.parameters()), sizes
    torch.library.opcheck(operators.residual_feed_forward, arguments, rtol=1e-4, atol=1e-4)
    arguments = x, norm.scale, norm.shift, projection.weight, projection.bias, attention.vectors, sizes, 4, True
    torch.library.opcheck(operators.residual_attention, arguments, rtol=1e-4, atol=1e-4)


@needs_compiler
@pytest.mark.slow
def test_a_compiled_graph_holds_them(calls):
    block, x = make(NetworkSpec.mlp([2, 3, 1]))
    expected = results(block, x)
    block.compile(fullgraph=True)
    for mine, plain in zip(results(block, x), expected, strict=True):
        torch.testing.assert_close(mine, plain)
    assert len(calls) == 8


@needs_compiler
def test_hooks_dropout_autocast_and_odd_channels_take_the_plain_form(calls):
    spec = NetworkSpec.mlp([2, 3, 1])
    block, x = make(spec)
    seen = []
    block.attention.register_forward_hook(lambda *_: seen.append("attention"))
    block.feed_forward.register_forward_hook(lambda *_: seen.append("feed_forward"))
    results(block, x)
    assert seen == ["attention", "feed_forward"]
    block, x = make(spec, dropout=0.5)
    assert not torch.equal(results(block, x)[0], results(block, x)[0])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        results(*make(spec))
    results(*make(spec, channels=12))
    assert not calls
    results(block.eval(), x)
    assert len(calls) == 4


def test_without_a_compiler_the_results_are_the_same(monkeypatch, calls, tmp_path):
    block, x = make(NetworkSpec.mlp([2, 3, 1]))
    expected = results(block, x)
    calls.clear()
    monkeypatch.setenv("NF_CACHE", str(tmp_path))  # a library in the cache would be used
    monkeypatch.setattr(native, "find_compiler", lambda: None)
    cpu_block._library.cache_clear()
    native.load_library.cache_clear()
    try:
        for mine, compiled in zip(results(block, x), expected, strict=True):
            torch.testing.assert_close(mine, compiled, rtol=1e-4, atol=1e-4)
    finally:
        cpu_block._library.cache_clear()
        native.load_library.cache_clear()
    assert not calls
