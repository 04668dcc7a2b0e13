import errno
import hashlib
import json
import multiprocessing
import os
import resource
import shutil
import socket

import numpy as np
import pytest

from neuralfunctionals import NetworkSpec
from neuralfunctionals.data import Store, StoreError, StoreHeader, WeightDataset, store as store_module
from neuralfunctionals.data.store_header import seal

SPEC = NetworkSpec.mlp([2, 3, 1])


def header(**changes):
    return StoreHeader(**{"num_items": 10, "shard_size": 4, "spec": SPEC, "provenance": {"seed": 1}, **changes})


def tensors(items):
    generator = np.random.default_rng(items.start)
    return {
        "weights": generator.random((len(items), 13), dtype=np.float32),
        "label": np.array(items),
        "flag": np.ones(len(items), bool),
    }


def fill(path, shards=(0, 1, 2)):
    store = Store.create(path, header())
    for shard in shards:
        items = store.header.items_of(shard)
        store.write_shard(shard, tensors(items), [{"item": item, "note": "ü"} for item in items])
    return store


def test_round_trip(tmp_path):
    fill(tmp_path / "s", shards=(2, 0, 1))
    store = Store(tmp_path / "s")
    assert store.header == header()
    assert store.shards == [0, 1, 2]
    for shard in store.shards:
        found = store.map_tensors(shard)
        for name, array in tensors(store.header.items_of(shard)).items():
            assert found[name].dtype == array.dtype
            assert np.array_equal(found[name], array)
        metadata, _ = store.read_index(shard)
        assert [m["item"] for m in metadata] == list(store.header.items_of(shard))
    assert list(store.problems()) == []


def test_every_line_beside_the_tensors_is_json(tmp_path):
    fill(tmp_path)
    for file in tmp_path.glob("*.jsonl"):
        for line in file.read_text().splitlines():
            assert isinstance(json.loads(line), dict)


def test_the_order_of_writing_leaves_no_trace(tmp_path):
    fill(tmp_path / "a", shards=(0, 1, 2))
    fill(tmp_path / "b", shards=(2, 1, 0))
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_writing_to_a_mapped_tensor_does_not_change_the_file(tmp_path):
    store = fill(tmp_path)
    before = store.file(0, "safetensors").read_bytes()
    store.map_tensors(0)["weights"][:] = 0
    assert store.file(0, "safetensors").read_bytes() == before


def test_any_flipped_byte_is_found_and_named(tmp_path):
    store = Store.create(tmp_path, header(num_items=3, shard_size=2))
    for shard in (0, 1):
        items = store.header.items_of(shard)
        store.write_shard(shard, tensors(items), [{"item": item} for item in items])
    for file in sorted(tmp_path.iterdir()):
        good = file.read_bytes()
        for place in range(len(good)):
            bad = bytearray(good)
            bad[place] ^= 1 << (place % 8)
            file.write_bytes(bad)
            try:
                named = [path.name for path, _ in Store(tmp_path).problems()]
            except StoreError as error:
                named = [file.name] if file.name in str(error) else []
            assert named == [file.name], f"byte {place} of {file.name}"
        file.write_bytes(good)


def test_damage_that_reading_can_see_is_found_on_opening(tmp_path):
    store = fill(tmp_path)
    tensors_file, index = store.file(1, "safetensors"), store.file(1, "jsonl")
    good = tensors_file.read_bytes()
    tensors_file.write_bytes(good[:-1])
    with pytest.raises(StoreError, match=r"00001\.safetensors is damaged: it has"):
        store.map_tensors(1)
    tensors_file.write_bytes(b"\xff" * 8 + good[8:])
    with pytest.raises(StoreError, match=r"00001\.safetensors is damaged: its checksum"):
        store.map_tensors(1)
    index.write_bytes(store.file(0, "jsonl").read_bytes())
    with pytest.raises(StoreError, match="belongs to another shard"):
        store.map_tensors(1)


def test_missing_and_strange_files_are_named(tmp_path):
    store = fill(tmp_path, shards=(0, 2))
    store.file(2, "safetensors").unlink()
    (tmp_path / "notes.txt").write_text("mine")
    named = {path.name: problem for path, problem in store.problems()}
    assert sorted(named) == ["00001.jsonl", "00002.safetensors", "notes.txt"]
    assert "items 4 to 7" in named["00001.jsonl"]


