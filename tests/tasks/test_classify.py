import numpy as np
import pytest
import torch

from neuralfunctionals.data import Store, StoreHeader, WeightDataset
from neuralfunctionals.inr import Siren, render_images
from neuralfunctionals.models import NFN, NFT, Canonical, DWSNet, LatentClassifier, NeuronGraphNet, SpatialNFN, StatNN
from neuralfunctionals.tasks import (
    ClassifyTask,
    EvalBatches,
    OptimizerConfig,
    TrainBatches,
    TrainingConfig,
    evaluate,
    train,
)
from neuralfunctionals.tasks.classify.task import ClassifyBatch
from neuralfunctionals.weight_space import NetworkSpec, canonicalize

SPEC = NetworkSpec.mlp([2, 32, 32, 1])
TINY = {"channels": 8, "num_blocks": 1, "num_heads": 2, "hidden_channels": 16}
ON_WEIGHTS = {
    "dws": lambda: DWSNet.classification(SPEC, channels=4, num_layers=2),
    "nfn-np": lambda: NFN.classification(SPEC, channels=(4,), num_frequencies=4, head_channels=(8,)),
    "nfn-hnp": lambda: NFN.classification(SPEC, "HNP", channels=(4,), num_frequencies=4, head_channels=(8,)),
    "spatial-nfn": lambda: SpatialNFN(SPEC, channels=(4,), num_frequencies=4, grid_size=3, latent_channels=8),
    "nft": lambda: NFT(SPEC, pooling="cross_attention", out_channels=10, latent_channels=4, head_channels=(8,), **TINY),
    "neuron-graph": lambda: NeuronGraphNet.classification(SPEC, channels=8, num_rounds=2),
    "statnn": lambda: StatNN(SPEC, out_channels=10, head_channels=(8,)),
    "canonical": lambda: Canonical(DWSNet.classification(SPEC, channels=4, num_layers=1)),
}


def latent_classifier(num_classes=10):
    return LatentClassifier(3, 4, num_classes, channels=8, num_blocks=1, num_heads=2, hidden_channels=16)


