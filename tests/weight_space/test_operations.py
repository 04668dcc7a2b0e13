"""Each operation between two layers: the neurons before it are found where they may permute, and only there."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from neuralfunctionals import NetworkSpec


class Dense(nn.Module):
    """An operation on 6 neurons at each of 4 positions, (2, 4, 6), behind a skip connection."""

    def __init__(self, operation):
        super().__init__()
        torch.manual_seed(0)
        self.operation = operation
        self.first, self.skip = nn.Linear(3, 6), nn.Linear(6, 6)
        self.last = nn.Linear(operation(torch.zeros(2, 4, 6)).shape[-1], 2)

    def forward(self, x):
        x = self.first(x)
        return self.last(self.operation(x + self.skip(x)))


class Convolutional(nn.Module):
    """An operation on 6 channels of 8 x 8 pixels, behind a skip connection."""

    def __init__(self, operation):
        super().__init__()
        torch.manual_seed(0)
        self.operation = operation
        self.first, self.skip, self.last = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(6, 6, 1), nn.LazyConv2d(3, 1)
        self.last(operation(torch.zeros(2, 6, 8, 8)))

    def forward(self, x):
        x = self.first(x)
        return self.last(self.operation(x + self.skip(x))).relu().mean((2, 3))


def hidden(module, *shape):
    spec = NetworkSpec.from_module(module, torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    return [axis.size for axis in spec.axes if axis.role == "hidden"]


KEEPS = {
    "softmax over positions": lambda x: x.softmax(1),
    "softmax over neurons": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(1),
    "sum over positions": lambda x: x.sum(1),
    "mean over positions, kept": lambda x: x - x.mean(1, keepdim=True),
    "mean over neurons": lambda x: x - x.mean(-1, keepdim=True),
    "variance over neurons": lambda x: x / (1 + x.var(-1, keepdim=True)),
    "standard deviation": lambda x: x / (1 + x.std(1, keepdim=True)),
    "largest over positions": lambda x: x.amax(1),
    "largest over neurons": lambda x: x - x.amax(-1, keepdim=True),
    "smallest": lambda x: x.amin(1),
    "product": lambda x: x.prod(1),
    "norm": lambda x: x / (1 + x.norm(dim=-1, keepdim=True)),
    "logsumexp": lambda x: x - x.logsumexp(-1, keepdim=True),
    "cumulative sum over positions": lambda x: x.cumsum(1),
    "positions reversed": lambda x: x.flip(1),
    "positions rolled": lambda x: x.roll(1, 1),
    "positions chosen": lambda x: x[:, torch.tensor([0, 2])],
    "first position": lambda x: x[:, 0],
    "last positions": lambda x: x[:, 2:],
    "positions joined": lambda x: torch.cat([x, x.relu()], 1),
    "positions stacked": lambda x: torch.stack([x, x.relu()], 1),
    "positions split": lambda x: torch.add(*x.chunk(2, 1)),
    "positions unbound": lambda x: sum(x.unbind(1)),
    "padded positions": lambda x: F.pad(x, (0, 0, 1, 2)),
    "repeated": lambda x: x.repeat(1, 3, 1),
    "expanded": lambda x: x[:, :, None].expand(-1, -1, 3, -1),
    "transposed twice": lambda x: x.transpose(1, 2).relu().mT,
    "flattened positions": lambda x: x.flatten(0, 1).unflatten(0, (2, 4)),
    "chosen by sign": lambda x: torch.where(x > 0, x, 0.1 * x),
    "masked": lambda x: x.masked_fill(x < 0, 0.5),
    "clamped": lambda x: x.clamp(-1, 1).maximum(x / 2),
    "larger than zeros": lambda x: x.maximum(torch.zeros_like(x)) + torch.full_like(x, 0.5),
    "interpolated": lambda x: torch.lerp(x, x.tanh(), 0.3),
    "gated": lambda x: torch.addcmul(x, x.sigmoid(), x.tanh()),
    "products with itself": lambda x: (x @ x.mT).softmax(-1) @ x,
    "squeezed": lambda x: x[:, :1].squeeze(1),
    "dropout and copies": lambda x: F.dropout(x, 0.5, training=False).clone().contiguous().detach() + x,
    "flattened with positions": lambda x: x.flatten(1),
    "concatenated with itself": lambda x: torch.cat([x, x.tanh()], -1),
}
PINS = {
    "ranks of neurons": lambda x: x * x.argsort(-1),
    "neurons after sorting, by place": lambda x: x + x.sort(-1).values * torch.arange(6.0).to(x),
    "cumulative sum over neurons": lambda x: x.cumsum(-1),
    "neurons reversed": lambda x: x + x.flip(-1),
    "neurons rolled": lambda x: x + x.roll(1, -1),
    "place of the largest neuron": lambda x: x - x.max(-1, keepdim=True).indices,
    "padded neurons": lambda x: F.pad(x, (1, 1)).unfold(-1, 3, 1).sum(-1),
    "positions and neurons in other factors": lambda x: x.reshape(-1, 6, 4).mT,
    "triangle": lambda x: (x.mT @ x).tril(),
}
CONVOLUTIONS = {
    "average pooling": lambda x: F.avg_pool2d(x, 2),
    "largest pooling": lambda x: F.max_pool2d(x, 2),
    "adaptive pooling": lambda x: F.adaptive_avg_pool2d(x, 2),
    "adaptive largest pooling": lambda x: F.adaptive_max_pool2d(x, 2),
    "zero padding": lambda x: F.pad(x, (1, 1, 1, 1)),
    "reflection padding": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "replication padding": lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate"),
    "nearest upsampling": lambda x: F.interpolate(x, scale_factor=2),
    "bilinear upsampling": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "bicubic upsampling": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
    "permuted": lambda x: x.permute(0, 2, 3, 1).relu().permute(0, 3, 1, 2),
    "instance norm": lambda x: F.instance_norm(x),
}


@pytest.mark.parametrize("name", KEEPS)
def test_neurons_are_found_behind_operations_that_treat_them_alike(name):
    assert hidden(Dense(KEEPS[name]), 2, 4, 3) == [6]


@pytest.mark.parametrize("name", PINS)
def test_operations_that_depend_on_the_order_of_neurons_leave_no_symmetry(name):
    with pytest.raises(ValueError, match="no hidden neurons"):
        hidden(Dense(PINS[name]), 2, 4, 3)


def test_neurons_that_are_picked_out_are_fixed_and_the_others_permute():
    assert hidden(Dense(lambda x: x[..., 1:4]), 2, 4, 3) == [3, 2]
    assert hidden(Dense(lambda x: x * x[..., 2:3]), 2, 4, 3) == [2, 3]


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_channels_are_found_behind_operations_on_pixels(name):
    assert hidden(Convolutional(CONVOLUTIONS[name]), 2, 2, 8, 8) == [6]
