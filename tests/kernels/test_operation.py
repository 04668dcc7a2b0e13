"""What both forms of every operation must do alike: transforms, second gradients, many gradients at once, tracing."""

import pytest
import torch

from neuralfunctionals import NetworkSpec, WeightSpaceFeatures, kernels, native
from neuralfunctionals.layers import Block, NeuronStates
from operators import operators

pytestmark = pytest.mark.skipif(native.find_compiler() is None, reason="no C++ compiler here")

SPEC = NetworkSpec.mlp([2, 4, 3, 1])


def block():
    layer = Block(SPEC, 16, 32, 4)
    return layer, lambda x: layer(WeightSpaceFeatures(SPEC, x)).tensor.sum(1)


def states():
    layer = NeuronStates(SPEC, 16, 16, num_rounds=2, num_gates=4)
    return layer, lambda x: torch.cat(list(layer(WeightSpaceFeatures(SPEC, x)).neurons.values()), dim=1).sum(1)


@pytest.fixture(params=[block, states], ids=lambda make: make.__name__)
def case(request):
    layer, function = request.param()
    for p in layer.parameters():
        p.data += 0.1 * torch.randn_like(p)
    return layer, function, torch.randn(3, SPEC.num_entries, 16)


def assert_both_alike(compute, rtol=1e-3, atol=1e-3):
    found = compute()
    with kernels.use("plain"):
        expected = compute()
    for mine, plain in zip(found, expected, strict=True):
        assert (mine is None) == (plain is None)
        if mine is not None:
            torch.testing.assert_close(mine, plain, rtol=rtol, atol=atol * max(1, plain.abs().max().item()))


def test_values_and_gradients(case):
    layer, function, x = case
    x.requires_grad_()

    def compute():
        y = function(x)
        return [y, *torch.autograd.grad(y.sin().sum(), [x, *layer.parameters()])]

    with operators() as called:
        assert_both_alike(compute, rtol=1e-4, atol=1e-5)
    assert len(called) in (4, 8)


def test_second_gradients(case):
    layer, function, x = case
    x.requires_grad_()

    def compute():
        (gradient,) = torch.autograd.grad(function(x).sin().sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), [x, *layer.parameters()], allow_unused=True)

    assert_both_alike(compute)


def test_some_parameters_may_be_frozen(case):
    layer, function, x = case
    parameters = list(layer.parameters())
    for p in parameters[::2]:
        p.requires_grad_(False)
    assert_both_alike(lambda: torch.autograd.grad(function(x).sin().sum(), parameters[1::2]))


@pytest.mark.parametrize("batched", [True, False], ids=["is_grads_batched", "vmap"])
def test_many_gradients_at_once(case, batched):
    _, function, x = case
    x.requires_grad_()

    def compute():
        y = function(x)
        directions = torch.linspace(-1, 1, 2 * y.numel()).view(2, *y.shape)
        if batched:
            return torch.autograd.grad(y, x, directions, is_grads_batched=True)
        return [torch.vmap(lambda d: torch.autograd.grad(y, x, d, retain_graph=True)[0])(directions)]

    assert_both_alike(compute)


def test_transforms_take_the_plain_form(case):
    layer, function, x = case
    parameters = dict(layer.named_parameters())
    with operators() as called:
        each = torch.func.vmap(lambda one: function(one[None])[0])(x)
        jacobian = torch.func.jacrev(lambda t: function(t).sum(0))(x)
        tangent = torch.func.jvp(function, (x,), (torch.ones_like(x),))[1]
        gradients = torch.func.grad(
            lambda p: (
                torch.func.functional_call(layer, p, (WeightSpaceFeatures(SPEC, x),)).tensor.sum()
                if isinstance(layer, Block)
                else function(x).sum()
            )
        )(parameters)
    assert not called
    torch.testing.assert_close(each, function(x), rtol=1e-4, atol=1e-4)
    assert jacobian.isfinite().all()
    assert tangent.isfinite().all()
    assert len(gradients) == len(parameters)


def test_tensor_subclasses_take_the_plain_form(case):
    class Tagged(torch.Tensor):
        pass

    _, function, x = case
    with operators() as called:
        y = function(x.as_subclass(Tagged))
    assert "residual_attention" not in called
    torch.testing.assert_close(y.as_subclass(torch.Tensor), function(x), rtol=1e-4, atol=1e-4)