@pytest.fixture(scope="module")
def latents(tmp_path_factory):
    """Latent arrays near one of ten centres, their class."""
    path = tmp_path_factory.mktemp("data") / "latents"
    generator = np.random.default_rng(0)
    label = np.arange(60) % 10
    centres, noise = generator.standard_normal((10, 3, 4)), generator.standard_normal((60, 3, 4))
    values = (2 * centres[label] + 0.1 * noise).astype(np.float32)
    tensors = {"latents": values, "label": label, "split": (np.arange(60) // 40).astype(np.int8)}
    Store.create(path, StoreHeader(60, 60)).write_shard(0, tensors, [{}] * 60)
    return WeightDataset(path)


@pytest.mark.parametrize("name", ON_WEIGHTS)
def test_every_model_learns_from_weights_and_is_measured(sirens, tmp_path, name):
    task = ClassifyTask(ON_WEIGHTS[name]())
    train(task, sirens, tmp_path, TrainingConfig(steps=2, batch_size=8), progress=False)
    test = sirens.split("test")
    metrics = evaluate(task, EvalBatches(test, task.prepare, batch_size=3))
    right = (task.classify(test[:].features) == test[:].label).double().mean().item()
    assert metrics["accuracy"] == pytest.approx(right)
    assert metrics["cross_entropy"] > 0


def test_samples_are_images_true_classes_and_those_read(sirens, latents):
    task = ClassifyTask(ON_WEIGHTS["dws"]())
    samples = task.samples(sirens[:5])
    assert samples["image"].shape == (5, 28, 28, 1)
    assert torch.equal(samples["label"], sirens[:5].label)
    assert torch.equal(samples["predicted"], task.classify(sirens[:5].features))
    assert ClassifyTask(latent_classifier(), source="latents").samples(latents[:5]).keys() == {"label", "predicted"}


def test_latents_are_learned_from_a_store_without_networks(latents, tmp_path):
    optimizer = OptimizerConfig("adamw", lr=1e-2, schedule="cosine")
    task = ClassifyTask(latent_classifier(), source="latents", mixup_alpha=0.2, optimizer=optimizer)
    train(task, latents, tmp_path, TrainingConfig(steps=60, batch_size=20, val_every=20), progress=False)
    metrics = evaluate(task, EvalBatches(latents.split("train"), task.prepare, batch_size=20))
    assert metrics["accuracy"] > 0.5
    assert task.classify(latents[:4].latents).shape == (4,)


def test_mixup_mixes_inputs_and_losses_in_one_proportion():
    class Sum(torch.nn.Module):
        """Logits that are the inputs, kept to be looked at."""

        def forward(self, latents):
            self.seen = latents
            return latents[:, 0]

    task = ClassifyTask(Sum(), source="latents", num_classes=4, mixup_alpha=1.0)
    label = torch.arange(4)
    loss = task.loss(ClassifyBatch(torch.eye(4)[:, None], label))
    shares = task.model.seen[:, 0]  # how much of each item is in each mixed one
    torch.testing.assert_close(shares.sum(1), torch.ones(4))
    expected = -(shares * shares.log_softmax(-1)).sum(1).mean()
    torch.testing.assert_close(loss, expected)
    assert len(shares.unique()) > 2


def test_modules_of_a_user_are_classified():
    task = ClassifyTask(ON_WEIGHTS["dws"]())
    modules = [Siren() for _ in range(3)]
    classes = task.classify(modules)
    assert classes.shape == (3,)
    assert torch.equal(task.classify(modules[1]), classes[[1]])


def test_refuses_data_that_the_model_cannot_read(sirens, latents, tmp_path):
    config = TrainingConfig(steps=2, batch_size=8)
    cases = [
        (ClassifyTask(ON_WEIGHTS["dws"]()), latents, "Expected weights in .* To classify latents, use --model latent"),
        (
            ClassifyTask(latent_classifier(), source="latents"),
            sirens,
            "Expected latents in .* Make them with nf encode",
        ),
        (
            ClassifyTask(latent_classifier(4), source="latents", num_classes=4),
            latents,
            "from 0 to 3, but .* has 0 to 9",
        ),
        (ClassifyTask(StatNN(NetworkSpec.mlp([2, 3, 1]))), sirens, "takes networks"),
    ]
    for task, dataset, message in cases:
        with pytest.raises(ValueError, match=message):
            train(task, dataset, tmp_path, config, progress=False)
    with pytest.raises(ValueError, match="'weights' or 'latents', but got 'pixels'"):
        ClassifyTask(latent_classifier(), source="pixels")
    with pytest.raises(ValueError, match="at least two classes and a mixup_alpha of 0 or more, but got 10 and -1"):
        ClassifyTask(latent_classifier(), mixup_alpha=-1)


def test_networks_are_canonical_as_they_are_read_and_training_is_the_same(sirens, tmp_path, monkeypatch):
    read, trained = {}, {}
    for name in ("arranged", "plain"):
        torch.manual_seed(0)
        task = ClassifyTask(ON_WEIGHTS["canonical"]())
        if name == "plain":
            monkeypatch.setattr(ClassifyTask, "canonical", None)
        train(task, sirens, tmp_path / name, TrainingConfig(steps=4, batch_size=8, val_every=4), progress=False)
        trained[name] = task.model.state_dict()
        batches = TrainBatches(sirens, task.prepare, canonical=task.canonical, batch_size=8, seed=0, length=1)
        read[name] = next(iter(batches)).inputs
    assert not read["arranged"].tensor.equal(read["plain"].tensor)
    assert read["arranged"].tensor.equal(canonicalize(read["plain"])[0].tensor)
    assert all(value.equal(trained["plain"][key]) for key, value in trained["arranged"].items())


@pytest.mark.parametrize("augment", ["affine", "turns"])
def test_training_moves_networks_and_evaluation_does_not(sirens, augment):
    task = ClassifyTask(StatNN(SPEC, out_channels=10, head_channels=(8,)), augment=augment)
    batch = task.prepare(sirens[:16])
    torch.manual_seed(0)
    assert task.loss(batch) != task.loss(batch)
    assert torch.equal(task.score(batch)["cross_entropy"], task.score(batch)["cross_entropy"])


@pytest.mark.bad_input
def test_refuses_to_move_what_cannot_be_moved():
    for options, message in (
        ({"source": "latents", "augment": "affine"}, "only networks can be moved"),
        ({"augment": "signs"}, "'none', 'affine' or 'turns', but got 'signs'"),
        ({"augment": "turns", "mirror": True}, "mirror with augment 'affine'"),
        ({"source": "latents", "decode_size": 4}, "positive with source 'weights' and without mixup"),
        ({"label_smoothing": 1.0}, "from 0 to below 1"),
        ({"decode_weight": -1.0}, "decode_weight to be 0 or more, but got -1.0"),
    ):
        with pytest.raises(ValueError, match=message):
            ClassifyTask(latent_classifier(), **options)
    drawing = NeuronGraphNet.classification(SPEC, channels=8, out_channels=10 + 16, picture_size=4)
    with pytest.raises(ValueError, match="Expected decode_size 4, the side of the picture .* but got 3"):
        ClassifyTask(drawing, decode_size=3)
    with pytest.raises(ValueError, match="Expected more than 16 output channels, .* but got 10"):
        NeuronGraphNet.classification(SPEC, channels=8, picture_size=4)


def test_predicting_a_small_picture_is_part_of_the_loss_alone(sirens):
    torch.manual_seed(0)
    model = StatNN(SPEC, out_channels=10 + 9, head_channels=(8,))
    task = ClassifyTask(model, decode_size=3, decode_weight=5.0).eval()
    batch = task.prepare(sirens[:8])
    assert task(batch.inputs).shape == (8, 10)
    shown = render_images(batch.inputs, 3, 3).flatten(1)
    error = 5 * (task.model(batch.inputs)[:, 10:] - shown).square().mean()
    expected = torch.nn.functional.cross_entropy(task(batch.inputs), batch.label) + error
    torch.testing.assert_close(task.loss(batch), expected)
    torch.testing.assert_close(task.score(batch)["cross_entropy"].mean(), expected - error)


@pytest.mark.slow
def test_overfits_eight_networks(sirens, tmp_path):
    few = sirens.select([*range(8), int((sirens.column("split") == 1).nonzero()[0])])
    optimizer = OptimizerConfig(lr=3e-3, schedule="cosine", warmup_steps=10, clip_norm=1.0)
    task = ClassifyTask(NeuronGraphNet.classification(SPEC, channels=32), optimizer=optimizer)
    train(task, few, tmp_path, TrainingConfig(steps=200, batch_size=8, val_every=100), progress=False)
    task.load_state_dict(torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"])
    assert evaluate(task, EvalBatches(few.split("train"), task.prepare, batch_size=8))["accuracy"] == 1
