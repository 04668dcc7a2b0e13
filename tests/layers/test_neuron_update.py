import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neuralfunctionals import NetworkSpec, native
from neuralfunctionals.layers import NeuronStates, cpu_block, neuron_update
from neuralfunctionals.layers.neuron_update import neuron_update as update
from neuralfunctionals.testing import random_features

needs_compiler = pytest.mark.skipif(neuron_update._library() is None, reason="no C++ compiler with OpenMP here")


@pytest.fixture(autouse=True)
def small_inputs_too():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_block, "_MANY_VALUES", 0)
        yield


@pytest.fixture
def calls(monkeypatch):
    """Counts the compiled functions that were called."""
    names = []
    call = neuron_update._call
    monkeypatch.setattr(neuron_update, "_call", lambda name, *arguments: (names.append(name), call(name, *arguments)))
    return names


def make(batch=3, neurons=4, behind=(5, 3), channels=16, hidden=32, num_gates=1, dtype=torch.float32):
    """State, gates, neighbours and parameters, in one list."""
    seen = channels * (1 + 2 * len(behind))
    shapes = [(batch, neurons, channels)]
    shapes += [(batch, num_gates, 2 * neurons, m) for m in behind] + [(batch, m, channels) for m in behind]
    shapes += [(seen,), (seen,), (hidden, seen), (hidden,), (channels, hidden), (channels,)]
    return [torch.randn(shape, dtype=dtype) / shape[-1] ** 0.25 for shape in shapes]


def apply(tensors):
    k = (len(tensors) - 7) // 2
    return update(tensors[0], tensors[1 : k + 1], tensors[k + 1 : 2 * k + 1], *tensors[2 * k + 1 :])


def results(tensors):
    """The output and all gradients of a sum of it."""
    tensors = [t.detach().requires_grad_() for t in tensors]
    y = apply(tensors)
    return [y.detach(), *torch.autograd.grad(y.sin().sum(), tensors)]


def assert_equals_double(tensors):
    expected = results([t.double() for t in tensors])
    for mine, exact in zip(results(tensors), expected, strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-4, atol=1e-5 * max(1, exact.abs().max().item()))


@needs_compiler
@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(1, 9),
    neurons=st.sampled_from([1, 2, 5, 16, 33, 100]),
    behind=st.lists(st.sampled_from([1, 3, 16, 21, 32]), max_size=2),
    channels=st.sampled_from([16, 48, 64]),
    hidden=st.sampled_from([16, 96]),
    num_gates=st.sampled_from([1, 2, 4, 8]),
    threads=st.sampled_from([1, 3]),
)
def test_equals_the_plain_form_in_double_precision(batch, neurons, behind, channels, hidden, num_gates, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert_equals_double(make(batch, neurons, behind, channels, hidden, num_gates))
    finally:
        torch.set_num_threads(before)


@needs_compiler
def test_the_compiled_form_runs_once_each_way(calls):
    assert_equals_double(make(batch=50, neurons=32, behind=(32, 32), channels=64, hidden=128))
    assert calls == ["neuron_update", "neuron_update_backward"]
    tensors = make()
    with torch.no_grad():
        y = apply(tensors)
    torch.testing.assert_close(y, results(tensors)[0])


@needs_compiler
def test_non_contiguous_inputs_and_gradients(calls):
    plain = make()
    other = [t.mT.contiguous().mT if t.dim() > 1 else torch.stack([t, t], 1)[:, 0] for t in plain]
    assert not any(t.is_contiguous() for t in other)
    for mine, expected in zip(results(other), results(plain), strict=True):
        torch.testing.assert_close(mine, expected)
    tensors = [t.requires_grad_() for t in make()]
    gradient = torch.randn_like(tensors[0])
    first = torch.autograd.grad(apply(tensors), tensors, gradient)
    second = torch.autograd.grad(apply(tensors), tensors, gradient.mT.contiguous().mT)
    assert all(map(torch.equal, first, second))
    assert len(calls) == 8


@needs_compiler
def test_repeats_to_the_last_bit():
    tensors = make(batch=50, neurons=20)
    assert all(map(torch.equal, results(tensors), results(tensors)))


@needs_compiler
def test_the_number_of_threads_may_change_before_the_backward_pass():
    before = torch.get_num_threads()
    tensors = [t.requires_grad_() for t in make(batch=50, neurons=20)]
    expected = torch.autograd.grad(apply(tensors).sum(), tensors)
    try:
        torch.set_num_threads(1)
        y = apply(tensors).sum()
        torch.set_num_threads(3)
        found = torch.autograd.grad(y, tensors)
    finally:
        torch.set_num_threads(before)
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5 * max(1, other.abs().max().item()))


