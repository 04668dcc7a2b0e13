import os
import pickle
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from neuralfunctionals import LayerSpec, NetworkSpec
from neuralfunctionals.data import FitPlan, Store, WeightDataset, fit_dataset, open_images
from neuralfunctionals.data.formats.network_files import read_state_dict
from neuralfunctionals.data.formats.published import export_networks, import_networks
from neuralfunctionals.inr import FitRecipe, render_images


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "s"
    plan = FitPlan.make(open_images("mnist-sample"), recipe=FitRecipe(steps=3, learning_rate=1e-3), limit=25)
    fit_dataset(plan, path, workers=1)
    return path


@pytest.mark.parametrize("kind", ["nfn-sirens", "state-dicts", "npz"])
@pytest.mark.parametrize("convention", ["paper", "dws"])
def test_round_trip(store, tmp_path, kind, convention):
    assert export_networks(kind, store, tmp_path / "out", convention=convention) == 25
    imported = import_networks(kind, tmp_path / "out", tmp_path / "back", convention=convention)
    assert list(imported.problems()) == []
    before, after = WeightDataset(store)[list(range(25))], WeightDataset(tmp_path / "back")
    order = np.arange(25)
    if kind == "state-dicts":  # stands class after class
        order = np.lexsort((order, before.label.numpy()))
    found = after[list(range(25))]
    assert torch.equal(found.label, before.label[order])
    pictures = render_images(found.features, 28, 28)
    torch.testing.assert_close(pictures, render_images(before.features, 28, 28)[order], atol=1e-5, rtol=1e-4)
    assert after.provenance["convention"] == convention
    if kind != "state-dicts":
        assert torch.equal(found.source_index, before.source_index)
    if convention == "paper":
        assert torch.equal(found.features.tensor, before.features.tensor[order])


def test_the_layout_of_the_nfn_authors(store, tmp_path):
    export_networks("nfn-sirens", store, tmp_path / "out", prefix="mnist")
    item = WeightDataset(store)[3]
    file = tmp_path / "out" / f"mnist_{item.label}s" / f"net{item.source_index}.pth"
    content = torch.load(file, weights_only=True)
    names = ["net.0.linear", "net.1.linear", "net.2"]
    assert list(content) == [f"{name}.{kind}" for name in names for kind in ("weight", "bias")]
    assert torch.equal(content["net.2.weight"], item.features.to_state_dicts()[0]["layers.2.weight"])


def test_ordinary_state_dicts(tmp_path):
    for i in (2, 10):
        torch.save(
            {"state_dict": nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3)).state_dict()},
            tmp_path / f"n{i}.pth",
        )
    store = import_networks("state-dicts", tmp_path, tmp_path / "s")
    assert [m["file"].split("/")[-1] for m in store.read_index(0)[0]] == ["n2.pth", "n10.pth"]
    assert store.header.spec.widths == (2, 4, 3)


class Hostile:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (open, (str(self.marker), "w"))


@pytest.mark.parametrize("kind", ["nfn-sirens", "state-dicts"])
def test_hostile_files_are_refused_by_name_and_never_run(store, tmp_path, kind):
    export_networks(kind, store, tmp_path / "out")
    victim = sorted((tmp_path / "out").rglob("*.pth"))[7]
    marker = tmp_path / "was-run"
    victim.write_bytes(pickle.dumps({"layers.0.weight": Hostile(marker)}))
    with pytest.raises(ValueError, match=f"Refused .*{victim.name}"):
        import_networks(kind, tmp_path / "out", tmp_path / "s")
    assert not marker.exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]


def test_hostile_arrays_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", weights=np.array([Hostile(tmp_path / "was-run")], dtype=object))
    with pytest.raises(ValueError, match=r"Refused .*a\.npz"):
        import_networks("npz", tmp_path / "a.npz", tmp_path / "s")
    assert not (tmp_path / "was-run").exists()
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Refused"),
        (b"PK\x03\x04 broken", "Refused"),
        (torch.zeros(3), "expected a state_dict.*holds Tensor"),
        ({"a.weight": torch.zeros(3, 2), "n": 3}, "expected a state_dict"),
        ({"a.weight": torch.full((3, 2), float("nan"))}, r"x\.pth.*finite"),
        ({"norm.weight": torch.zeros(3), "norm.running_mean": torch.zeros(3)}, r"x\.pth.*running_mean"),
    ],
)
def test_bad_files_are_named(tmp_path, content, message):
    file = tmp_path / "in" / "x.pth"
    file.parent.mkdir()
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        torch.save(content, file)
    with pytest.raises(ValueError, match=message) as caught:
        import_networks("state-dicts", tmp_path / "in", tmp_path / "s")
    assert "x.pth" in str(caught.value)
    assert not (tmp_path / "s").exists()


def test_networks_of_another_shape_are_named(tmp_path):
    for i, width in enumerate((4, 4, 5)):
        torch.save(nn.Sequential(nn.Linear(2, width), nn.Linear(width, 1)).state_dict(), tmp_path / f"n{i}.pth")
    with pytest.raises(ValueError, match=r"n2\.pth.*of shape \(4, 2\)"):
        import_networks("state-dicts", tmp_path, tmp_path / "s")


