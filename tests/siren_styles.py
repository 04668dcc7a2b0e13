"""Sine networks of widths 2-32-32-1 as other projects write them; all show what `nf.inr.Siren` shows."""

import torch
from torch import nn


class SineLayer(nn.Module):
    """As in the code of Sitzmann et al."""

    def __init__(self, num_in=2, num_out=32, omega_0=30.0):
        super().__init__()
        self.omega_0, self.linear = omega_0, nn.Linear(num_in, num_out)

    def forward(self, x):
        return torch.sin(self.omega_0 * self.linear(x))


class Sitzmann(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(SineLayer(), SineLayer(32), nn.Linear(32, 1))

    def forward(self, coords):
        coords = coords.clone().detach().requires_grad_(True)
        return self.net(coords), coords


class Sine(nn.Module):
    def __init__(self, w0):
        super().__init__()
        self.w0 = w0

    def forward(self, x):
        return torch.sin(self.w0 * x)


class FunctionalLayer(nn.Module):
    """As in siren-pytorch: parameters of its own, and an activation that is a module."""

    def __init__(self, num_in, num_out, activation):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(num_out, num_in)), nn.Parameter(torch.rand(num_out))
        self.activation, self.dropout = activation, nn.Dropout(0.0)

    def forward(self, x):
        return self.dropout(self.activation(nn.functional.linear(x, self.weight, self.bias)))


class SirenNet(nn.Module):
    """With its defaults, the first layer has frequency 30 and the others have 1."""

    def __init__(self, w0=1.0, w0_initial=30.0):
        super().__init__()
        first, second = FunctionalLayer(2, 32, Sine(w0_initial)), FunctionalLayer(32, 32, Sine(w0))
        self.layers = nn.ModuleList([first, second])
        self.last_layer = FunctionalLayer(32, 1, nn.Identity())

    def forward(self, x, mods=None):
        for layer in self.layers:
            x = layer(x)
            if mods is not None:
                x = x * mods
        return self.last_layer(x)


class WithBuffer(nn.Module):
    """The frequency is a buffer, so that checkpoints contain it."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.out = nn.Linear(2, 32), nn.Linear(32, 32), nn.Linear(32, 1)
        self.register_buffer("omega", torch.tensor(30.0))

    def forward(self, x):
        x = torch.sin(self.omega * self.fc1(x))
        return self.out(torch.sin(self.omega * self.fc2(x)))


LAYERS = {
    Sitzmann: ("net.0.linear", "net.1.linear", "net.2"),
    SirenNet: ("layers.0", "layers.1", "last_layer"),
    WithBuffer: ("fc1", "fc2", "out"),
}


def in_style(kind, siren):
    """The same network as a module of another style."""
    module, values = kind(), siren.state_dict()
    content = module.state_dict()
    for number, name in enumerate(LAYERS[kind]):
        factor = 30 if kind is SirenNet and number == 1 else 1
        for part in ("weight", "bias"):
            content[f"{name}.{part}"] = factor * values[f"layers.{number}.{part}"]
    module.load_state_dict(content)
    return module
