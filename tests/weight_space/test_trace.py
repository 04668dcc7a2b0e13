import dataclasses

import pytest
import torch
import torch.nn.functional as F
from architectures import ARCHITECTURES, Gpt, LeNet, ResNet
from torch import nn

from neuralfunctionals import NetworkSpec, NeuronPermutation, WeightSpaceFeatures
from neuralfunctionals.weight_space.verify import verify_spec


def as_double(inputs):
    return tuple(x.double() if x.is_floating_point() else x for x in inputs)


def run(module, inputs):
    with torch.no_grad():
        output = module(*inputs)
    output = list(output.values()) if isinstance(output, dict) else output
    return output if isinstance(output, (tuple, list)) else (output,)


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.name)
def test_axes_are_found_and_their_permutations_keep_the_output(architecture):
    if architecture.needs:
        pytest.importorskip(architecture.needs)
    module = architecture.make().eval()
    for tensor in module.state_dict().values():  # scales that are one and shifts that are zero would hide wrong axes
        if tensor.is_floating_point():
            tensor.add_(0.1 * torch.randn_like(tensor)).abs_()
    inputs = architecture.inputs()
    spec = NetworkSpec.from_module(module, inputs)
    found = tuple(sorted(a.size for a in spec.axes if a.role == "hidden"))
    assert found == architecture.hidden
    assert NetworkSpec.from_json(spec.to_json()) == spec

    features = WeightSpaceFeatures.from_modules([module], spec=spec)
    assert sum(p.numel() for p in module.parameters()) <= spec.num_entries
    copy = features.to_modules(module)[0]
    for key, value in module.state_dict().items():
        assert torch.equal(copy.state_dict()[key], value)

    module, inputs = module.double(), as_double(inputs)
    features = WeightSpaceFeatures.from_modules([module], spec=spec)
    permutation = NeuronPermutation.random(spec, generator=torch.Generator().manual_seed(1))
    moved = permutation(features)
    assert not torch.equal(moved.tensor, features.tensor)
    torch.testing.assert_close(permutation.inverse()(moved).tensor, features.tensor, rtol=0, atol=0)
    for a, b in zip(run(moved.to_modules(module)[0], inputs), run(module, inputs), strict=True):
        if isinstance(a, torch.Tensor) and a.is_floating_point():
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_blocks_hold_every_entry_exactly_once():
    for module, inputs in (
        (Gpt("per head"), torch.zeros(2, 5, dtype=torch.long)),
        (LeNet(), torch.zeros(2, 1, 16, 16)),
    ):
        spec = NetworkSpec.from_module(module, inputs, verify=False)
        numbers = {
            k: torch.arange(v.numel(), dtype=torch.float64).view(v.shape) for k, v in module.state_dict().items()
        }
        packed = WeightSpaceFeatures.from_state_dicts([numbers], spec)
        for key in {g.key for g in spec.groups}:
            found = torch.cat([packed.group(g).flatten() for g in spec.groups if g.key == key])
            assert torch.equal(found.sort().values, numbers[key].flatten())
        again = packed.to_state_dicts()[0]
        assert again.keys() == numbers.keys()
        assert all(torch.equal(again[key], numbers[key]) for key in numbers)


def test_permutations_of_nested_axes_form_a_group():
    spec = NetworkSpec.from_module(Gpt(), torch.zeros(2, 5, dtype=torch.long))
    assert any(axis.within is not None for axis in spec.axes)
    x = WeightSpaceFeatures.from_vectors(spec, torch.randn(2, spec.num_entries))
    p, q = NeuronPermutation.random(spec), NeuronPermutation.random(spec)
    assert torch.equal((p @ q)(x).tensor, p(q(x)).tensor)
    assert torch.equal((p.inverse() @ p)(x).tensor, x.tensor)
    assert torch.equal(p.inverse().inverse()(x).tensor, p(x).tensor)


def test_batch_norm_statistics_move_with_their_channels():
    spec = NetworkSpec.from_module(ResNet(), torch.randn(2, 3, 8, 8))
    kinds = {g.key: (g.kind, g.axes) for g in spec.groups}
    assert kinds["blocks.0.norm1.running_var"][0] == "running variance"
    assert kinds["blocks.0.norm1.running_mean"][1] == kinds["blocks.0.conv1.weight"][1][:1]
    assert not any("num_batches_tracked" in g.key for g in spec.groups)


def test_weights_keep_their_dtype():
    module = ResNet().half()
    spec = NetworkSpec.from_module(module, torch.randn(2, 3, 8, 8))
    features = WeightSpaceFeatures.from_modules([module, module], spec=spec)
    assert features.tensor.dtype == torch.float16
    copy = features.to_modules(module)[1]
    assert all(torch.equal(a, b) for a, b in zip(copy.parameters(), module.parameters(), strict=True))


def test_axes_are_named_after_the_first_layer_that_has_them_and_numbered():
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    axes = NetworkSpec.from_module(module, torch.randn(5, 3)).axes
    assert [(a.name, a.size, a.role) for a in axes] == [("0", 4, "hidden"), ("0/2", 3, "input"), ("3", 2, "output")]


class CastingNorm(nn.Module):
    """Computes in float32, as the norms of language models do."""

    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x):
        y = x.to(torch.float32)
        return self.weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def test_casts_to_float32_do_not_hide_axes():
    module = nn.Sequential(nn.Linear(3, 6), CastingNorm(6), nn.Tanh(), nn.Linear(6, 2))
    assert [a.size for a in NetworkSpec.from_module(module, torch.randn(4, 3)).axes if a.role == "hidden"] == [6]


