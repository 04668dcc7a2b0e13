"""Networks of many architectures, tiny, each with example inputs and the hidden axes it is known to have."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Architecture:
    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], Any]
    hidden: tuple[int, ...]
    """Sizes of the hidden axes, sorted."""
    needs: str | None = field(default=None)


def mlp(activation):
    return nn.Sequential(nn.Linear(3, 6), activation, nn.Linear(6, 5), activation, nn.Linear(5, 2))


class SirenLayer(nn.Module):
    """A layer with parameters of its own, as in siren-pytorch."""

    def __init__(self, i, o, last=False):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(o, i) / i), nn.Parameter(torch.randn(o))
        self.last = last

    def forward(self, x):
        z = F.linear(x, self.weight, self.bias)
        return z if self.last else torch.sin(30.0 * z)


class FunctionalMlp(nn.Module):
    """Weights in lists, multiplied from the right."""

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList([torch.randn(2, 6), torch.randn(6, 5), torch.randn(5, 1)])
        self.shifts = nn.ParameterList([torch.randn(6), torch.randn(5), torch.randn(1)])

    def forward(self, x):
        for n, (w, b) in enumerate(zip(self.weights, self.shifts, strict=True)):
            x = x @ w + b
            x = torch.tanh(x) if n < 2 else x
        return x


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 5, padding=2), nn.Conv2d(4, 6, 5)
        self.dense1, self.dense2, self.dense3 = nn.Linear(24, 8), nn.Linear(8, 7), nn.Linear(7, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2).flatten(1)
        return self.dense3(F.relu(self.dense2(F.relu(self.dense1(x)))))


def vgg():
    layers: list[nn.Module] = []
    for i, o in ((3, 4), (4, 5), (5, 6)):
        layers += [nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 3))


class ResBlock(nn.Module):
    def __init__(self, i, o, stride=1, pre=False):
        super().__init__()
        self.pre = pre
        self.conv1, self.conv2 = nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.Conv2d(o, o, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(i if pre else o), nn.BatchNorm2d(o)
        self.shortcut = nn.Conv2d(i, o, 1, stride, bias=False) if i != o or stride != 1 else nn.Identity()

    def forward(self, x):
        if self.pre:
            y = F.relu(self.norm1(x))
            return self.conv2(F.relu(self.norm2(self.conv1(y)))) + self.shortcut(x)
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, pre=False):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.blocks = nn.Sequential(ResBlock(4, 4, pre=pre), ResBlock(4, 6, 2, pre=pre), ResBlock(6, 6, pre=pre))
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Separable(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.depth = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, groups=4)
        self.point, self.norm = nn.Conv2d(4, 6, 1), nn.BatchNorm2d(6)
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        x = F.relu(self.norm(self.point(F.relu(self.depth(F.relu(self.stem(x)))))))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


def norms():
    return nn.Sequential(
        nn.Linear(3, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 5), nn.RMSNorm(5), nn.Tanh(), nn.Linear(5, 2)
    )


def group_norm():
    return nn.Sequential(
        nn.Conv1d(2, 6, 3), nn.GroupNorm(2, 6), nn.ReLU(), nn.Conv1d(6, 4, 3), nn.ReLU(), nn.Conv1d(4, 1, 1)
    )


class MixerBlock(nn.Module):
    def __init__(self, tokens, channels):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.tokens = nn.Sequential(nn.Linear(tokens, 5), nn.GELU(), nn.Linear(5, tokens))
        self.channels = nn.Sequential(nn.Linear(channels, 7), nn.GELU(), nn.Linear(7, channels))

    def forward(self, x):
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 4, 4)
        self.blocks = nn.Sequential(MixerBlock(4, 6), MixerBlock(4, 6))
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, 2)

    def forward(self, x):
        x = self.stem(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(1))


def encoder(**options):
    layer = nn.TransformerEncoderLayer(8, 2, 10, batch_first=True, **options)
    body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Sequential(nn.Linear(3, 8), body, nn.Linear(8, 2))


class Attention(nn.Module):
    """One projection for q, k and v, taken apart in one of four ways."""

    def __init__(self, width, heads, layout):
        super().__init__()
        self.heads, self.layout = heads, layout
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        b, t, d = x.shape
        y = self.qkv(x)
        if self.layout == "split":
            q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in y.split(d, dim=2))
        elif self.layout == "unbind":
            q, k, v = y.view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        elif self.layout == "select":
            y = y.reshape(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
            q, k, v = y[0], y[1], y[2]
        else:  # q, k and v stand next to each other in each head
            q, k, v = y.view(b, t, self.heads, -1).transpose(1, 2).chunk(3, dim=-1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class Gpt(nn.Module):
    def __init__(self, layout="split", tied=True):
        super().__init__()
        self.embed, self.place = nn.Embedding(11, 8), nn.Embedding(6, 8)
        self.attention, self.norm1, self.norm2 = Attention(8, 2, layout), nn.LayerNorm(8), nn.LayerNorm(8)
        self.mlp = nn.Sequential(nn.Linear(8, 10), nn.GELU(), nn.Linear(10, 8))
        self.head = nn.Linear(8, 11, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens) + self.place(torch.arange(tokens.shape[1]))
        x = x + self.attention(self.norm1(x))
        return self.head(x + self.mlp(self.norm2(x)))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 4, 3, padding=1)
        self.middle, self.up = nn.Conv2d(4, 5, 3, padding=1), nn.ConvTranspose2d(5, 4, 2, 2)
        self.join, self.head = nn.Conv2d(8, 3, 3, padding=1), nn.Conv2d(6, 1, 1)

    def forward(self, x):
        a = F.relu(self.down1(x))
        b = F.relu(self.down2(a))
        c = F.relu(self.up(F.relu(self.middle(F.max_pool2d(b, 2)))))
        d = F.relu(self.join(torch.cat([b, c], 1)))
        return self.head(torch.cat([a, d], 1))


class Nerf(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 6), nn.Linear(9, 5)
        self.density, self.colour = nn.Linear(5, 1), nn.Linear(5, 3)

    def forward(self, x):
        h = F.relu(self.second(torch.cat([F.relu(self.first(x)), x], -1)))
        return self.density(h), self.colour(h)


class Recurrent(nn.Module):
    def __init__(self, kind=nn.LSTM):
        super().__init__()
        self.rnn, self.head = kind(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


class TiedAutoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(5, 4)), nn.Parameter(torch.randn(5))

    def forward(self, x):
        return torch.tanh(x @ self.weight.T + self.bias) @ self.weight


class TiedMlp(nn.Module):
    """One hidden layer that is applied twice."""

    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(3, 5), nn.Linear(5, 5), nn.Linear(5, 2)

    def forward(self, x):
        x = torch.relu(self.middle(torch.relu(self.middle(torch.relu(self.first(x))))))
        return self.last(x)


def _hugging_face(model, config, **options):
    def make():
        import transformers

        return getattr(transformers, model)(getattr(transformers, config)(**options))

    return make


def _points(*shape):
    return lambda: (torch.randn(shape, generator=torch.Generator().manual_seed(0)),)


def _tokens(count, *shape):
    return lambda: (torch.randint(count, shape, generator=torch.Generator().manual_seed(0)),)


_BERT = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 10, "vocab_size": 11}
_GPT2 = {"n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 11, "n_positions": 8, "use_cache": False}
_GPT2 |= {"bos_token_id": 0, "eos_token_id": 0}
_VIT = {"image_size": 8, "patch_size": 4, **{key: size for key, size in _BERT.items() if key != "vocab_size"}}
_RESNET = {"embedding_size": 4, "hidden_sizes": [4, 6], "depths": [1, 1], "layer_type": "basic"}

ARCHITECTURES = [
    Architecture("tanh MLP", lambda: mlp(nn.Tanh()), _points(4, 3), (5, 6)),
    Architecture("GELU MLP", lambda: mlp(nn.GELU()), _points(4, 3), (5, 6)),
    Architecture(
        "SIREN, own parameters",
        lambda: nn.Sequential(SirenLayer(2, 6), SirenLayer(6, 5), SirenLayer(5, 1, last=True)),
        _points(4, 2),
        (5, 6),
    ),
    Architecture("MLP, parameter lists", FunctionalMlp, _points(4, 2), (5, 6)),
    Architecture("LeNet with flatten", LeNet, _points(2, 1, 16, 16), (4, 6, 7, 8)),
    Architecture("VGG with batch norm", vgg, _points(2, 3, 8, 8), (4, 5, 6, 7)),
    Architecture("ResNet", ResNet, _points(2, 3, 8, 8), (4, 4, 6, 6, 6)),
    Architecture("ResNet, pre-activation", lambda: ResNet(True), _points(2, 3, 8, 8), (4, 4, 6, 6, 6)),
    Architecture("depthwise separable CNN", Separable, _points(2, 3, 8, 8), (4, 6)),
    Architecture("layer and RMS norm", norms, _points(4, 3), (5, 6)),
    Architecture("group norm", group_norm, _points(2, 2, 9), (2, 3, 4)),
    Architecture("MLP-Mixer", Mixer, _points(2, 3, 8, 8), (5, 5, 6, 7, 7)),
    Architecture("TransformerEncoder", encoder, _points(2, 4, 3), (2, 2, 4, 4, 4, 4, 8, 10, 10)),
    Architecture(
        "TransformerEncoder, norm first",
        lambda: encoder(norm_first=True),
        _points(2, 4, 3),
        (2, 2, 4, 4, 4, 4, 8, 10, 10),
    ),
    *(
        Architecture(
            f"GPT, fused qkv ({layout})", lambda layout=layout: Gpt(layout), _tokens(11, 2, 5), (2, 4, 4, 8, 10)
        )
        for layout in ("split", "unbind", "select", "per head")
    ),
    Architecture("GPT, untied", lambda: Gpt(tied=False), _tokens(11, 2, 5), (2, 4, 4, 8, 10)),
    Architecture("U-Net", UNet, _points(2, 1, 8, 8), (3, 3, 4, 4, 5)),
    Architecture("NeRF with skip", Nerf, _points(4, 3), (5, 6)),
    Architecture("LSTM", Recurrent, _points(2, 3, 3), (4,)),
    Architecture("GRU", lambda: Recurrent(nn.GRU), _points(2, 3, 3), (4,)),
    Architecture("tied autoencoder", TiedAutoencoder, _points(3, 4), (5,)),
    Architecture("tied MLP", TiedMlp, _points(3, 3), (5,)),
    Architecture(
        "HF BERT",
        _hugging_face("BertForSequenceClassification", "BertConfig", **_BERT),
        _tokens(11, 2, 5),
        (2, 4, 4, 8, 8, 10),
        "transformers",
    ),
    Architecture(
        "HF GPT-2, tied",
        _hugging_face("GPT2LMHeadModel", "GPT2Config", **_GPT2),
        _tokens(11, 2, 5),
        (2, 4, 4, 8, 32),
        "transformers",
    ),
    Architecture(
        "HF ViT",
        _hugging_face("ViTForImageClassification", "ViTConfig", **_VIT),
        _points(2, 3, 8, 8),
        (2, 4, 4, 8, 10),
        "transformers",
    ),
    Architecture(
        "HF ResNet",
        _hugging_face("ResNetForImageClassification", "ResNetConfig", **_RESNET),
        _points(2, 3, 16, 16),
        (4, 4, 6, 6),
        "transformers",
    ),
]