def test_another_version_is_refused_and_left_alone(tmp_path):
    fill(tmp_path)
    file = tmp_path / "store.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"version": 1', b'"version": 2'))
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    for use in (lambda: Store(tmp_path), lambda: Store.create(tmp_path, header())):
        with pytest.raises(
            StoreError, match=r"store of version 2, but this release reads version 1.*Nothing was changed"
        ):
            use()
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_store_is_only_continued_by_the_same_plan(tmp_path):
    fill(tmp_path, shards=(0,))
    assert Store.create(tmp_path, header()).shards == [0]
    with pytest.raises(StoreError, match="seed: 1 in the store, 2 requested"):
        Store.create(tmp_path, header(provenance={"seed": 2}))
    with pytest.raises(StoreError, match="num_items: 10 in the store, 11 requested"):
        Store.create(tmp_path, header(num_items=11))
    with pytest.raises(
        StoreError, match="format: 'neuralfunctionals store' in the store, 'npz' requested"
    ):  # also a name that the header has too
        Store.create(tmp_path, header(provenance={"seed": 1, "format": "npz"}))


def test_other_places_are_refused(tmp_path):
    with pytest.raises(StoreError, match=r"there is no store\.jsonl"):
        Store(tmp_path / "none")
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="is a file"):
        Store.create(tmp_path / "file", header())
    with pytest.raises(StoreError, match="holds other files"):
        Store.create(tmp_path, header())
    assert (tmp_path / "file").read_text() == "x"


def test_shards_of_the_wrong_length_are_refused(tmp_path):
    store = Store.create(tmp_path, header())
    with pytest.raises(ValueError, match="Expected 4 items for shard 0"):
        store.write_shard(0, tensors(range(3)), [{}] * 3)
    assert store.shards == []


def test_leftovers_of_dead_runs_are_removed_and_those_of_others_kept(tmp_path):
    fill(tmp_path)
    process = os.fork()
    if process == 0:
        os._exit(0)
    os.waitpid(process, 0)
    dead = tmp_path / f".tmp-{socket.gethostname()}-{process}-00001.jsonl"
    living = tmp_path / f".tmp-{socket.gethostname()}-{os.getppid()}-00001.jsonl"
    elsewhere = tmp_path / f".tmp-elsewhere-{process}-00001.jsonl"
    for file in (dead, living, elsewhere):
        file.write_text("half")
    Store.create(tmp_path, header())
    assert [f.exists() for f in (dead, living, elsewhere)] == [False, True, True]


def test_a_full_disk_loses_nothing(tmp_path):
    """A limit on file sizes stands in for a full disk: writing fails half-way in the same manner."""
    store = fill(tmp_path, shards=(0,))
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            store.write_shard(1, tensors(range(4, 8)), [{}] * 4)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.errno == errno.EFBIG
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    store.write_shard(1, tensors(range(4, 8)), [{}] * 4)
    assert Store(tmp_path).shards == [0, 1]


@pytest.mark.parametrize("moment", ["tensors", "index"])
def test_a_run_that_ends_between_two_files_leaves_an_unfinished_shard(tmp_path, monkeypatch, moment):
    store = fill(tmp_path, shards=(0,))
    write = store_module.write_whole

    def stop_before(path, data):
        if path.suffix == {"tensors": ".safetensors", "index": ".jsonl"}[moment]:
            raise KeyboardInterrupt
        write(path, data)

    monkeypatch.setattr(store_module, "write_whole", stop_before)
    with pytest.raises(KeyboardInterrupt):
        store.write_shard(1, tensors(range(4, 8)), [{}] * 4)
    monkeypatch.undo()
    again = Store(tmp_path)
    assert again.shards == [0]
    assert not again.has_shard(1)
    again.write_shard(1, tensors(range(4, 8)), [{}] * 4)
    assert Store(tmp_path).shards == [0, 1]


def test_a_copied_store_is_the_same_store(tmp_path):
    fill(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert list(Store(tmp_path / "b").problems()) == []


# Reading checks.


def flip(file, place=-1):
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)


