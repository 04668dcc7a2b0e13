import errno
import json
import os
import resource
import shutil
import socket

import numpy as np
import pytest

from neuralfunctionals import NetworkSpec
from neuralfunctionals.data import Store, StoreError, StoreHeader
from neuralfunctionals.data import store as store_module

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
    with pytest.raises(StoreError, match="seed: 1 there, 2 asked"):
        Store.create(tmp_path, header(provenance={"seed": 2}))
    with pytest.raises(StoreError, match="num_items: 10 there, 11 asked"):
        Store.create(tmp_path, header(num_items=11))


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