class WrongRotary(nn.Module):
    """Constant frequencies along the neurons: these must not permute."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 4)
        self.out = nn.Linear(4, 2)
        self.register_buffer("frequencies", torch.zeros(4))  # uniform now, other networks may differ

    def forward(self, x):
        return self.out(torch.relu(self.last(torch.relu(self.first(x)) * torch.cos(self.frequencies))))


def test_buffers_and_unknown_operations_pin_what_they_touch():
    spec = NetworkSpec.from_module(WrongRotary(), torch.randn(5, 3))
    assert [a.name for a in spec.axes if a.role == "hidden"] == ["last"]

    class Counted(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(5, 2)

        def forward(self, x):
            return self.c(torch.relu(self.b(self.a(x).histc(4) + self.a(x))))

    spec = NetworkSpec.from_module(Counted(), torch.randn(5, 3))
    assert [a.size for a in spec.axes if a.role == "hidden"] == [5]
    assert any("the operation 'histc' is not known" in note for note in spec.notes)


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        return self.inner(x) if x.sum() > 0 else x


class HiddenWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.extra = nn.Linear(3, 4), torch.randn(2, 4)

    def forward(self, x):
        return torch.relu(self.a(x)) @ self.extra.T.to(x)


class Random(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.b(F.dropout(torch.relu(self.a(x)) + x.sum(), 0.5, training=True))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Branching(), "Could not trace Branching.*branch on the values of tensors"),
        (HiddenWeights(), "HiddenWeights computes with the tensor 'extra'"),
        (Random(), "different outputs each time"),
        (nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)), "no hidden neurons"),
        (
            nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 2)),
            "Could not trace Sequential in its part '0'",
        ),
        (nn.Sequential(nn.Flatten(), nn.Softmax(-1)), "has no parameters"),
    ],
    ids=["branch", "hidden weights", "random", "no hidden axis", "wrong input", "no parameters"],
)
def test_modules_that_cannot_be_read_are_refused_with_the_reason(module, message, capfd):
    with pytest.raises(ValueError, match=message):
        NetworkSpec.from_module(module, torch.randn(5, 3))
    assert capfd.readouterr() == ("", "")


class SkipCnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        return self.head((x + F.relu(self.conv2(x))).mean((2, 3)))


def test_the_state_dict_of_a_network_with_a_skip_connection_is_refused():
    with pytest.raises(ValueError, match="also allow a network with skip connections"):
        NetworkSpec.from_state_dict(SkipCnn().state_dict())
    spec = NetworkSpec.from_module(SkipCnn(), torch.randn(2, 1, 8, 8))
    assert [a.size for a in spec.axes if a.role == "hidden"] == [6]
    WeightSpaceFeatures.from_state_dicts([SkipCnn().state_dict()], spec)


def test_axes_can_be_named():
    lora = {"l.A": ("r", "in"), "l.B": ("out", "r")}
    spec = NetworkSpec.from_axes(lora, {"l.A": torch.zeros(2, 6), "l.B": torch.zeros(4, 2)})
    assert [(a.name, a.role) for a in spec.axes] == [("r", "hidden"), ("in", "input"), ("out", "output")]
    pair = {"l.A": torch.randn(2, 6), "l.B": torch.randn(4, 2)}
    features = WeightSpaceFeatures.from_state_dicts([pair], spec)
    moved = NeuronPermutation.random(spec, generator=torch.Generator().manual_seed(3))(features).to_state_dicts()[0]
    torch.testing.assert_close(moved["l.B"] @ moved["l.A"], pair["l.B"] @ pair["l.A"])
    with pytest.raises(ValueError, match="'r' has 2 neurons elsewhere, but 3"):
        NetworkSpec.from_axes(lora, {"l.A": torch.zeros(2, 6), "l.B": torch.zeros(4, 3)})
    with pytest.raises(ValueError, match="Expected a size for each"):
        NetworkSpec.from_axes(lora, {"r": 2})


def test_chains_are_verified_too():
    spec = NetworkSpec.from_module(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1)), torch.randn(5, 2))
    assert spec.is_chain
    assert spec == NetworkSpec.mlp([2, 4, 1])
    assert str(spec.activation) == "relu"
    assert dataclasses.replace(spec, convention=None).omega is None


class SharedWithin(nn.Module):
    """Two heads of three neurons, of which those with the same number are added."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(2, 6), nn.Linear(6, 1)

    def forward(self, x):
        heads = self.first(x).tanh().unflatten(-1, (2, 3))
        return self.last((heads + heads.sum(-2, keepdim=True)).flatten(-2))


def test_an_axis_that_permutes_alike_in_each_head_is_not_nested():
    module, x = SharedWithin(), torch.randn(5, 2)
    spec = NetworkSpec.from_module(module, x)
    heads, within = (n for n, axis in enumerate(spec.axes) if axis.role == "hidden")
    assert [spec.axes[n].size for n in (heads, within)] == [2, 3]
    assert spec.axes[within].within is None
    nested = tuple(dataclasses.replace(a, within=heads) if n == within else a for n, a in enumerate(spec.axes))
    assert verify_spec(dataclasses.replace(spec, axes=nested), module, x).axes == spec.axes


class WithoutEffect(nn.Module):
    """A chain, and another one whose output is multiplied by zero."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.used = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1))
        self.unused = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, x):
        return self.used(x) + 0 * self.unused(x)


def test_neurons_without_effect_are_pinned_with_the_reason():
    spec = NetworkSpec.from_module(WithoutEffect(), torch.randn(5, 2))
    assert [axis.size for axis in spec.axes if axis.role == "hidden"] == [5]
    assert "'unused.0' of 4 neurons is pinned: its entries have no effect" in spec.notes
