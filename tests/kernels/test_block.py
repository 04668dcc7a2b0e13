import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.nn.utils import parametrizations

from neuralfunctionals import NetworkSpec, WeightSpaceFeatures, kernels, native
from neuralfunctionals.layers import Block
from operators import operators
from strategies import mlp_specs, network_specs

BOTH_WAYS = [
    "residual_attention",
    "residual_feed_forward",
    "residual_feed_forward_backward",
    "residual_attention_backward",
]
needs_compiler = pytest.mark.skipif(native.find_compiler() is None, reason="no C++ compiler here")


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
def test_many_tiles_and_uneven_threads():
    block, x = make(NetworkSpec.mlp([2, 20, 20, 1]), batch=7)
    with operators() as called:
        assert_equals_double(block, x)
    assert called == BOTH_WAYS


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
    both = [x.requires_grad_(), norm.scale, norm.shift]
    # What is kept for the backward pass is no result: its gradient is never asked for.
    checks = "test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"
    options = {"test_utils": checks, "rtol": 1e-4, "atol": 1e-4}
    called = torch.ops.neuralfunctionals
    torch.library.opcheck(
        called.residual_feed_forward, ([*both, *feed_forward.plain_parameters()], sizes, True), **options
    )
    tensors = [*both, *attention.plain_parameters(), *attention.vectors]
    torch.library.opcheck(called.residual_attention, (tensors, [4, 1, *sizes], True), **options)


@needs_compiler
@pytest.mark.slow
def test_a_compiled_graph_holds_them():
    block, x = make(NetworkSpec.mlp([2, 3, 1]))
    names = []

    def record(graph, inputs):
        names.extend(str(node.target) for node in graph.graph.nodes if "neuralfunctionals" in str(node.target))
        return graph

    block.compile(fullgraph=True, backend=record)
    block(WeightSpaceFeatures(block.spec, x))
    assert names == [
        "neuralfunctionals.residual_attention.default",
        "neuralfunctionals.residual_feed_forward.default",
    ]


@needs_compiler
@pytest.mark.slow
def test_a_compiled_graph_computes_the_same():
    block, x = make(NetworkSpec.mlp([2, 3, 1]))
    expected = results(block, x)
    block.compile(fullgraph=True)
    for mine, plain in zip(results(block, x), expected, strict=True):
        torch.testing.assert_close(mine, plain)


class OtherLinear(torch.nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def hook(get):
    return lambda block: get(block).register_forward_hook(lambda *_: None)


CHANGES = {
    "hook on the attention": (hook(lambda b: b.attention), "attention"),
    "hook on the projection": (hook(lambda b: b.attention.to_qkv.shared), "attention"),
    "hook on the norm": (hook(lambda b: b.attention_norm), "attention"),
    "hook on a layer inside": (hook(lambda b: b.feed_forward.mlps[1][3]), "feed_forward"),
    "hook on the GELU": (hook(lambda b: b.feed_forward.mlps[0][1]), "feed_forward"),
    "full backward hook": (
        lambda b: b.feed_forward.mlps[0].register_full_backward_hook(lambda *_: None),
        "feed_forward",
    ),
    "parametrization": (lambda b: parametrizations.weight_norm(b.attention.to_qkv.shared), "attention"),
    "another parametrization": (lambda b: parametrizations.spectral_norm(b.feed_forward.mlps[0][0]), "feed_forward"),
    "subclass of a layer": (lambda b: b.feed_forward.mlps[2].__setitem__(0, OtherLinear(16, 32)), "feed_forward"),
    "another activation": (lambda b: b.feed_forward.mlps[0].__setitem__(1, torch.nn.ReLU()), "feed_forward"),
    "GELU by tanh": (lambda b: setattr(b.feed_forward.mlps[0][1], "approximate", "tanh"), "feed_forward"),
    "no bias": (lambda b: setattr(b.feed_forward.mlps[0][0], "bias", None), "feed_forward"),
    "one layer more": (lambda b: b.feed_forward.mlps[0].append(torch.nn.ReLU()), "feed_forward"),
    "sums instead of means": (lambda b: setattr(b.attention, "reduction", "sum"), "attention"),
    "wrapped layer": (
        lambda b: setattr(b.attention.to_qkv, "shared", torch.nn.Sequential(b.attention.to_qkv.shared)),
        "attention",
    ),
}


@needs_compiler
@pytest.mark.parametrize("change", CHANGES)
def test_changed_modules_take_the_plain_form(change):
    block, x = make(NetworkSpec.mlp([2, 3, 1]))
    apply, half = CHANGES[change]
    apply(block)
    block.eval()  # a spectral norm changes its buffers while training
    features = WeightSpaceFeatures(block.spec, x)
    with operators() as called:
        y = block(features).tensor
    assert called == [f"residual_{other}" for other in ("attention", "feed_forward") if other != half]
    with kernels.use("plain"):
        torch.testing.assert_close(y, block(features).tensor, rtol=1e-4, atol=1e-5)


@needs_compiler
def test_hooks_for_all_modules_are_called():
    block, x = make(NetworkSpec.mlp([2, 3, 1]))
    seen = []
    handle = torch.nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(type(module).__name__))
    try:
        block(WeightSpaceFeatures(block.spec, x))
    finally:
        handle.remove()
    assert seen.count("Linear") == 8 + 2  # the projection reads the means of the groups too


@needs_compiler
def test_dropout_autocast_and_odd_channels_take_the_plain_form():
    spec = NetworkSpec.mlp([2, 3, 1])
    block, x = make(spec, dropout=0.5)
    with operators() as called:
        assert not torch.equal(results(block, x)[0], results(block, x)[0])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            results(*make(spec))
        results(*make(spec, channels=12))
        results(*make(spec, channels=24, num_heads=3))
        assert not called
        results(block.eval(), x)
    assert called == BOTH_WAYS


@needs_compiler
def test_an_empty_batch():
    block, x = make(NetworkSpec.mlp([2, 3, 1]), batch=0)
    with operators() as called:
        found = results(block, x)
    assert called == BOTH_WAYS
    assert found[0].shape == x.shape
    assert all((gradient == 0).all() for gradient in found[1:])
