import pytest
import torch
import torch.nn.functional as F
from torch import nn

import neuralfunctionals as nf
from neuralfunctionals import NetworkSpec, WeightSpaceFeatures


class Cnn(nn.Module):
    """Attributes in an order unlike that of the forward, functional operations, a layer without bias."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.second = nn.Conv2d(5, 4, 3)
        self.first = nn.Conv2d(1, 5, 3, bias=False)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = torch.tanh(self.second(x) * 0.5)
        x = F.adaptive_avg_pool2d(x, 1).view(x.size(0), -1)
        return F.log_softmax(self.head(x), dim=-1)


class Sine(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.ModuleList([nn.Linear(2, 6), nn.Linear(6, 6), nn.Linear(6, 1)])
        self.register_buffer("grid", torch.zeros(3))

    def forward(self, x):
        for layer in self.net[:-1]:
            x = torch.sin(30.0 * layer(x))
        return self.net[-1](x), x.shape[0]


def test_layers_are_found_in_the_order_of_forward():
    spec = NetworkSpec.from_module(Cnn())
    assert [layer.name for layer in spec.layers] == ["first", "second", "head"]
    assert str(spec) == "1->5 (3x3) without bias, 5->4 (3x3), 4->3"
    assert NetworkSpec.from_module(Sine()) == NetworkSpec.mlp([2, 6, 6, 1])
    assert NetworkSpec.from_module(nn.Linear(3, 2)) == NetworkSpec.mlp([3, 2])
    nested = nn.Sequential(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), nn.Dropout(0.1), nn.Sequential(nn.Linear(3, 1)))
    assert NetworkSpec.from_module(nested) == NetworkSpec.mlp([2, 3, 1])


@pytest.mark.parametrize("module", [Cnn(), Sine(), nn.Sequential(nn.Conv1d(2, 3, 2), nn.ReLU(), nn.Conv1d(3, 1, 2))])
def test_modules_survive_the_round_trip(module):
    features = WeightSpaceFeatures.from_modules([module, module])
    again = features.to_modules(module)
    assert len(again) == 2
    for key, value in module.state_dict().items():
        assert torch.equal(again[1].state_dict()[key], value)


class Skip(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.b(x + self.a(x))


class Twice(Skip):
    def forward(self, x):
        return self.b(self.a(self.a(x)))


class Unused(Skip):
    def forward(self, x):
        return self.a(x)


class Scaled(Skip):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.b(self.a(x) * self.scale)


class Branching(Skip):
    def forward(self, x):
        return self.b(self.a(x)) if x.sum() > 0 else x


class Early(Skip):
    def forward(self, x):
        self.b(self.a(x))
        return x


class Dense(nn.Module):
    """A layer that keeps its own parameters, as in siren-pytorch."""

    def __init__(self, in_neurons, out_neurons):
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.randn(out_neurons, in_neurons)),
            nn.Parameter(torch.randn(out_neurons)),
        )

    def forward(self, x):
        return nn.functional.linear(x, self.weight, self.bias)


class Modulated(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.last = nn.ModuleList([Dense(2, 5), Dense(5, 5)]), Dense(5, 1)

    def forward(self, x, mods=None, scale=30.0):
        for layer in self.layers:
            x = torch.sin(scale * layer(x))
            x = x if mods is None else x * mods
        return self.last(x)


class SkippedDense(Modulated):
    def forward(self, x):
        x = self.layers[0](x)
        return self.last(x + self.layers[1](x))


def test_layers_with_parameters_of_their_own_and_optional_arguments_are_read():
    spec = NetworkSpec.from_module(Modulated())
    assert spec == NetworkSpec.mlp([2, 5, 5, 1])
    assert [layer.name for layer in spec.layers] == ["layers.0", "layers.1", "last"]
    assert spec.omega == 30.0
    module = Modulated()
    x = torch.randn(4, 2)
    features = nf.WeightSpaceFeatures.from_modules([module], spec=spec)
    permuted = nf.NeuronPermutation.random(spec)(features).to_modules(module)[0]
    torch.testing.assert_close(permuted(x), module(x), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (SkippedDense(), "Skip connections, branches"),
        ({"a.weight": torch.zeros(3, 2)}, "Expected a module, but got a dict. Read a state_dict with"),
        (Skip(), "Skip connections, branches"),
        (Twice(), "'a' is used twice"),
        (Unused(), "parameters outside its dense layers and convolutions: b.weight, b.bias"),
        (Scaled(), "tensors other than layers' weights are not supported"),
        (Branching(), "Could not follow the forward of Branching"),
        (Early(), "does not come from its last layer"),
        (nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)), "'1' is a BatchNorm1d"),
        (nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 1)), "Normalisation with parameters"),
        (nn.Sequential(nn.Linear(3, 3), nn.PReLU(), nn.Linear(3, 1)), "A PReLU with parameters"),
        (nn.Sequential(nn.Linear(3, 3), nn.Softmax(-1), nn.Linear(3, 1)), "'1' .Softmax., which may mix neurons"),
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.Linear(4, 1)), "Expected global pooling between them"),
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 1)), "pool over all positions"),
        (nn.Sequential(nn.Conv2d(4, 4, 3, groups=2)), "Expected groups=1"),
        (nn.Sequential(nn.LazyLinear(4)), "no shape yet"),
        (nn.Sequential(nn.ConvTranspose2d(1, 1, 3)), "A ConvTranspose2d with parameters"),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, nn.Module) else None,
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_unsupported_modules_are_refused_with_the_reason(module, message):
    with pytest.raises(ValueError, match=message):
        NetworkSpec.from_module(module)


def shapes(**sizes):
    return {key.replace("_", "."): torch.zeros(size) for key, size in sizes.items()}


def test_state_dicts_are_read_whatever_the_order_of_their_keys():
    deep = nn.Sequential(*[layer for _ in range(12) for layer in (nn.Linear(4, 4), nn.ReLU())])
    in_order = deep.state_dict()
    for keys in (sorted(in_order), list(reversed(in_order))):  # sorted: "10.weight" comes before "2.weight"
        spec = NetworkSpec.from_state_dict({key: in_order[key] for key in keys})
        assert [layer.name for layer in spec.layers] == [str(2 * n) for n in range(12)]
    cnn = NetworkSpec.from_state_dict(dict(reversed(Cnn().state_dict().items())))
    assert [layer.name for layer in cnn.layers] == ["first", "second", "head"]


def test_ambiguous_state_dicts_are_not_guessed():
    state_dict = shapes(a_weight=(3, 3), a_bias=(3,), b_weight=(3, 3), b_bias=(3,))
    with pytest.raises(ValueError, match="Several orders of the layers"):
        NetworkSpec.from_state_dict(state_dict)
    spec = NetworkSpec.from_state_dict(state_dict, layers=["b", "a"])
    assert [layer.name for layer in spec.layers] == ["b", "a"]


@pytest.mark.parametrize(
    ("state_dict", "message"),
    [
        ({}, "no weights"),
        (shapes(a_weight=(3, 2), a_bias=(3,), n_running=(3,)), "found n.running"),
        (shapes(a_weight=(3, 2), n_weight=(3,)), "found n.weight"),
        (shapes(a_weight=(3, 2), b_weight=(5, 4)), "no such order"),
        (shapes(a_weight=(7, 3, 2), a_bias=(7, 3)), "a stack of 7 networks. Make a list"),
    ],
)
def test_unsupported_state_dicts_are_refused_with_the_reason(state_dict, message):
    with pytest.raises(ValueError, match=message):
        NetworkSpec.from_state_dict(state_dict)


def test_layer_names_must_be_complete():
    with pytest.raises(ValueError, match="names of all layers"):
        NetworkSpec.from_state_dict(shapes(a_weight=(3, 2)), layers=["b"])
