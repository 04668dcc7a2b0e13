import filecmp
import time

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from neuralfunctionals.data import FitPlan, Store, StoreError, StoreHeader, WeightDataset, fit_dataset, open_images
from neuralfunctionals.inr import FitRecipe, initial_weights, psnr, render_images

SHORT = FitRecipe(steps=12, learning_rate=5e-3)


def plan(limit=30, **options):
    return FitPlan.make(open_images("mnist-sample"), **{"recipe": SHORT, "limit": limit, "shard_size": 8, **options})


def same_files(a, b):
    names = sorted(p.name for p in a.iterdir())
    assert names == sorted(p.name for p in b.iterdir())
    return filecmp.cmpfiles(a, b, names, shallow=False)[0] == names


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "s"
    fit_dataset(plan(copies=3), path, workers=2)
    return path


def test_items_stand_in_source_order_and_copies_stay_in_their_split(store):
    dataset = WeightDataset(store)
    keys = list(zip(dataset.column("source_index").tolist(), dataset.column("copy").tolist(), strict=True))
    assert keys == sorted(keys)
    assert len(set(keys)) == len(dataset) == 24 * 3 + 3 + 3
    by_source = {}
    for (source, _), split in zip(keys, dataset.column("split").tolist(), strict=True):
        by_source.setdefault(source, set()).add(split)
    assert all(len(splits) == 1 for splits in by_source.values())
    assert [len(dataset.split(s)) for s in ("train", "val", "test")] == [72, 3, 3]


def test_one_item_and_several(store):
    dataset = WeightDataset(store)
    images = open_images("mnist-sample")
    one = dataset[5]
    assert (one.label, one.split, one.copy) == (int(images.labels[one.source_index]), "train", 2)
    assert np.array_equal(one.image.numpy(), images.read([one.source_index])[0])
    assert len(one.features) == 1
    several = dataset[[7, 5, 7]]
    assert torch.equal(several.features.tensor[1], one.features.tensor[0])
    assert torch.equal(several.features.tensor[0], several.features.tensor[2])
    assert several.label.tolist()[1] == one.label
    assert several.split == ["train"] * 3
    assert several.image.shape == (3, 28, 28, 1)
    assert torch.equal(dataset[-1].features.tensor, dataset[len(dataset) - 1].features.tensor)
    assert torch.equal(dataset[torch.tensor([5])].image[0], one.image)
    assert dataset[2:4].source_index.tolist() == dataset.column("source_index")[2:4].tolist()
    with pytest.raises(IndexError, match="Item 78 of a dataset of 78"):
        dataset[78]


def test_items_are_chosen_by_masks_positions_and_scalar_tensors(store):
    dataset = WeightDataset(store)
    mask = dataset.column("label") == dataset[0].label
    expected = mask.nonzero()[:, 0].tolist()
    assert 0 < len(expected) < len(dataset)
    for chosen in (mask, mask.numpy(), mask.tolist(), expected):
        assert torch.equal(dataset[chosen].features.tensor, dataset[expected].features.tensor)
        assert len(dataset.select(chosen)) == len(expected)
    assert len(dataset.select([])) == len(dataset[[]].features) == 0
    assert dataset[torch.tensor(5)].source_index == dataset[np.array(5)].source_index == dataset[5].source_index
    with pytest.raises(IndexError):
        dataset[np.array([0.5])]
    with pytest.raises(IndexError):
        dataset[mask[1:]]


def test_features_are_those_of_the_fit_and_psnr_is_that_of_the_picture(store):
    dataset = WeightDataset(store)
    items = dataset[list(range(len(dataset)))]
    shown = render_images(items.features, 28, 28)
    expected = psnr(shown, items.image.float() / 127.5 - 1)
    torch.testing.assert_close(dataset.column("psnr_db"), expected, atol=0.01, rtol=0)
    assert dataset.metadata(9)["psnr_db"] == pytest.approx(expected[9].item(), abs=0.01)
    assert dataset.metadata(9)["item"] == 9


def test_copies_start_independently(store):
    dataset = WeightDataset(store)
    first, second = dataset[[0, 1]].features.to_vectors()
    assert dataset[[0, 1]].source_index.unique().numel() == 1
    assert (first - second).abs().mean() > 0.01
    keys = torch.tensor([[dataset[1].source_index, 1]])
    start = initial_weights(dataset.spec, keys, seed=0)[0]
    assert (second - start).abs().max() < 0.1  # a few steps away


def test_a_part_of_a_dataset_is_spread_over_it(store):
    dataset = WeightDataset(store)
    part = dataset.spread(3)
    middle = (len(dataset) - 1) // 2
    assert torch.equal(part[:].features.tensor, dataset[[0, middle, len(dataset) - 1]].features.tensor)
    assert len(dataset.spread(None)) == len(dataset.spread(10 * len(dataset))) == len(dataset)
    assert len(dataset.spread(1)) == 1


