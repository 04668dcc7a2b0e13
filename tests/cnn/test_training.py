import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from neuralfunctionals.cnn.settings import (
    ACTIVATIONS,
    INITIALIZERS,
    OPTIMIZERS,
    TRAIN_FRACTIONS,
    CnnDraws,
    CnnSettings,
    build_cnn,
    cnn_spec,
    dropout_masks,
)
from neuralfunctionals.cnn.training import (
    CnnImages,
    checkpoint_epochs,
    choose_engine,
    num_batches,
    train_cnns,
)
from neuralfunctionals.native import find_compiler
from neuralfunctionals.weight_space import NetworkSpec, NeuronPermutation, WeightSpaceFeatures

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler here")
ENGINES = [pytest.param("native", marks=needs_compiler), "torch"]


def make_images(count=90, size=17, channels=1, classes=4):
    """Stripes of as many directions as there are classes, in noise: something to learn."""
    generator = np.random.default_rng(0)
    labels = np.arange(count, dtype=np.int32) % classes
    grid = np.linspace(-1, 1, size)
    angle = np.pi * labels[:, None, None] / classes
    stripes = np.sin(8 * (np.cos(angle) * grid[:, None] + np.sin(angle) * grid))[..., None]
    pixels = (0.6 * stripes + 0.3 * generator.standard_normal((count, size, size, channels))).clip(-1, 1)
    train, test = np.split(np.arange(count), [count * 2 // 3])
    return CnnImages(pixels.astype(np.float32), labels, train, test, classes)


class MaskedCnn(nn.Module):
    """The network of the zoo from torch's own layers, with given dropout masks."""

    def __init__(self, channels, classes, activation):
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(i, 16, 3, stride=2) for i in (channels, 16, 16))
        self.dense = nn.Linear(16, classes)
        self.activation = {"relu": nn.ReLU(), "tanh": nn.Tanh()}[activation]

    def forward(self, x, masks):
        start = 0
        for convolution in self.convolutions:
            x = self.activation(convolution(x))
            height, width = x.shape[2:]
            mask = masks[:, start : start + height * width].mT.unflatten(2, (height, width))
            x, start = x * mask, start + height * width
        return self.dense(x.mean((2, 3)))


def train_alone(images, draws, epochs, batch_size, dtype):
    """One network with torch's modules and optimisers, as anyone would write it."""
    settings = draws.settings
    module = MaskedCnn(images.pixels.shape[3], images.num_classes, settings.activation).to(dtype)
    start = torch.from_numpy(draws.initial_weights(images.spec)).to(dtype)
    nn.utils.vector_to_parameters(start, module.parameters())
    groups = [
        {"params": [p for p in module.parameters() if p.ndim > 1], "weight_decay": 2 * settings.l2reg},
        {"params": [p for p in module.parameters() if p.ndim == 1]},
    ]
    rate = settings.learning_rate
    optimizer = {
        "sgd": lambda: torch.optim.SGD(groups, lr=rate),
        "adam": lambda: torch.optim.Adam(groups, lr=rate, eps=1e-7),
        "rmsprop": lambda: torch.optim.RMSprop(groups, lr=rate, alpha=0.9, eps=1e-7),
    }[settings.optimizer]()
    subset = images.train[draws.subset(len(images.train))]
    steps, size = num_batches(len(subset), batch_size)
    pixels, labels = torch.from_numpy(images.pixels).to(dtype).movedim(3, 1), torch.from_numpy(images.labels).long()
    positions, side = 0, pixels.shape[2]
    for _ in range(3):
        side = (side - 3) // 2 + 1
        positions += side**2
    for epoch in range(epochs):
        order = torch.from_numpy(draws.order(subset, epoch))
        for step in range(steps):
            batch = order[step * size : (step + 1) * size]
            masks = dropout_masks(draws.dropout_key, epoch * steps + step, settings.dropout, size, positions)
            optimizer.zero_grad()
            F.cross_entropy(module(pixels[batch], torch.from_numpy(masks).to(dtype)), labels[batch]).backward()
            optimizer.step()
    metrics = []
    with torch.no_grad():
        for which in (subset, images.test):
            logits = module(pixels[which], torch.ones(len(which), positions, 16, dtype=dtype))
            right = (logits.argmax(1) == labels[which]).double().mean()
            metrics += [F.cross_entropy(logits, labels[which]).item(), right.item()]
    return nn.utils.parameters_to_vector(module.parameters()).detach(), metrics


def test_a_batch_of_networks_trains_like_each_alone_in_double_precision():
    images, items = make_images(), range(16)
    together = train_cnns(images, items, epochs=3, batch_size=8, engine="torch", dtype=torch.float64)
    assert {t.settings.optimizer for t in together} == set(OPTIMIZERS)
    assert {t.settings.activation for t in together} == set(ACTIVATIONS)
    for trained in together:
        weights, metrics = train_alone(images, trained.draws, 3, 8, torch.float64)
        torch.testing.assert_close(torch.from_numpy(trained.weights[-1]), weights, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(trained.metrics[-1], metrics, rtol=1e-9)
        moved = np.abs(trained.weights[-1] - trained.weights[0]).max()
        assert moved > 1e-4


@needs_compiler
@pytest.mark.parametrize(("size", "channels", "classes"), [(17, 1, 4), (32, 3, 10), (15, 1, 2), (28, 1, 17)])
def test_the_native_engine_trains_like_each_network_alone(size, channels, classes):
    images = make_images(120, size, channels, classes)
    for trained in train_cnns(images, range(16), epochs=2, batch_size=10, engine="native"):
        weights, metrics = train_alone(images, trained.draws, 2, 10, torch.float64)
        # Where gradients vanish, Adam and RMSprop divide rounding errors by rounding errors: a few weights may differ.
        difference = np.abs(trained.weights[-1] - weights.numpy())
        scale = np.abs(weights.numpy()).max()
        assert np.quantile(difference, 0.9) < 1e-4 * scale, trained.settings
        assert difference.max() < 0.02 * scale, trained.settings
        np.testing.assert_allclose(trained.metrics[-1, [0, 2]], np.array(metrics)[[0, 2]], rtol=2e-3)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_network_depends_on_its_item_alone(engine):
    images = make_images()
    options = {"epochs": 2, "batch_size": 16, "engine": engine}
    together = train_cnns(images, range(6), **options)
    alone = train_cnns(images, [4], **options)[0]
    np.testing.assert_allclose(alone.weights, together[4].weights, rtol=1e-4, atol=1e-6)
    if engine == "native":
        assert np.array_equal(alone.weights, together[4].weights)
    other = train_cnns(images, [4], seed=1, **options)[0]
    assert other.settings != alone.settings


@pytest.mark.parametrize("engine", ENGINES)
def test_metrics_are_those_of_the_module_and_of_its_permutations(engine):
    images = make_images(size=20)
    spec = images.spec
    pixels, labels = torch.from_numpy(images.pixels).movedim(3, 1), torch.from_numpy(images.labels).long()
    for trained in train_cnns(images, range(6), epochs=4, batch_size=8, engine=engine):
        features = WeightSpaceFeatures.from_vectors(spec, torch.from_numpy(trained.weights))
        permutation = NeuronPermutation.random(spec, "HNP")
        template = build_cnn(1, 4, activation=trained.settings.activation)
        for network in (features[4], permutation(features[4])):
            module = network.to_modules(template)[0].eval()
            with torch.no_grad():
                logits = module(pixels[images.test])
            assert (logits.argmax(1) == labels[images.test]).float().mean() == pytest.approx(trained.metrics[-1, 3])
            loss = F.cross_entropy(logits, labels[images.test]).item()
            assert loss == pytest.approx(trained.metrics[-1, 2], rel=1e-4)
        assert not torch.equal(permutation(features[4]).tensor, features[4].tensor)


@pytest.mark.parametrize("engine", ENGINES)
def test_networks_learn(engine):
    trained = train_cnns(make_images(240), range(8), epochs=10, batch_size=16, engine=engine)
    accuracies = [t.metrics[-1, 3] for t in trained]
    assert max(accuracies) > 0.9
    assert min(accuracies) < 0.7


@pytest.mark.parametrize("engine", ENGINES)
def test_diverged_networks_are_replaced_by_others(engine, monkeypatch):
    settings = CnnDraws.settings.func

    def wild(self):
        drawn = settings(self)
        rate = 1e30 if self.item == 1 and self.attempt < 2 else drawn.learning_rate
        return CnnSettings(**{**drawn.to_dict(), "learning_rate": rate, "optimizer": "sgd", "activation": "relu"})

    monkeypatch.setattr(CnnDraws, "settings", property(wild))
    counts = []
    trained = train_cnns(make_images(), range(3), epochs=2, batch_size=16, engine=engine, progress=counts.append)
    assert [t.draws.item for t in trained] == [0, 1, 2]
    assert [t.draws.attempt for t in trained] == [0, 2, 0]
    assert all(t.is_finite for t in trained)
    assert sum(counts) == 3


def test_settings_fill_their_ranges():
    settings = [CnnDraws(3, item).settings for item in range(2000)]
    for name, choices in [
        ("activation", ACTIVATIONS),
        ("optimizer", OPTIMIZERS),
        ("w_init", INITIALIZERS),
        ("train_fraction", TRAIN_FRACTIONS),
    ]:
        values = [getattr(s, name) for s in settings]
        assert min(values.count(choice) for choice in choices) > 0.85 * len(values) / len(choices)
    for name, low, high in [
        ("learning_rate", np.log(5e-4), np.log(5e-2)),
        ("l2reg", np.log(1e-8), np.log(1e-2)),
        ("init_std", np.log(1e-3), np.log(0.5)),
    ]:
        values = np.log([getattr(s, name) for s in settings])
        assert low <= values.min() < values.max() <= high
        assert values.mean() == pytest.approx((low + high) / 2, abs=0.03 * (high - low))
    dropout = np.array([s.dropout for s in settings])
    assert 0 <= dropout.min() < 0.01
    assert 0.69 < dropout.max() <= 0.7
    assert len(set(settings)) == 2000


@pytest.mark.parametrize("w_init", INITIALIZERS)
def test_initial_weights_have_the_scale_of_their_initializer(w_init):
    spec = cnn_spec()
    item = next(i for i in range(100) if CnnDraws(0, i).settings.w_init == w_init)
    draws = CnnDraws(0, item)
    features = WeightSpaceFeatures.from_vectors(spec, torch.from_numpy(draws.initial_weights(spec))[None])
    assert all(not bias.any() for bias in features.biases)
    weight = features.weights[1].flatten()
    std = draws.settings.init_std
    expected = {"glorot_normal": (2 / 288) ** 0.5, "he_normal": (2 / 144) ** 0.5, "orthogonal": (1 / 144) ** 0.5}
    # A normal distribution cut at two standard deviations is narrower.
    expected |= {"RandomNormal": std, "TruncatedNormal": 0.8796 * std}
    assert weight.std().item() == pytest.approx(expected[w_init], rel=0.05)
    assert abs(weight.mean().item()) < 0.1 * expected[w_init]
    if w_init == "TruncatedNormal":
        assert weight.abs().max() <= 2 * std
    if w_init == "orthogonal":
        rows = features.weights[1].reshape(16, 144)
        torch.testing.assert_close(rows @ rows.T, torch.eye(16, dtype=torch.float64))
        columns = features.weights[0].reshape(16, 9)
        torch.testing.assert_close(columns.T @ columns, torch.eye(9, dtype=torch.float64))


def test_dropout_masks_are_fair_and_differ_between_steps_and_networks():
    masks = [dropout_masks(key, step, 0.25, 50, 283) for key, step in [(5, 0), (5, 1), (6, 0)]]
    for mask in masks:
        assert set(np.unique(mask)) == {0.0, 1 / 0.75}
        assert (mask == 0).mean() == pytest.approx(0.25, abs=0.003)
        assert np.abs((mask == 0).mean((0, 1)) - 0.25).max() < 0.02
    for a, b in [(0, 1), (0, 2), (1, 2)]:
        assert np.corrcoef(masks[a].ravel(), masks[b].ravel())[0, 1] == pytest.approx(0, abs=0.01)
    assert (dropout_masks(1, 2, 0.0, 3, 4) == 1).all()


def test_orders_are_permutations_of_the_networks_own_images():
    draws = CnnDraws(0, 3)
    subset = draws.subset(1000)
    assert len(subset) == len(set(subset.tolist())) == int(draws.settings.train_fraction * 1000)
    first, second = draws.order(subset, 0), draws.order(subset, 1)
    assert sorted(first) == sorted(second) == sorted(subset)
    assert not np.array_equal(first, second)


def test_checkpoints_are_the_published_ones():
    assert checkpoint_epochs(86) == [0, 1, 2, 3, 20, 40, 60, 80, 86]
    assert checkpoint_epochs(2) == [0, 1, 2]
    assert checkpoint_epochs(20) == [0, 1, 2, 3, 20]


def test_the_module_has_the_spec_of_the_zoo():
    assert NetworkSpec.from_module(build_cnn(3, 7, activation="tanh", dropout=0.2)) == cnn_spec(3, 7)
    assert cnn_spec().num_entries == 4970


def test_engines_that_do_not_work_here_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="'auto', 'native' or 'torch', but got 'fast'"):
        choose_engine("fast", 1)
    with pytest.raises(ValueError, match="images of 1 or 3 channels"):
        choose_engine("native", 2)
    assert choose_engine("auto", 2) == "torch"