def test_mistakes_are_explained(store, tmp_path):
    with pytest.raises(ValueError, match=r"one of .*nfn-sirens.*but got 'keras'"):
        import_networks("keras", tmp_path, tmp_path / "s")
    with pytest.raises(ValueError, match="there is no such file or directory"):
        import_networks("npz", tmp_path / "none", tmp_path / "s")
    with pytest.raises(ValueError, match="found none"):
        import_networks("nfn-sirens", tmp_path, tmp_path / "s")
    with pytest.raises(ValueError, match="already exists"):
        import_networks("nfn-sirens", tmp_path, store)
    with pytest.raises(ValueError, match="already exists"):
        export_networks("npz", store, store)
    assert Store(store).header.num_items == 25


def test_safetensors_are_read_as_well(tmp_path):
    from safetensors.torch import save_file

    save_file({"a.weight": torch.ones(1, 2), "a.bias": torch.ones(1)}, tmp_path / "a.safetensors")
    assert set(read_state_dict(tmp_path / "a.safetensors")) == {"a.weight", "a.bias"}


def networks(**arrays):
    """The arrays of an npz file of four networks 2->2->1."""
    spec = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    spec = NetworkSpec.from_module(spec)
    weights = np.random.default_rng(0).standard_normal((4, spec.num_entries)).astype(np.float32)
    return {"weights": weights, "spec": np.array(spec.to_json()), **arrays}


def test_unsigned_and_foreign_numbers_are_kept_as_they_are(tmp_path):
    values = {
        "score": np.array([1, 2, 3, 2**32 - 1], dtype=np.uint32),
        "count": np.array([1, 2, 3, 60_000], dtype=np.uint16),
        "label": np.array([1, 2, 3, 2**63 - 1], dtype=np.uint64),
        "big_endian": np.array([0.5, 1, 2, 3], dtype=">f8"),
        "mark": np.array([True, False, True, True]),
    }
    np.savez(tmp_path / "a.npz", **networks(**values))
    import_networks("npz", tmp_path / "a.npz", tmp_path / "s")
    dataset = WeightDataset(tmp_path / "s")
    for name, array in values.items():
        assert dataset.column(name).tolist() == array.tolist()
    assert np.array_equal(dataset.column("weights").numpy(), networks()["weights"])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"label": np.array([0, 1, 2, 2**63], dtype=np.uint64)}, "at most 63 bits as 'label'"),
        ({"label": np.array([0, 1, 2, np.nan])}, "whole numbers as 'label'"),
        ({"label": np.zeros((4, 2), int)}, "numbers of at most 64 bits as 'label'"),
        ({"note": np.array(["a", "b", "c", "d"])}, "numbers of at most 64 bits as 'note'"),
        ({"note": np.zeros(4, dtype=complex)}, "numbers of at most 64 bits as 'note'"),
        ({"note": np.zeros(4, dtype=np.longdouble)}, "numbers of at most 64 bits as 'note'"),
        ({"note": np.zeros(4, dtype="M8[s]")}, "numbers of at most 64 bits as 'note'"),
        ({"note": np.zeros(3)}, "4 entries in every array"),
        ({"__metadata__": np.zeros(4)}, "names of arrays .* to be words, but got '__metadata__'"),
        ({"image": np.zeros((4, 5, 5))}, "as 'image'"),
        ({"split": np.array([0, 1, 2, 3])}, "splits 0 .train., 1 .val. and 2 .test."),
        ({"weights": np.zeros((4, 9), dtype=complex)}, "real numbers as 'weights'"),
        ({"weights": np.full((4, 9), 1e300)}, "Expected finite values"),
        ({"weights": np.zeros((4, 8))}, r"shape \(batch, 9\)"),
        ({"weights": np.zeros((0, 9))}, "one row per network"),
        ({"spec": np.array("[" * 100_000)}, "Refused"),
        ({"spec": np.array("{}")}, "Expected a network spec"),
        ({"spec": np.zeros(4)}, "'spec' .JSON."),
    ],
)
def test_arrays_that_a_store_cannot_keep_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **networks(**arrays))
    with pytest.raises(ValueError, match=message):
        import_networks("npz", tmp_path / "a.npz", tmp_path / "s")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.npz"]


def test_parameters_as_they_come_from_a_module_are_imported(tmp_path):
    net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3))
    torch.save(dict(net.named_parameters()), tmp_path / "a.pth")
    import_networks("state-dicts", tmp_path, tmp_path / "s")
    found = WeightDataset(tmp_path / "s").column("weights")[0]
    assert torch.equal(found, nn.utils.parameters_to_vector(net.parameters()).detach())


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["nfn-sirens", "state-dicts"])
def test_pipes_devices_and_links_in_a_folder_are_passed_over(store, tmp_path, kind):
    export_networks(kind, store, tmp_path / "out")
    folder = next(p for p in (tmp_path / "out").iterdir() if p.is_dir())
    os.mkfifo(folder / "net900.pth")
    (folder / "net901.pth").symlink_to("/dev/zero")
    (folder / "net902.pth").symlink_to(folder / "nowhere")
    (folder / "net903.pth").mkdir()
    (folder / "loop").symlink_to(tmp_path / "out")
    assert import_networks(kind, tmp_path / "out", tmp_path / "s").header.num_items == 25


