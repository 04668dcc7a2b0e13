import pytest
import torch
from torch import nn

from neuralfunctionals.inr import Siren, image_values, render_images
from neuralfunctionals.models import NFT, Inr2Array
from neuralfunctionals.runs import open_run
from neuralfunctionals.tasks import (
    EvalBatches,
    OptimizerConfig,
    ReconstructTask,
    TrainingConfig,
    evaluate,
    interpolate,
    nearest,
    train,
)
from neuralfunctionals.tasks.inr2array.task import ReconstructBatch
from neuralfunctionals.weight_space import NetworkSpec, NeuronPermutation, WeightSpaceFeatures

SPEC = NetworkSpec.mlp([2, 32, 32, 1])
TINY = {
    "grid_size": 2,
    "latent_channels": 8,
    "channels": 8,
    "num_blocks": 1,
    "hidden_channels": 16,
    "num_heads": 2,
    "decoder_channels": 16,
}


def make_task(encoder="nft", **options):
    return ReconstructTask(Inr2Array(SPEC, encoder=encoder, **TINY), **options)


class Repeat(nn.Module):
    """The autoencoder that gives every patch the network itself."""

    spec, grid_size = SPEC, 4

    def encode(self, features):
        return features.to_vectors()[:, None].expand(-1, 16, -1)

    def decode(self, latents):
        return WeightSpaceFeatures.from_vectors(SPEC, latents.flatten(0, 1))

    def forward(self, features):
        return self.decode(self.encode(features))


@pytest.mark.parametrize("augment", ["none", "turns"])
def test_repeating_the_network_has_no_error_against_it_and_that_of_the_fit_against_the_image(sirens, augment):
    items = sirens.split("test")[:]
    options = {"augment": augment}
    for target, expected in (("inr", 0.0), ("image", None)):
        task = ReconstructTask(Repeat(), target=target, **options)
        batch = task.prepare(items)
        if expected is None:
            expected = (render_images(items.features, 28, 28) - image_values(items.image)).square().mean().item()
            assert 0 < expected < 1e-2
        assert task.loss(batch).item() == pytest.approx(expected, rel=1e-3, abs=1e-8)
        assert task.score(batch)["mse"].mean().item() == pytest.approx(expected, rel=1e-3, abs=1e-8)


def test_augmenting_turns_networks_and_images_together(sirens):
    task = make_task(target="image", augment="turns")
    batch = task.prepare(sirens[:16])
    turned = ReconstructBatch(*task.augmentation.turn_with(batch.features, batch.image))
    assert not torch.equal(turned.image, batch.image)
    torch.testing.assert_close(render_images(turned.features, 28, 28), turned.image, atol=0.5, rtol=0)
    assert task.loss(batch) != task.loss(batch)
    assert torch.equal(task.score(batch)["mse"], task.score(batch)["mse"])


@pytest.mark.parametrize("encoder", ["nft", "nfn"])
def test_latents_of_a_trained_model_do_not_see_the_order_of_neurons(sirens, tmp_path, encoder):
    task = make_task(encoder)
    train(task, sirens, tmp_path, TrainingConfig(steps=4, batch_size=8, val_every=2), progress=False)
    features = sirens[:5].features
    permutation = NeuronPermutation.random(SPEC, symmetry="HNP", generator=torch.Generator().manual_seed(1))
    latents = task.encode(features)
    assert latents.shape == (5, 4, 8)
    assert latents.std(0).max() > 1e-4
    torch.testing.assert_close(task.encode(permutation(features)), latents, atol=1e-5, rtol=0)


def test_a_users_modules_are_encoded_decoded_and_shown(sirens):
    task = make_task()
    features = sirens[[0, 1]].features
    modules = features.to_modules(Siren())
    latents = task.encode(modules)
    torch.testing.assert_close(latents, task.encode(features))
    torch.testing.assert_close(task.encode(modules[0]), latents[:1])
    weights = task.decode(latents)
    assert (len(weights), weights.spec) == (2 * 4, SPEC)
    shown = task.show(latents, 28, 28)
    torch.testing.assert_close(shown, task.samples(sirens[[0, 1]])["reconstruction"])
    assert task.show(latents, 45, 30).shape == (2, 45, 30, 1)
    top_left = render_images(weights[[0]], 28, 28)[0, :14, :14]
    torch.testing.assert_close(shown[0, :14, :14], top_left, atol=1e-5, rtol=1e-5)


