import torch

from neuralfunctionals import NetworkSpec
from neuralfunctionals.layers import Block, FeedForward
from neuralfunctionals.testing import random_features


def plainly(layer, x):
    return torch.cat([mlp(part) for mlp, part in zip(layer.mlps, x.split(layer.sizes, dim=1), strict=True)], dim=1)


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
