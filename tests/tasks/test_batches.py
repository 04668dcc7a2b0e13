from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, strategies as st

from neuralfunctionals.tasks import EvalBatches, TrainBatches
from neuralfunctionals.weight_space import NetworkSymmetry, WeightSpaceFeatures


def items_of(items):
    """What a batch holds, by the networks' place in the dataset."""
    return items.source_index.tolist()


def make(dataset, count, **options):
    few = dataset.select(range(count))
    return TrainBatches(few, items_of, **{"batch_size": 4, "seed": 3, **options})


@given(count=st.integers(4, 30), processes=st.sampled_from([1, 2, 4]), first=st.integers(0, 40))
def test_processes_share_each_batch_and_an_epoch_has_no_item_twice(sirens, count, processes, first):
    whole = list(make(sirens, count, length=5, first=lambda: first))
    shares = [list(make(sirens, count, length=5, first=lambda: first, share=(i, processes))) for i in range(processes)]
    for batch, *parts in zip(whole, *shares, strict=True):
        assert sorted(batch) == sorted(item for part in parts for item in part)
        assert {len(part) for part in parts} == {4 // processes}
    batches = make(sirens, count, length=1)
    epoch = torch.cat([batches.indices(batch) for batch in range(count // 4)])
    assert len(epoch.unique()) == count // 4 * 4


@given(stop=st.integers(1, 11))
def test_a_continued_stretch_sees_what_the_whole_one_would_have_seen(sirens, stop):
    whole = list(make(sirens, 10, length=12))
    assert list(make(sirens, 10, length=12 - stop, first=lambda: stop)) == whole[stop:]


def test_canonical_forms_are_made_many_at_a_time_and_each_before_its_batch(sirens, monkeypatch):
    monkeypatch.setattr("neuralfunctionals.tasks.batches.READ_AHEAD", 12)
    sizes = []

    @dataclass(frozen=True)
    class Counted(NetworkSymmetry):
        def canonicalize(self, features):
            sizes.append(len(features))
            return super().canonicalize(features)

    def read(canonical):
        batches = TrainBatches(
            sirens, lambda items: items.features.tensor, batch_size=4, seed=3, length=7, canonical=canonical
        )
        return torch.stack(list(batches))

    plain, canonical = read(None), read(Counted(sirens.spec))
    assert sizes == [12, 12, 4]  # whole batches of 4
    expected = [sirens.spec.symmetry.canonicalize(WeightSpaceFeatures(sirens.spec, x))[0].tensor for x in plain]
    assert torch.equal(canonical, torch.stack(expected))


def test_epochs_and_seeds_give_other_orders(sirens):
    batches, other = make(sirens, 40, length=1), make(sirens, 40, length=1, seed=4)
    assert batches.indices(0).tolist() != batches.indices(10).tolist()
    assert batches.indices(0).tolist() != other.indices(0).tolist()


@given(count=st.integers(1, 20), processes=st.integers(1, 4))
def test_evaluation_sees_every_item_once(sirens, count, processes):
    few = sirens.select(range(count))
    seen = [
        item
        for i in range(processes)
        for batch in EvalBatches(few, items_of, batch_size=3, share=(i, processes))
        for item in batch
    ]
    assert sorted(seen) == sorted(few.column("source_index").tolist())


def test_refuses_what_cannot_be_shared_or_filled(sirens):
    with pytest.raises(ValueError, match=r"at least one batch of 4 items to train on, but there are only 3"):
        make(sirens, 3, length=1)
    with pytest.raises(ValueError, match=r"multiple of the 3 processes, but got 4"):
        make(sirens, 30, length=1, share=(0, 3))