def test_samples_are_what_a_picture_needs(sirens):
    samples = make_task().samples(sirens[:3])
    assert {name: tuple(s.shape) for name, s in samples.items()} == dict.fromkeys(
        ("image", "original", "reconstruction"), (3, 28, 28, 1)
    )
    torch.testing.assert_close(samples["original"], samples["image"], atol=0.5, rtol=0)


@pytest.mark.parametrize("paint_size", [7, 3])
def test_painted_patches_are_linear_in_their_latents_and_part_of_the_loss_alone(sirens, paint_size):
    torch.manual_seed(0)
    task = ReconstructTask(Inr2Array(SPEC, **TINY, paint_size=paint_size)).eval()
    batch = task.prepare(sirens[:3])
    model, side = task.model, 2 * paint_size
    latents = model.encode(batch.features)
    painted = model.paint(latents)
    patch = model.to_pixels(latents[1, 2]).view(paint_size, paint_size, 1)  # row 1, column 0 of two
    torch.testing.assert_close(painted[1, paint_size:, :paint_size], patch, atol=1e-6, rtol=1e-5)
    error = (painted - render_images(batch.features, side, side)).square().mean()
    torch.testing.assert_close(task.loss(batch), task.score(batch)["mse"].mean() + error)
    with pytest.raises(ValueError, match="this one has paint_size 0"):
        make_task().model.paint(latents)


def test_neighbours_and_the_line_between_latents():
    latents = torch.randn(20, 3, 4)
    indices, distances = nearest(latents, latents[[7, 2]] + 1e-3, k=4)
    assert indices[:, 0].tolist() == [7, 2]
    assert bool((distances.diff() >= 0).all())
    torch.testing.assert_close(distances[0, 3], (latents[7] + 1e-3 - latents[indices[0, 3]]).norm())
    line = interpolate(latents[0], latents[1], 5)
    torch.testing.assert_close(line[[0, 2, 4]], torch.stack([latents[0], latents[:2].mean(0), latents[1]]))


def test_refuses_what_it_cannot_reconstruct(sirens):
    with pytest.raises(ValueError, match="Expected an autoencoder such as Inr2Array, but NFT has no decode, grid_size"):
        ReconstructTask(NFT(SPEC, channels=8, num_blocks=1, num_heads=2))
    with pytest.raises(ValueError, match="target to be 'inr' or 'image', but got 'pixels'"):
        make_task(target="pixels")
    with pytest.raises(ValueError, match=r"takes networks .*32.* but the input has .*16"):
        make_task().encode(Siren([2, 16, 16, 1]))
    with pytest.raises(ValueError, match="Expected k from 1 to 2, the number of arrays, but got 3"):
        nearest(torch.zeros(2, 1, 1), torch.zeros(1, 1, 1), k=3)


@pytest.mark.slow
def test_overfits_eight_networks(sirens, tmp_path):
    few = sirens.select([*range(8), int((sirens.column("split") == 1).nonzero()[0])])
    options = {"channels": 32, "hidden_channels": 64, "latent_channels": 32, "decoder_channels": 64}
    optimizer = OptimizerConfig("adamw", lr=3e-3, schedule="cosine", warmup_steps=20, clip_norm=1.0)
    task = ReconstructTask(Inr2Array(SPEC, **{**TINY, **options}), optimizer=optimizer)
    before = evaluate(task, EvalBatches(few.split("train"), task.prepare, batch_size=8))
    train(task, few, tmp_path, TrainingConfig(steps=400, batch_size=8, val_every=200), progress=False)
    task.load_state_dict(torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"])
    after = evaluate(task, EvalBatches(few.split("train"), task.prepare, batch_size=8))
    assert after["mse"] < 0.2 * before["mse"]


def test_latents_that_are_not_finite_are_refused():
    sirens = WeightSpaceFeatures.from_modules([Siren(seed=n) for n in range(3)])
    for weight in sirens.weights:  # large biases are refused before, as their phases are lost
        weight[1] *= 1e37
    task = open_run("digits-inr2array").task
    assert bool(task.encode(sirens[:1]).isfinite().all())
    with pytest.raises(ValueError, match="output for network 1 is not finite"):
        task.encode(sirens)
    with pytest.raises(ValueError, match="output for network 1 is not finite"):
        open_run("digits-classify").task.classify(sirens)
