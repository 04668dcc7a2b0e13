import re
from itertools import combinations

import pytest
import torch
from torch import nn

from neuralfunctionals.data import build_cnn
from neuralfunctionals.models import NFN, NFT, StatNN
from neuralfunctionals.run_directory import RunDirectory
from neuralfunctionals.tasks import (
    EvalBatches,
    GeneralizationTask,
    OptimizerConfig,
    TrainingConfig,
    evaluate,
    train,
)
from neuralfunctionals.tasks.generalization.task import accuracy_metrics
from neuralfunctionals.weight_space import NetworkSpec, NeuronPermutation

SPEC = NetworkSpec.cnn([1, 16, 16, 16], (3, 3), dense=[10])
NFT_TINY = {"channels": 8, "num_blocks": 1, "hidden_channels": 8, "num_heads": 2, "head_channels": [8]}


class Constant(nn.Module):
    """Says the same of every network."""

    spec = SPEC

    def __init__(self, logit=0.0, outputs=1):
        super().__init__()
        self.logit = nn.Parameter(torch.full((outputs,), logit))

    def forward(self, features):
        return self.logit.expand(len(features), -1)


def slow_tau(predicted, true):
    """Kendall's tau-b, pair by pair."""
    pairs = list(combinations(range(len(true)), 2))
    signs = [(torch.sign(predicted[i] - predicted[j]), torch.sign(true[i] - true[j])) for i, j in pairs]
    agreement = sum(float(p * t) for p, t in signs)
    return agreement / (sum(float(p != 0) for p, _ in signs) * sum(float(t != 0) for _, t in signs)) ** 0.5


def test_the_metrics_are_those_of_their_definitions():
    true = torch.tensor([0.1, 0.1, 0.35, 0.5, 0.62, 0.7, 0.7, 0.71])
    predicted = torch.tensor([0.2, 0.1, 0.3, 0.55, 0.5, 0.5, 0.9, 0.6])
    metrics = accuracy_metrics(predicted, true)
    assert metrics["kendall_tau"] == pytest.approx(slow_tau(predicted, true))
    assert metrics["l1"] == pytest.approx((predicted - true).abs().mean().item())
    assert metrics["r2"] == pytest.approx(1 - (predicted - true).var().item() / true.var().item(), abs=0.05)
    assert accuracy_metrics(true, true) == pytest.approx({"kendall_tau": 1, "r2": 1, "l1": 0})
    assert accuracy_metrics(true**3, true)["kendall_tau"] == pytest.approx(1)
    assert accuracy_metrics(1 - true, true)["kendall_tau"] == pytest.approx(-1)
    assert accuracy_metrics(true.mean().expand(8), true)["r2"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("predicted", "true"), [([0.5, 0.5, 0.5], [0.1, 0.2, 0.3]), ([0.1, 0.2], [0.4, 0.4]), ([0.3], [0.3])]
)
def test_what_orders_nothing_has_no_rank_correlation(predicted, true):
    metrics = accuracy_metrics(torch.tensor(predicted), torch.tensor(true))
    assert metrics["kendall_tau"] == 0
    assert metrics["r2"] <= 0


@pytest.mark.parametrize("loss", ["bce", "mse"])
def test_the_best_constant_is_the_mean_accuracy(zoo, loss):
    task = GeneralizationTask(Constant(), loss=loss)
    batch = task.prepare(zoo[:])
    logits = torch.linspace(-4, 4, 801)
    losses = [GeneralizationTask(Constant(x.item()), loss=loss).loss(batch).item() for x in logits]
    best = logits[torch.tensor(losses).argmin()].sigmoid()
    assert best.item() == pytest.approx(batch.accuracy.mean().item(), abs=0.01)


def test_modules_features_and_batches_get_the_same_predictions(zoo):
    task = GeneralizationTask(NFT(SPEC, pooling="HNP", **NFT_TINY))
    features = zoo[:].features
    together = task.predict(features)
    assert together.shape == (len(zoo),)
    assert 0 < together.min() < together.max() < 1
    modules = features[:3].to_modules(build_cnn(activation="tanh", dropout=0.5))
    torch.testing.assert_close(task.predict(modules), together[:3])
    assert task.predict(modules[1]) == pytest.approx(together[1].item(), abs=1e-6)
    shown = task.samples(zoo[:5])
    torch.testing.assert_close(shown["predicted"], together[:5])
    torch.testing.assert_close(shown["true"], zoo.column("test_accuracy")[:5])


