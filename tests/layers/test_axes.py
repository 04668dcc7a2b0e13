"""Layers and models on networks that are no chains: residual streams, norms, heads, groups, recurrent weights."""

import itertools

import pytest
import reference
import torch
from architectures import ARCHITECTURES, Gpt, Recurrent
from torch import nn

from neuralfunctionals import NetworkSpec, WeightSpaceFeatures, layers, models
from neuralfunctionals.testing import assert_equivariant, assert_invariant, assert_minimal, random_features


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.up, self.down, self.head = (nn.Linear(*s) for s in ((2, 4), (4, 3), (3, 4), (4, 2)))

    def forward(self, x):
        x = self.stem(x)
        return self.head(x + self.down(torch.relu(self.up(x))))


class Grouped(nn.Module):
    """Neurons of two axes, both nested in the groups of a convolution."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Conv1d(2, 4, 3), nn.Conv1d(4, 6, 3, groups=2), nn.Conv1d(6, 2, 1)

    def forward(self, x):
        return self.c(torch.relu(self.b(torch.relu(self.a(x)))))


def read(module, *shape):
    return NetworkSpec.from_module(module, torch.zeros(shape) if len(shape) > 1 else shape[0], verify=False)


torch.manual_seed(0)
SPECS = {
    "residual": read(Residual(), 5, 2),
    "norm": read(nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)), 5, 2),
    "heads": read(Gpt(), torch.zeros(2, 5, dtype=torch.long)),
    "groups": read(Grouped(), 2, 2, 9),
    "recurrent": read(Recurrent(), 2, 3, 3),
    "LoRA": NetworkSpec.from_axes({"A": ("rank", "in"), "B": ("out", "rank")}, {"in": 4, "rank": 2, "out": 3}),
}
SMALL = {"channels": 4, "num_blocks": 1, "num_heads": 2, "hidden_channels": 4}
EQUIVARIANT = {
    "linear": lambda s, symmetry: (layers.NPLinear if symmetry == "NP" else layers.HNPLinear)(s, 2, 3),
    "attention": lambda s, symmetry: layers.WeightSpaceSelfAttention(s, 4, 2, symmetry=symmetry),
    "bounded attention": lambda s, symmetry: layers.WeightSpaceSelfAttention(s, 4, 2, symmetry=symmetry, max_vectors=2),
    "block": lambda s, symmetry: layers.Block(s, 4, 6, 2, symmetry=symmetry),
    "NFT": lambda s, symmetry: models.NFT(s, symmetry=symmetry, io_encoding=False, neuron_states=1, **SMALL),
    "NFN": lambda s, symmetry: models.NFN(s, symmetry=symmetry, channels=(3,)),
    "NeuronGraphNet": lambda s, symmetry: models.NeuronGraphNet(s, symmetry=symmetry, channels=4, num_rounds=2),
}
INVARIANT = {
    "pool": lambda s: layers.HNPPool(s, 2),
    "cross-attention": lambda s: layers.WeightSpaceCrossAttention(s, 4, 6, 3),
    "StatNN": lambda s: models.StatNN(s, head_channels=(4,)),
    "NFT": lambda s: models.NFT(s, pooling="HNP", head_channels=(4,), **SMALL),
    "NFN": lambda s: models.NFN(s, channels=(3,), pooling="HNP", head_channels=(4,)),
    "NeuronGraphNet vector": lambda s: models.NeuronGraphNet(s, channels=4, num_rounds=2, pooling="vector"),
    "NeuronGraphNet latents": lambda s: models.NeuronGraphNet(
        s, channels=4, num_rounds=2, pooling="latents", num_latents=2, latent_channels=4
    ),
}


@pytest.mark.parametrize("symmetry", ["NP", "HNP"])
@pytest.mark.parametrize("name", EQUIVARIANT)
@pytest.mark.parametrize("spec", SPECS)
def test_layers_are_equivariant_on_any_network(spec, name, symmetry):
    assert_equivariant(EQUIVARIANT[name](SPECS[spec], symmetry).double(), trials=2)


@pytest.mark.parametrize("name", INVARIANT)
@pytest.mark.parametrize("spec", SPECS)
def test_readers_are_invariant_on_any_network(spec, name):
    assert_invariant(INVARIANT[name](SPECS[spec]).double(), trials=2)


def assert_learns(model):
    features, target = (random_features(model.spec, batch=3, dtype=torch.float32, seed=n) for n in (0, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(2):
        loss = (model(features) - target).tensor.square().mean()
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[1] < losses[0]


@pytest.mark.parametrize("spec", SPECS)
def test_models_learn_from_any_network(spec):
    assert_learns(EQUIVARIANT["NFT"](SPECS[spec], "HNP"))
    assert_learns(EQUIVARIANT["NeuronGraphNet"](SPECS[spec], "HNP"))


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.name)
def test_every_layer_and_model_takes_every_architecture(architecture):
    if architecture.needs:
        pytest.importorskip(architecture.needs)
    torch.manual_seed(0)
    spec = NetworkSpec.from_module(architecture.make(), architecture.inputs(), verify=False)
    for symmetry in ("NP", "HNP"):
        for make in EQUIVARIANT.values():
            assert_equivariant(make(spec, symmetry).double(), trials=1)
    for make in INVARIANT.values():
        assert_invariant(make(spec).double(), trials=1)
    assert_learns(EQUIVARIANT["NFT"](spec, "HNP"))
    assert_learns(EQUIVARIANT["NeuronGraphNet"](spec, "HNP"))


@pytest.mark.parametrize("name", ["linear", "NFN"])
def test_layers_are_minimal_on_a_residual_network(name):
    for symmetry in ("NP", "HNP"):
        assert_minimal(EQUIVARIANT[name](SPECS["residual"], symmetry))


def test_attention_with_encoding_is_minimal_on_a_residual_network():
    spec = SPECS["residual"]
    assert_minimal(nn.Sequential(layers.LayerEncoding(spec, 4), layers.WeightSpaceSelfAttention(spec, 4, 2)))


def test_a_layer_that_treats_all_entries_alike_is_not_minimal():
    with pytest.raises(AssertionError, match="not minimal"):
        assert_minimal(layers.Pointwise(SPECS["residual"], 2, 2))


# Slow loops from the general formulas; those of attention are for networks whose neurons all permute, without kernels.


def entries_of(spec):
    """Each group's number with the index of each entry, by axis, and where it is packed."""
    for n, group in enumerate(spec.groups):
        for place, index in enumerate(itertools.product(*map(range, group.shape))):
            yield n, dict(zip(group.axes, index, strict=True)), group.start + place