@needs_compiler
def test_nan_stays_in_its_network():
    tensors = make()
    tensors[0][1, 0, 0] = float("nan")
    y = apply(tensors)
    assert y[1].isnan().any()
    assert y[[0, 2]].isfinite().all()


@needs_compiler
@pytest.mark.parametrize("behind", [(), (5,), (5, 3)])
def test_the_operator_keeps_the_rules_of_custom_operators(behind):
    tensors = [t.requires_grad_() for t in make(behind=behind)]
    k = len(behind)
    arguments = tensors[0], tensors[1 : k + 1], tensors[k + 1 : 2 * k + 1], tensors[2 * k + 1 :], True
    # What is kept for the backward pass is no result: its gradient is never asked for.
    checks = "test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"
    torch.library.opcheck(torch.ops.neuralfunctionals.neuron_update, arguments, test_utils=checks, rtol=1e-4, atol=1e-4)


@needs_compiler
def test_can_be_differentiated_twice(calls):
    def penalty(tensors):
        tensors = [t.detach().requires_grad_() for t in tensors]
        (gradient,) = torch.autograd.grad(apply(tensors).sin().sum(), tensors[0], create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), tensors, allow_unused=True)

    tensors = make()
    expected = penalty([t.double() for t in tensors])
    assert not calls
    for mine, exact in zip(penalty(tensors), expected, strict=True):
        assert (mine is None) == (exact is None)
        if exact is not None:
            torch.testing.assert_close(mine.double(), exact, rtol=1e-3, atol=1e-4 * max(1, exact.abs().max().item()))
    assert calls == ["neuron_update", "neuron_update_backward"]


@pytest.mark.parametrize("num_gates", [1, 2])
def test_gradients_of_the_plain_form(num_gates):
    tensors = make(2, 2, (3,), 2, 3, num_gates, torch.float64)
    tensors = [t.requires_grad_() for t in tensors]
    assert torch.autograd.gradcheck(lambda *t: apply(t), tensors)
    assert torch.autograd.gradgradcheck(lambda *t: apply(t), tensors)


@needs_compiler
def test_odd_channels_autocast_and_transforms_take_the_plain_form(calls):
    results(make(channels=12))
    results(make(hidden=20))
    tensors = make()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        results(tensors)
    one_by_one = torch.stack([apply([t[b : b + 1] for t in tensors[:5]] + tensors[5:])[0] for b in range(3)])
    calls.clear()
    each = torch.vmap(lambda *t: apply([x[None] for x in t] + tensors[5:])[0])(*tensors[:5])
    torch.testing.assert_close(each, one_by_one, rtol=1e-4, atol=1e-5)
    with torch.autograd.forward_ad.dual_level():
        state = torch.autograd.forward_ad.make_dual(tensors[0], torch.ones_like(tensors[0]))
        assert torch.autograd.forward_ad.unpack_dual(apply([state, *tensors[1:]])).tangent is not None
    assert not calls


@needs_compiler
def test_states_of_neurons_use_it(calls):
    layer = NeuronStates(NetworkSpec.mlp([2, 5, 3, 1]), 16, 16, num_rounds=2, num_gates=4)
    features = random_features(layer.spec, 16, dtype=torch.float32)
    mine = layer(features).neurons
    assert calls == ["neuron_update"] * 4
    exact = layer.double()(features.with_tensor(features.tensor.double())).neurons
    for i, h in mine.items():
        torch.testing.assert_close(h.double(), exact[i], rtol=1e-4, atol=1e-5)


def test_without_a_compiler_the_results_are_the_same(monkeypatch, calls):
    tensors = make()
    expected = results(tensors)
    calls.clear()
    monkeypatch.setattr(native, "find_compiler", lambda: None)
    neuron_update._library.cache_clear()
    native.load_library.cache_clear()
    try:
        for mine, compiled in zip(results(tensors), expected, strict=True):
            torch.testing.assert_close(mine, compiled, rtol=1e-4, atol=1e-4)
    finally:
        neuron_update._library.cache_clear()
        native.load_library.cache_clear()
    assert not calls