def test_a_permuted_cnn_gets_the_same_prediction(zoo):
    task = GeneralizationTask(NFT(SPEC, pooling="cross_attention", **NFT_TINY).double())
    features = zoo[:4].features.to(torch.float64)
    expected = task.predict(features)
    for seed in range(3):
        permutation = NeuronPermutation.random(SPEC, "HNP", generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(task.predict(permutation(features)), expected, atol=1e-10, rtol=0)


def test_refuses_what_it_cannot_predict(zoo, sirens):
    with pytest.raises(ValueError, match="one of bce, mse, but got 'l1'"):
        GeneralizationTask(Constant(), loss="l1")
    with pytest.raises(ValueError, match=r"needs networks with a known test_accuracy, .* nf zoo"):
        GeneralizationTask(Constant()).prepare(sirens[:2])
    for model in (Constant(outputs=2), NFN(SPEC, channels=[2])):
        with pytest.raises(ValueError, match="one number for each of 2 networks, but got"):
            GeneralizationTask(model).predict(zoo[:2].features)
    task = GeneralizationTask(Constant())
    with pytest.raises(ValueError, match=r"takes networks 1->16 .* the input has networks 3->16"):
        task.predict(build_cnn(3))
    broken = build_cnn()
    nn.init.constant_(broken[0].weight, float("inf"))
    with pytest.raises(ValueError, match="Expected finite values"):
        task.predict(broken)


@pytest.mark.parametrize("size", [1e25, 3e37])
def test_a_prediction_that_is_not_finite_is_refused(zoo, size):
    features = zoo[:3].features
    features.tensor[2] *= size / features.tensor[2].abs().max().item()
    message = re.escape(f"output for network 2 is not finite: its entries, up to {size:.3g} in size")
    with pytest.raises(ValueError, match=message):
        GeneralizationTask(StatNN(SPEC, head_channels=[8])).predict(features)


def test_no_networks_have_no_predictions(zoo):
    assert GeneralizationTask(StatNN(SPEC, head_channels=[8])).predict(zoo[:0].features).shape == (0,)


def test_the_best_model_is_that_of_the_highest_rank_correlation(zoo, tmp_path):
    task = GeneralizationTask(StatNN(SPEC, head_channels=[32]), optimizer=OptimizerConfig(lr=1e-2))
    train(task, zoo, tmp_path, TrainingConfig(steps=20, batch_size=8, val_every=4), progress=False)
    values = [row["val/kendall_tau"] for row in RunDirectory(tmp_path).read_curve() if "val/kendall_tau" in row]
    assert len(values) == 5
    scores = evaluate(task, EvalBatches(zoo.split("val"), task.prepare, batch_size=3))
    assert scores["kendall_tau"] == pytest.approx(max(values))
    assert scores.keys() == {"kendall_tau", "r2", "l1"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda: NFT(SPEC, pooling="HNP", **{**NFT_TINY, "channels": 16, "head_channels": [64]}),
        lambda: NFN(SPEC, symmetry="HNP", channels=[8, 8], pooling="HNP", head_channels=[64]),
        lambda: StatNN(SPEC, head_channels=[256]),
    ],
    ids=["nft", "nfn-hnp", "statnn"],
)
def test_overfits_eight_networks(zoo, tmp_path, make):
    train_items = (zoo.column("split") == 0).nonzero()[:8, 0]
    few = zoo.select([*train_items.tolist(), int((zoo.column("split") == 1).nonzero()[0])])
    task = GeneralizationTask(make(), optimizer=OptimizerConfig(lr=1e-2, schedule="cosine", clip_norm=1.0))
    train(task, few, tmp_path, TrainingConfig(steps=300, batch_size=8, val_every=300), progress=False)
    scores = evaluate(task, EvalBatches(few.split("train"), task.prepare, batch_size=8))
    assert scores["kendall_tau"] > 0.8
    assert scores["r2"] > 0.9