def attention_by_loops(layer, features):
    spec, heads = features.spec, layer.num_heads
    qkv = layer.to_qkv(features).unflatten(-1, (3, heads, -1))
    result = torch.zeros(*qkv.shape[:2], heads, qkv.shape[-1], dtype=torch.float64)
    for axis, width in enumerate(spec.widths):
        slices: dict = {}
        for n, where, p in entries_of(spec):
            if axis in where:
                rest = tuple(sorted((a, i) for a, i in where.items() if a != axis))
                slices.setdefault((n, rest), [0] * width)[where[axis]] = p
        for head in range(heads):
            q, k, v = (
                torch.stack([qkv[:, places, s, head].flatten(1) for places in slices.values()], dim=1) for s in range(3)
            )
            output = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
            for m, places in enumerate(slices.values()):
                result[:, places, head] += output[:, m].unflatten(1, (width, -1))
    return result.flatten(2)


@pytest.mark.parametrize("name", ["residual", "norm"])
@pytest.mark.parametrize("symmetry", ["NP", "HNP"])
def test_linear_layers_match_slow_loops(name, symmetry):
    spec = SPECS[name]
    assert not spec.is_chain
    layer, x = EQUIVARIANT["linear"](spec, symmetry).double(), random_features(spec, 2)
    expected = reference.equivariant_linear(layer, x)
    torch.testing.assert_close(layer(x).tensor, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["residual", "norm"])
@pytest.mark.parametrize("symmetry", ["NP", "HNP"])
def test_message_passing_matches_slow_loops(name, symmetry):
    layer = layers.NeuronStates(SPECS[name], 2, 4, symmetry=symmetry, num_rounds=2, num_gates=2).double()
    for part in layer.read_network.values():  # they start at zero, which would hide what they read
        nn.init.normal_(part.weight)
    x = random_features(SPECS[name], 2)
    states = layer(x)
    for network, (expected, whole) in enumerate(reference.neuron_states(layer, x)):
        torch.testing.assert_close(states.network[network], whole, rtol=0, atol=1e-10)
        assert sum(h.shape[1] for h in states.neurons.values()) == len(expected)
        for (axis, neuron), value in expected.items():
            torch.testing.assert_close(states.neurons[axis][network, neuron], value, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["residual", "norm"])
def test_attention_matches_slow_loops(name):
    spec = SPECS[name]
    layer, x = layers.WeightSpaceSelfAttention(spec, 4, 2, global_term="none").double(), random_features(spec, 4)
    torch.testing.assert_close(layer(x).tensor, attention_by_loops(layer, x), rtol=0, atol=1e-10)


def test_models_for_chains_refuse_other_networks():
    for make in (lambda s: layers.Probes(s, 4), models.Inr2Array):
        with pytest.raises(ValueError, match="chains|sine networks"):
            make(SPECS["residual"])


def test_models_of_any_network_are_saved_and_loaded(tmp_path):
    model = INVARIANT["NeuronGraphNet vector"](SPECS["heads"]).eval()
    model.save_pretrained(tmp_path)
    x = random_features(SPECS["heads"], dtype=torch.float32)
    again = models.from_pretrained(tmp_path)
    assert torch.equal(again(x), model(x))
    assert again.spec == model.spec
    with pytest.raises(ValueError, match="expected networks"):
        again(WeightSpaceFeatures(SPECS["residual"], torch.zeros(1, SPECS["residual"].num_entries, 1)))
