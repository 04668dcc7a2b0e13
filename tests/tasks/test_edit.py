import re

import numpy as np
import pytest
import torch
from torch import nn

from neuralfunctionals.data import EDITS
from neuralfunctionals.inr import Siren, image_grid, render
from neuralfunctionals.models import NFN, NFT
from neuralfunctionals.tasks import EditTask, EvalBatches, OptimizerConfig, TrainingConfig, evaluate, train
from neuralfunctionals.weight_space import NetworkSpec, NeuronPermutation, WeightSpaceFeatures

SPEC = NetworkSpec.mlp([2, 32, 32, 1])
TINY = {"channels": 8, "num_blocks": 1, "hidden_channels": 16, "num_heads": 2, "output_scale": 0.1}


def make_task(model=None, **options):
    return EditTask(NFT(SPEC, **TINY) if model is None else model, edit="dilate", **options)


class Nothing(nn.Module):
    """The edit that changes nothing."""

    spec = SPEC

    def forward(self, features):
        return features * 0.0


@pytest.mark.parametrize(
    "model", [NFT(SPEC, **TINY), NFN(SPEC, channels=(4, 4)), NFN(SPEC, symmetry="HNP", channels=(4,))]
)
def test_editing_permuted_weights_is_permuting_edited_weights(model):
    task = make_task(model.double())
    sirens = WeightSpaceFeatures.from_modules([Siren().double() for _ in range(3)])
    permutation = NeuronPermutation.random(SPEC, symmetry="HNP", generator=torch.Generator().manual_seed(1))
    edited = task.edit(sirens)
    assert not torch.allclose(edited.tensor, sirens.tensor)
    torch.testing.assert_close(task.edit(permutation(sirens)).tensor, permutation(edited).tensor, atol=1e-10, rtol=0)


def test_the_target_is_the_published_edit_in_the_range_of_the_images(sirens):
    items = sirens[:5]
    batch = make_task().prepare(items)
    expected = EDITS["dilate"](items.image.numpy())
    np.testing.assert_array_equal(np.rint((batch.target.numpy() + 1) * 127.5).astype(np.uint8), expected)
    assert batch.target.min() == -1
    assert batch.target.max() <= 1


def test_no_edit_scores_the_error_of_the_untouched_network(sirens):
    task = make_task(Nothing())
    scores = evaluate(task, EvalBatches(sirens.split("test"), task.prepare, batch_size=3))
    assert scores["mse"] == pytest.approx(scores["mse_no_edit"])
    items = sirens.split("test")[:]
    values = render(items.features, image_grid(28, 28)).view(-1, 28, 28, 1)
    assert scores["mse"] == pytest.approx((values - task.prepare(items).target).square().mean().item(), rel=1e-4)


def test_a_module_goes_in_and_an_edited_module_comes_out_that_shows_what_the_batch_renderer_shows(sirens):
    task = make_task()
    features = sirens[[0, 1]].features
    modules = features.to_modules(Siren())
    edited = task.edit(modules)
    shown = render(task.edit(features), image_grid(28, 28))
    for module, values in zip(edited, shown, strict=True):
        assert isinstance(module, Siren)
        torch.testing.assert_close(module(image_grid(28, 28)).detach(), values, atol=1e-5, rtol=1e-5)
    before = render(features, image_grid(28, 28))
    assert (shown - before).abs().max() > 1e-3
    torch.testing.assert_close(modules[0](image_grid(28, 28)).detach(), before[0], atol=1e-5, rtol=1e-5)
    alone = task.edit(modules[0])
    torch.testing.assert_close(alone.state_dict(), edited[0].state_dict())


def test_refuses_networks_that_the_editor_was_not_built_for():
    with pytest.raises(ValueError, match=r"takes networks .*32.* but the input has .*16"):
        make_task().edit(Siren([2, 16, 16, 1]))
    with pytest.raises(ValueError, match="Expected an edit, one of .*dilate.* but got 'sharpen'"):
        EditTask(Nothing(), edit="sharpen")
    broken = Siren()
    nn.init.constant_(broken.layers[0].weight, float("nan"))
    with pytest.raises(ValueError, match="Expected finite values"):
        make_task().edit(broken)


@pytest.mark.parametrize("model", [NFT(SPEC, **TINY), NFN(SPEC, channels=(4, 4))])
@pytest.mark.parametrize("size", [1e19, 1e25, 3e37])
def test_an_edit_that_is_not_finite_is_refused(model, size):
    sirens = WeightSpaceFeatures.from_modules([Siren(seed=n) for n in range(3)])
    sirens.tensor[1] *= size / sirens.tensor[1].abs().max().item()
    task = make_task(model)
    edited = task(sirens)
    if bool(edited.tensor.isfinite().all()):
        assert bool(task.edit(sirens).tensor.isfinite().all())
        return
    message = re.escape(f"output for network 1 is not finite: its entries, up to {size:.3g} in size")
    with pytest.raises(ValueError, match=message):
        task.edit(sirens)


@pytest.mark.slow
def test_overfits_eight_networks(sirens, tmp_path):
    torch.manual_seed(0)
    few = sirens.select([*range(8), int((sirens.column("split") == 1).nonzero()[0])])
    options = {"channels": 32, "num_blocks": 2, "hidden_channels": 64, "num_heads": 4}
    optimizer = OptimizerConfig("adam", lr=3e-3, schedule="cosine", warmup_steps=20, clip_norm=1.0)
    task = make_task(NFT(SPEC, **options), optimizer=optimizer)
    train(task, few, tmp_path, TrainingConfig(steps=400, batch_size=8, val_every=200), progress=False)
    task.load_state_dict(torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"])
    after = evaluate(task, EvalBatches(few.split("train"), task.prepare, batch_size=8))
    assert after["mse"] < 0.3 * after["mse_no_edit"]
