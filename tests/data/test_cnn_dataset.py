import filecmp

import numpy as np
import pytest
import torch

from neuralfunctionals.data import Store, StoreError, WeightDataset, ZooPlan, build_cnn, make_zoo, open_images
from neuralfunctionals.data.cnn_dataset import zoo_splits
from neuralfunctionals.weight_space import NeuronPermutation


def plan(images="mnist-sample", **options):
    options = {"count": 10, "epochs": 3, "batch_size": 64, "limit_images": 300, "shard_size": 3, **options}
    return ZooPlan.make(open_images(images), **options)


def same_files(a, b):
    names = sorted(p.name for p in a.iterdir())
    assert names == sorted(p.name for p in b.iterdir())
    return filecmp.cmpfiles(a, b, names, shallow=False)[0] == names


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    path = tmp_path_factory.mktemp("zoo") / "z"
    make_zoo(plan(), path, workers=2)
    return path


def test_a_zoo_is_a_dataset_with_accuracies_and_hyperparameters(zoo):
    dataset = WeightDataset(zoo)
    assert len(dataset) == 10
    assert dataset.is_complete
    assert list(dataset.store.problems()) == []
    assert str(dataset.spec) == "1->16 (3x3), 16->16 (3x3), 16->16 (3x3), 16->10"
    assert [len(dataset.split(name)) for name in ("train", "val", "test")] == [4, 1, 5]
    assert dataset.column("checkpoint_weights").shape == (10, 4, 4970)
    assert torch.equal(dataset.column("checkpoint_weights")[:, -1], dataset.column("weights"))
    for name in ("train_loss", "train_accuracy", "test_loss", "test_accuracy"):
        assert torch.equal(dataset.column(f"checkpoint_{name}")[:, -1], dataset.column(name))
    assert dataset.provenance["checkpoint_epochs"] == [0, 1, 2, 3]
    assert (dataset.provenance["train_images"], dataset.provenance["test_images"]) == (270, 30)
    item = dataset[4]
    assert (item.label, item.split, item.source_index) == (None, dataset.metadata(4)["split"], 4)
    assert item.tensors["test_accuracy"] == dataset.column("test_accuracy")[4]
    assert not any(name.startswith("checkpoint_") for name in item.tensors)
    assert dataset.metadata(4)["config"]["activation"] in ("relu", "tanh")
    assert dataset.metadata(4)["test_accuracy"] == pytest.approx(dataset.column("test_accuracy")[4].item(), abs=1e-5)


def test_the_stored_accuracy_is_that_of_the_module_and_of_its_permutations(zoo):
    dataset, images = WeightDataset(zoo), open_images("mnist-sample")
    sources = images.select(300)
    test = sources[images.splits[sources] == 2]
    pixels = torch.from_numpy(images.read(test)).float().movedim(3, 1) / 127.5 - 1
    labels = torch.from_numpy(images.labels[test])
    for item in range(10):
        features = dataset[item].features
        template = build_cnn(activation=dataset.metadata(item)["config"]["activation"]).eval()
        shuffled = NeuronPermutation.random(dataset.spec, "HNP")(features)
        assert not torch.equal(shuffled.tensor, features.tensor)
        for module in features.to_modules(template) + shuffled.to_modules(template):
            with torch.no_grad():
                accuracy = (module(pixels).argmax(1) == labels).float().mean()
            assert accuracy.item() == pytest.approx(dataset.column("test_accuracy")[item].item(), abs=1e-6)


def test_the_store_does_not_depend_on_workers_shares_or_interruptions(zoo, tmp_path):
    for share in ((1, 2), (0, 2)):
        make_zoo(plan(), tmp_path / "shares", workers=1, share=share)
    assert same_files(zoo, tmp_path / "shares")

    def stop_after_one(count, accuracies):
        if accuracies:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_zoo(plan(), tmp_path / "resumed", workers=1, progress=stop_after_one)
    assert len(Store(tmp_path / "resumed").shards) == 1
    counts = []
    make_zoo(plan(), tmp_path / "resumed", workers=2, progress=lambda count, accuracies: counts.append(count))
    assert sum(counts) == 7
    assert same_files(zoo, tmp_path / "resumed")
    with pytest.raises(StoreError, match="seed: 0 in the store, 1 requested"):
        make_zoo(plan(seed=1), tmp_path / "resumed")


def test_grey_is_the_mean_of_the_colours():
    colour, grey = plan("shapes-sample"), plan("shapes-sample", grey=True)
    assert (colour.header.spec.widths[0], grey.header.spec.widths[0]) == (3, 1)
    assert colour.shared.pixels.shape[1:] == (32, 32, 3)
    np.testing.assert_allclose(grey.shared.pixels[..., 0], colour.shared.pixels.mean(-1), atol=1e-6)
    assert -1 <= grey.shared.pixels.min() < grey.shared.pixels.max() <= 1
    assert (plan(grey=True).shared.pixels == plan().shared.pixels).all()


def test_a_larger_zoo_has_the_networks_of_a_smaller_one(zoo, tmp_path):
    make_zoo(plan(count=4), tmp_path / "small", workers=1)
    weights = WeightDataset(tmp_path / "small").column("weights")
    assert torch.equal(weights, WeightDataset(zoo).column("weights")[:4])


def test_the_torch_engine_makes_zoos_too(zoo, tmp_path):
    make_zoo(plan(engine="torch", count=4, epochs=1), tmp_path / "s", workers=1)
    ours = WeightDataset(tmp_path / "s").column("weights")
    torch.testing.assert_close(ours, WeightDataset(zoo).column("checkpoint_weights")[:4, 1], atol=1e-2, rtol=0)


@pytest.mark.parametrize(("count", "sizes"), [(800, [320, 80, 400]), (1, [0, 0, 1]), (13, [4, 2, 7])])
def test_half_is_test_and_a_fifth_of_the_rest_validation(count, sizes):
    assert np.bincount(zoo_splits(count), minlength=3).tolist() == sizes


def test_plans_that_cannot_work_are_refused(tmp_path):
    with pytest.raises(ValueError, match="number of networks to be at least 1, but got 0"):
        plan(count=0)
    with pytest.raises(ValueError, match="number of epochs to be at least 1, but got 0"):
        plan(epochs=0)
    with pytest.raises(ValueError, match="seed of at least 0"):
        plan(seed=-1)
    with pytest.raises(ValueError, match="give 1 and 0. Use more images"):
        plan(limit_images=1)
    np.save(tmp_path / "plain.npy", np.zeros((20, 16, 16), np.uint8))
    with pytest.raises(ValueError, match="images with labels, but 'plain.npy' has none"):
        plan(tmp_path / "plain.npy")
    np.savez(tmp_path / "small.npz", images=np.zeros((20, 14, 20), np.uint8), labels=np.zeros(20, int))
    with pytest.raises(ValueError, match="at least 15x15 pixels .* have 14x20"):
        plan(tmp_path / "small.npz")
