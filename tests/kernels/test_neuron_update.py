import pytest
import torch
from hypothesis import given, settings, strategies as st

from neuralfunctionals import NetworkSpec, kernels, native
from neuralfunctionals.layers import NeuronStates
from neuralfunctionals.testing import random_features
from operators import operators

BOTH_WAYS = ["neuron_update", "neuron_update_backward"]
needs_compiler = pytest.mark.skipif(native.find_compiler() is None, reason="no C++ compiler here")


@pytest.fixture(scope="module", autouse=True)
def _built(_own_cache):
    if native.find_compiler() is not None:
        kernels.build(["neuron_update"])


def make(batch=3, neurons=4, behind=(5, 3), channels=16, hidden=32, num_gates=1, dtype=torch.float32):
    """State, gates, neighbours and parameters, in one list."""
    seen = channels * (1 + 2 * len(behind))
    shapes = [(batch, neurons, channels)]
    shapes += [(batch, num_gates, 2 * neurons, m) for m in behind] + [(batch, m, channels) for m in behind]
    shapes += [(seen,), (seen,), (hidden, seen), (hidden,), (channels, hidden), (channels,)]
    return [torch.randn(shape, dtype=dtype) / shape[-1] ** 0.25 for shape in shapes]


def apply(tensors):
    k = (len(tensors) - 7) // 2
    return kernels.neuron_update(tensors[0], tensors[1 : k + 1], tensors[k + 1 : 2 * k + 1], tensors[2 * k + 1 :])


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
def test_the_compiled_form_runs_once_each_way():
    with operators() as called:
        assert_equals_double(make(batch=50, neurons=32, behind=(32, 32), channels=64, hidden=128))
    assert called == BOTH_WAYS
    tensors = make()
    with torch.no_grad():
        y = apply(tensors)
    torch.testing.assert_close(y, results(tensors)[0])


@needs_compiler
def test_non_contiguous_inputs_and_gradients():
    plain = make()
    other = [t.mT.contiguous().mT if t.dim() > 1 else torch.stack([t, t], 1)[:, 0] for t in plain]
    assert not any(t.is_contiguous() for t in other)
    for mine, expected in zip(results(other), results(plain), strict=True):
        torch.testing.assert_close(mine, expected)
    tensors = [t.requires_grad_() for t in make()]
    gradient = torch.randn_like(tensors[0])
    with operators() as called:
        first = torch.autograd.grad(apply(tensors), tensors, gradient)
        second = torch.autograd.grad(apply(tensors), tensors, gradient.mT.contiguous().mT)
    assert all(map(torch.equal, first, second))
    assert called == 2 * BOTH_WAYS


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
    arguments = tensors, [len(behind)], True
    # What is kept for the backward pass is no result: it has gaps with any values, and no gradient.
    checks = "test_schema", "test_autograd_registration", "test_faketensor"
    torch.library.opcheck(torch.ops.neuralfunctionals.neuron_update, arguments, test_utils=checks, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("num_gates", [1, 2])
def test_gradients_of_the_plain_form(num_gates):
    tensors = make(2, 2, (3,), 2, 3, num_gates, torch.float64)
    tensors = [t.requires_grad_() for t in tensors]
    assert torch.autograd.gradcheck(lambda *t: apply(t), tensors)
    assert torch.autograd.gradgradcheck(lambda *t: apply(t), tensors)


@needs_compiler
def test_odd_channels_autocast_and_wrong_shapes_take_the_plain_form():
    with operators() as called:
        results(make(channels=12))
        results(make(hidden=20))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            results(make())
        tensors = make()
        tensors[-1] = torch.zeros(1)  # a bias that PyTorch broadcasts
        results(tensors)
        tensors[-1] = torch.zeros(17)
        with pytest.raises(RuntimeError, match="17"):
            apply(tensors)
    assert not called


@needs_compiler
def test_states_of_neurons_use_it_unless_their_modules_are_changed():
    layer = NeuronStates(NetworkSpec.mlp([2, 5, 3, 1]), 16, 16, num_rounds=2, num_gates=4)
    features = random_features(layer.spec, 16, dtype=torch.float32)
    with operators() as called:
        mine = layer(features).neurons
    assert called == ["neuron_update"] * 4
    seen = []
    layer.rounds[0].updates["1"][1].register_forward_hook(lambda *_: seen.append(1))
    with operators() as called:
        hooked = layer(features).neurons
    assert called == ["neuron_update"] * 3
    assert seen == [1]
    exact = layer.double()(features.with_tensor(features.tensor.double())).neurons
    for i, h in mine.items():
        torch.testing.assert_close(h.double(), exact[i], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(hooked[i], h, rtol=1e-4, atol=1e-5)
