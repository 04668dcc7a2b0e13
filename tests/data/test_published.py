import pickle

import numpy as np
import pytest
import torch
from torch import nn

from neuralfunctionals.data import FitPlan, Store, WeightDataset, fit_dataset, open_images
from neuralfunctionals.data.published import export_networks, import_networks, read_state_dict
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
    pictures = render_images(found.features, 28, 28, convention=convention)
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
    with pytest.raises(ValueError, match="there is nothing"):
        import_networks("npz", tmp_path / "none", tmp_path / "s")
    with pytest.raises(ValueError, match="found none"):
        import_networks("nfn-sirens", tmp_path, tmp_path / "s")
    with pytest.raises(ValueError, match="is there already"):
        import_networks("nfn-sirens", tmp_path, store)
    with pytest.raises(ValueError, match="is there already"):
        export_networks("npz", store, store)
    assert Store(store).header.num_items == 25


def test_safetensors_are_read_as_well(tmp_path):
    from safetensors.torch import save_file

    save_file({"a.weight": torch.ones(1, 2), "a.bias": torch.ones(1)}, tmp_path / "a.safetensors")
    assert set(read_state_dict(tmp_path / "a.safetensors")) == {"a.weight", "a.bias"}
