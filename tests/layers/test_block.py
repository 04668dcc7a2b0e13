import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neuralfunctionals import NetworkSpec
from neuralfunctionals.layers import Block, FeedForward, cpu_kernels
from neuralfunctionals.testing import random_features
from strategies import network_specs


def gradients(layer, features, compute):
    x = features.tensor.clone().requires_grad_()
    output = compute(layer, x)
    return [output.detach(), *torch.autograd.grad(output.sin().sum(), [x, *layer.parameters()])]


def plainly(layer, x):
    return torch.cat([mlp(part) for mlp, part in zip(layer.mlps, x.split(layer.sizes, dim=1), strict=True)], dim=1)


@settings(max_examples=30)
@given(spec=network_specs(), mlp=st.sampled_from(["per_layer", "shared"]), many_rows=st.sampled_from([1, 4, 256]))
def test_the_cpu_order_equals_the_plain_form_with_its_gradients(spec, mlp, many_rows):
    layer = FeedForward(spec, 3, 5, mlp=mlp).double()
    features = random_features(spec, 3, batch=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_kernels, "_MANY_ROWS", many_rows)  # both ways of taking the rows
        result = gradients(layer, features, lambda f, x: f(features.with_tensor(x)).tensor)
    for mine, plain in zip(result, gradients(layer, features, plainly), strict=True):
        torch.testing.assert_close(mine, plain, rtol=0, atol=1e-10)


def test_the_cpu_operators_keep_the_rules_of_custom_operators():
    x = torch.randn(2, 7, 3, dtype=torch.float64, requires_grad=True)
    shapes = [(4, 3), (4,), (3, 4), (3,)] * 2
    parameters = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    mask = torch.rand(14, 4, dtype=torch.float64)
    torch.library.opcheck(torch.ops.neuralfunctionals.feed_forward, (x, [5, 2], parameters, mask))
    torch.autograd.gradcheck(lambda x, *p: cpu_kernels.feed_forward(x, [5, 2], list(p)), (x, *parameters))


def test_block_is_attention_and_feed_forward_with_residuals():
    spec = NetworkSpec.mlp([2, 3, 1])
    block = Block(spec, 4, 6, 2).double()
    x = random_features(spec, 4)
    z = x + block.attention(block.attention_norm(x))
    expected = z + block.feed_forward(block.feed_forward_norm(z))
    torch.testing.assert_close(block(x).tensor, expected.tensor)


def test_dropout_acts_in_training_only():
    spec = NetworkSpec.mlp([2, 3, 1])
    layer = FeedForward(spec, 4, 6, dropout=0.5).double()
    x = random_features(spec, 4)
    assert not torch.equal(layer(x).tensor, layer(x).tensor)
    layer.eval()
    torch.testing.assert_close(layer(x).tensor, plainly(layer, x.tensor))