@pytest.mark.parametrize("kind", ["nfn-sirens", "state-dicts"])
def test_numbers_in_names_have_at_most_63_bits(tmp_path, kind):
    folder = tmp_path / "in" / ("digit_99999999999999999999s" if kind == "nfn-sirens" else "99999999999999999999")
    folder.mkdir(parents=True)
    torch.save(nn.Linear(2, 1).state_dict(), folder / "net1.pth")
    with pytest.raises(ValueError, match="at most 63 bits in the names of folders and files, as in .*99999"):
        import_networks(kind, tmp_path / "in", tmp_path / "s")


def test_scratch_of_a_killed_import_is_removed_by_the_next(store, tmp_path):
    process = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    dead = tmp_path / f".partial-{socket.gethostname()}-{process.stdout.strip()}-00ff"
    living = tmp_path / f".partial-{socket.gethostname()}-{os.getppid()}-00ff"
    for path in (dead, living):
        path.mkdir()
        (path / "half").write_bytes(b"")
    export_networks("npz", store, tmp_path / "a.npz")
    assert sorted(p.name for p in tmp_path.iterdir()) == [living.name, "a.npz"]


def test_a_link_at_the_temporary_name_is_not_followed(store, tmp_path, monkeypatch):
    (tmp_path / "victim").mkdir()
    monkeypatch.setattr(os, "urandom", lambda count: bytes(count))  # as if the name were guessed
    (tmp_path / f".partial-{socket.gethostname()}-{os.getpid()}-00000000").symlink_to(tmp_path / "victim")
    with pytest.raises(FileExistsError):
        export_networks("state-dicts", store, tmp_path / "out")
    assert not list((tmp_path / "victim").iterdir())


FULL_DISK = """
import resource, sys
from neuralfunctionals.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
main(["data", "export", sys.argv[1], sys.argv[2], "--out", sys.argv[3]])
"""


@pytest.mark.parametrize("kind", ["nfn-sirens", "state-dicts", "npz"])
def test_a_full_disk_is_told_in_one_line_and_nothing_remains(store, tmp_path, kind):
    command = [sys.executable, "-c", FULL_DISK, kind, store, tmp_path / "out"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith("nf: [Errno 27] File too large")
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.iterdir())


def test_networks_of_one_image_are_exported_under_names_of_their_own(tmp_path):
    spec = np.array(NetworkSpec.siren([2, 2, 1]).to_json())
    np.savez(tmp_path / "a.npz", **networks(source_index=np.array([5, 5, 6, 7]), label=np.zeros(4, int), spec=spec))
    import_networks("npz", tmp_path / "a.npz", tmp_path / "s")
    assert export_networks("nfn-sirens", tmp_path / "s", tmp_path / "out") == 4
    assert len(list((tmp_path / "out").rglob("*.pth"))) == 4


def test_networks_that_a_format_cannot_keep_are_refused(tmp_path):
    for name, spec in {"a": NetworkSpec.mlp([2, 2, 1], bias=False), "c": NetworkSpec.mlp([2, 2, 1], "tanh")}.items():
        weights = np.zeros((1, spec.num_entries))
        np.savez(tmp_path / f"{name}.npz", weights=weights, spec=np.array(spec.to_json()))
        import_networks("npz", tmp_path / f"{name}.npz", tmp_path / name)
        with pytest.raises(ValueError, match="dense layers with biases, for nfn-sirens"):
            export_networks("nfn-sirens", tmp_path / name, tmp_path / "out")
    nameless = NetworkSpec((LayerSpec(2, 2), LayerSpec(1, 2)))
    np.savez(tmp_path / "b.npz", weights=np.zeros((1, 9)), spec=np.array(nameless.to_json()))
    import_networks("npz", tmp_path / "b.npz", tmp_path / "t")
    with pytest.raises(ValueError, match="layers of different names"):
        export_networks("state-dicts", tmp_path / "t", tmp_path / "out")


@pytest.mark.parametrize("omega", [0.0, -1.0, float("inf"), float("nan")])
def test_impossible_frequencies_are_refused(store, tmp_path, omega):
    with pytest.raises(ValueError, match="positive and finite"):
        import_networks("npz", store, tmp_path / "s", omega=omega)


def test_a_size_of_images_that_cannot_be_rendered_is_refused(tmp_path):
    torch.save(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)).state_dict(), tmp_path / "a.pth")
    with pytest.raises(ValueError, match="An image of 1000000x1000000 would take 3.64 TiB"):
        import_networks("state-dicts", tmp_path, tmp_path / "s", image_size=(1_000_000, 1_000_000))