def test_batches_hold_every_item_once(store):
    dataset = WeightDataset(store).split("train")
    generator = torch.Generator().manual_seed(0)
    keys = [
        k
        for batch in dataset.batches(32, generator=generator)
        for k in zip(batch.source_index.tolist(), batch.copy.tolist(), strict=True)
    ]
    assert len(keys) == len(set(keys)) == len(dataset)
    assert keys != sorted(keys)
    loader = DataLoader(dataset, batch_size=32, collate_fn=lambda items: items)
    assert [len(items.features) for items in loader] == [32, 32, 8]


def test_the_store_does_not_depend_on_workers_shares_or_interruptions(store, tmp_path):
    fit_dataset(plan(copies=3), tmp_path / "one", workers=1)
    assert same_files(store, tmp_path / "one")
    for share in ((1, 3), (0, 3), (2, 3)):
        fit_dataset(plan(copies=3), tmp_path / "shares", workers=1, share=share)
        complete = WeightDataset(tmp_path / "shares").is_complete
        assert complete == (share == (2, 3))
    assert same_files(store, tmp_path / "shares")

    def stop_after_two(count, psnr_db):
        if len(Store(tmp_path / "resumed").shards) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_dataset(plan(copies=3), tmp_path / "resumed", workers=1, progress=stop_after_two)
    before = {s: Store(tmp_path / "resumed").file(s, "safetensors").stat().st_mtime_ns for s in (0, 1)}
    assert len(Store(tmp_path / "resumed").shards) < 10
    fit_dataset(plan(copies=3), tmp_path / "resumed", workers=2)
    after = {s: Store(tmp_path / "resumed").file(s, "safetensors").stat().st_mtime_ns for s in (0, 1)}
    assert before == after
    assert same_files(store, tmp_path / "resumed")


def test_progress_is_reported_by_one_thread_at_a_time(tmp_path):
    running, most, total = 0, 0, 0

    def report(count, psnr_db):
        nonlocal running, most, total
        running, total = running + 1, total + count
        most = max(most, running)
        time.sleep(0.02)
        running -= 1

    fit_dataset(plan(limit=60), tmp_path / "s", workers=4, progress=report)
    assert (most, total) == (1, 60)


def test_damaged_shards_stop_a_resumed_run(tmp_path):
    fit_dataset(plan(limit=10), tmp_path / "s", workers=1)
    file = Store(tmp_path / "s").file(0, "safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(StoreError, match=r"00000\.safetensors is damaged"):
        fit_dataset(plan(limit=10), tmp_path / "s", workers=1)
    file.unlink()
    fit_dataset(plan(limit=10), tmp_path / "s", workers=1)
    assert list(Store(tmp_path / "s").problems()) == []


def test_the_torch_engine_makes_stores_too(tmp_path):
    for name, workers in (("a", 1), ("b", 2)):
        fit_dataset(plan(limit=16, engine="torch"), tmp_path / name, workers=workers)
    assert same_files(tmp_path / "a", tmp_path / "b")
    with pytest.raises(StoreError, match="was made differently"):
        fit_dataset(plan(limit=16, engine="torch", seed=1), tmp_path / "a")


def test_items_that_miss_an_asked_quality_are_marked_in_the_index(tmp_path):
    fit_dataset(plan(limit=10, psnr_db=60.0), tmp_path / "s", workers=1)
    metadata = [m for s in (0, 1) for m in Store(tmp_path / "s").read_index(s)[0]]
    assert [m["missed_psnr"] for m in metadata] == [True] * 10


def test_stores_may_hold_other_tensors(tmp_path):
    store = Store.create(tmp_path / "s", StoreHeader(3, 3, None, {"kind": "latents"}))
    store.write_shard(0, {"latents": np.ones((3, 4, 5), np.float32), "label": np.arange(3)}, [{"accuracy": 0.5}] * 3)
    dataset = WeightDataset(tmp_path / "s")
    assert dataset[1].latents.shape == (4, 5)
    assert dataset[[0, 2]].latents.shape == (2, 4, 5)
    assert dataset[1].features is None
    assert (dataset[1].label, dataset[1].split, dataset[1].image) == (1, None, None)
    assert dataset.metadata(2) == {"accuracy": 0.5}
    with pytest.raises(ValueError, match="holds no networks"):
        _ = dataset.spec


def test_mistakes_are_explained(tmp_path, store):
    with pytest.raises(ValueError, match="at least one copy"):
        plan(copies=0)
    with pytest.raises(ValueError, match="seed of at least 0"):
        plan(seed=-1)
    with pytest.raises(ValueError, match="one of train, val, test"):
        WeightDataset(store).split("validation")
    with pytest.raises(ValueError, match="Expected one of the tensors"):
        WeightDataset(store).column("accuracy")
    Store.create(tmp_path / "empty", plan().header)
    with pytest.raises(StoreError, match="no finished shard yet"):
        WeightDataset(tmp_path / "empty")