def test_a_flipped_byte_is_found_by_whoever_reads_the_shard(tmp_path):
    store = fill(tmp_path)
    assert len(WeightDataset(tmp_path)) == 10
    flip(store.file(1, "safetensors"))
    message = r"00001\.safetensors is damaged: its checksum does not match. Delete this file and repeat the command"
    for use in (lambda: WeightDataset(tmp_path), lambda: store.map_tensors(1), lambda: store.require_intact([0, 1])):
        with pytest.raises(StoreError, match=message):
            use()
    assert store.map_tensors(0)["label"].tolist() == [0, 1, 2, 3]


def test_a_shard_is_hashed_once_for_many_reads_and_again_after_it_was_written(tmp_path):
    store = fill(tmp_path)
    store_module._intact.clear()
    store.map_tensors(0)
    seen = set(store_module._intact)
    assert len(seen) == 1
    Store(tmp_path).map_tensors(0)
    assert store_module._intact == seen
    file = store.file(0, "safetensors")
    file.write_bytes(file.read_bytes())
    store.map_tensors(0)
    assert len(store_module._intact) == 2


def rewrite_index(file, change):
    """Changes the last line of an index, and seals it again."""
    *lines, last, _, _ = file.read_bytes().split(b"\n")
    file.write_bytes(seal(b"\n".join([*lines, json.dumps(change(json.loads(last))).encode()])))


def test_shards_and_headers_of_another_store_are_found(tmp_path):
    fill(tmp_path / "a")
    other = Store.create(tmp_path / "b", header(provenance={"seed": 2}))
    for shard in (0, 1, 2):
        items = other.header.items_of(shard)
        other.write_shard(shard, tensors(items), [{"item": item} for item in items])
    shutil.copytree(tmp_path / "a", tmp_path / "shard")
    for ending in ("safetensors", "jsonl"):
        shutil.copy(other.file(1, ending), tmp_path / "shard")
    shutil.copytree(tmp_path / "a", tmp_path / "header")
    shutil.copy(tmp_path / "b" / "store.jsonl", tmp_path / "header")
    for place, expected in {"shard": ["00001.jsonl"], "header": [f"0000{n}.jsonl" for n in range(3)]}.items():
        found = dict(Store(tmp_path / place).problems())
        assert [file.name for file in found] == expected
        assert all("belongs to another store" in problem for problem in found.values())
        with pytest.raises(StoreError, match=r"jsonl belongs to another store than .*store\.jsonl"):
            WeightDataset(tmp_path / place)


def test_stores_written_before_shards_named_their_store_are_read_and_continued(tmp_path):
    store = fill(tmp_path, shards=(0, 1))
    for shard in (0, 1):
        rewrite_index(store.file(shard, "jsonl"), lambda checks: {k: v for k, v in checks.items() if k != "store"})
    assert len(WeightDataset(tmp_path)) == 8
    continued = Store.create(tmp_path, header())
    items = continued.header.items_of(2)
    continued.write_shard(2, tensors(items), [{}] * len(items))
    assert list(Store(tmp_path).problems()) == []
    assert continued.read_index(2)[1]["store"] == hashlib.sha256((tmp_path / "store.jsonl").read_bytes()).hexdigest()


def _create(path, seed, barrier, results):
    barrier.wait()
    try:
        Store.create(path, header(provenance={"seed": seed}))
        results.put((seed, ""))
    except StoreError as error:
        results.put((seed, str(error)))


@pytest.mark.parametrize("seeds", [(1, 1), (1, 2)], ids=["same", "different"])
def test_two_writers_at_once_share_a_store_only_if_their_plans_are_the_same(tmp_path, seeds):
    context = multiprocessing.get_context("fork")
    for trial in range(20):
        barrier, results = context.Barrier(2), context.Queue()
        writers = [
            context.Process(target=_create, args=(tmp_path / str(trial), seed, barrier, results)) for seed in seeds
        ]
        for writer in writers:
            writer.start()
        answers = [results.get(timeout=60) for _ in writers]
        for writer in writers:
            writer.join()
        refused = [text for _, text in answers if text]
        if seeds[0] == seeds[1]:
            assert not refused
        else:
            assert len(refused) == 1
            assert "was made differently (seed:" in refused[0]
            accepted = next(seed for seed, text in answers if not text)
            assert Store(tmp_path / str(trial)).header.provenance == {"seed": accepted}
        assert [p.name for p in (tmp_path / str(trial)).iterdir()] == ["store.jsonl"]


# Descriptions that cannot be.


def spoil_header(path, **changes):
    content = {**json.loads(header().to_bytes().partition(b"\n")[0]), **changes}
    (path / "store.jsonl").write_bytes(seal(json.dumps(content).encode()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_items": 10**12}, "Expected num_items from 1 to 10,000,000,000, but got 1000000000000"),
        ({"num_items": -1}, "Expected num_items from 1 to"),
        ({"num_items": 1e12}, "num_items: expected an integer, but got 1000000000000.0"),
        ({"num_items": "many"}, 'num_items: expected an integer, but got "many"'),
        ({"num_items": float("nan")}, "is damaged, or not the description of a store"),
        ({"shard_size": 0}, "Expected shard_size from 1 to"),
        ({"shard_size": 10**30}, "is damaged, or not the description of a store"),
        ({"more": 1}, 'expected the names format, num_items.*, but got "more"'),
        ({"spec": [1]}, "spec: expected an object or null"),
        ({"spec": {"layers": [{"out_neurons": 1}]}}, "spec.layers.0: expected the name in_neurons"),
        ({"spec": {"layers": [{"out_neurons": -3, "in_neurons": 1}]}}, "A layer needs sizes of at least 1"),
        ({"provenance": {"omega": "30"}}, 'provenance.omega: expected a number, but got "30"'),
        ({"provenance": []}, "provenance: expected an object"),
    ],
)
def test_refuses_descriptions_that_cannot_be_in_one_line(tmp_path, changes, message):
    fill(tmp_path)
    spoil_header(tmp_path, **changes)
    with pytest.raises(StoreError, match=message) as caught:
        Store(tmp_path)
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "store.jsonl") in str(caught.value)


def test_a_description_that_promises_billions_costs_no_time(tmp_path):
    """As many items as a store may have, in shards of one: nothing may count them one by one."""
    fill(tmp_path, shards=(0,))
    spoil_header(tmp_path, num_items=10**10, shard_size=4)
    store = Store(tmp_path)
    rewrite_index(store.file(0, "jsonl"), lambda checks: {**checks, "store": store.digest})
    assert store.shards == [0]
    assert [path.name for path, _ in store.problems()] == ["00001.jsonl"]
    dataset = WeightDataset(tmp_path)
    assert dataset.column("label").tolist() == [0, 1, 2, 3]
    assert not dataset.is_complete


def test_refuses_tensors_that_do_not_fit_their_index(tmp_path):
    def rewrite(shard, arrays):
        data = store_module.save(arrays)
        store.file(shard, "safetensors").write_bytes(data)
        sums = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        rewrite_index(store.file(shard, "jsonl"), lambda checks: {**checks, **sums})

    store = fill(tmp_path)
    good = tensors(range(4, 8))
    cases = [
        ({**good, "weights": good["weights"][:2]}, "its header cannot be read"),
        ({**good, "weights": good["weights"][:, :5].copy()}, "holds other tensors than the shards before it"),
        ({**good, "more": good["label"]}, "holds other tensors than the shards before it"),
        ({**good, "split": good["label"].astype(np.uint8)}, "holds other tensors than the shards before it"),
    ]
    for arrays, message in cases:
        rewrite(1, arrays)
        with pytest.raises(StoreError, match=rf"00001\.safetensors .*{message}"):
            WeightDataset(tmp_path)
    for shard in (0, 1, 2):
        items = store.header.items_of(shard)
        rewrite(shard, {**tensors(items), "split": np.full(len(items), 7, np.uint8)})
    with pytest.raises(StoreError, match="holds splits other than"):
        WeightDataset(tmp_path)
    for shard in (0, 1, 2):
        items = store.header.items_of(shard)
        rewrite(shard, {**tensors(items), "weights": np.zeros((len(items), 5), np.float32)})
    with pytest.raises(StoreError, match=r"holds weights of shape \(5,\), which do not fit 2->3, 3->1"):
        WeightDataset(tmp_path)
