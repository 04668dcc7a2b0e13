import csv
import gzip
import os
import random
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

from neuralfunctionals.cnn.settings import cnn_spec
from neuralfunctionals.data import WeightDataset, ZooPlan, make_zoo, open_images
from neuralfunctionals.data.formats.published import export_networks, import_networks

VARIABLES = {
    "sequential/conv2d/bias:0": (16,),
    "sequential/conv2d/kernel:0": (3, 3, 1, 16),
    "sequential/conv2d_1/bias:0": (16,),
    "sequential/conv2d_1/kernel:0": (3, 3, 16, 16),
    "sequential/conv2d_2/bias:0": (16,),
    "sequential/conv2d_2/kernel:0": (3, 3, 16, 16),
    "sequential/dense/bias:0": (10,),
    "sequential/dense/kernel:0": (16, 10),
}
STEPS = [0, 1, 2, 3, 20, 40, 60, 80, 86]
COLUMNS = [
    "",
    "config.activation",
    "config.b_init",
    "config.dataset",
    "config.dnn_architecture",
    "config.dropout",
    "config.epochs",
    "config.epochs_between_checkpoints",
    "config.init_std",
    "config.l2reg",
    "config.learning_rate",
    "config.num_layers",
    "config.num_units",
    "config.optimizer",
    "config.random_seed",
    "config.train_fraction",
    "config.w_init",
    "modeldir",
    "step",
    "test_accuracy",
    "test_loss",
    "train_accuracy",
    "train_loss",
    "laststep",
]


def publish(folder, num_networks=20):
    """A zoo as its authors wrote it; returns the variables of every row."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    rows = [
        {name: generator.standard_normal(shape).astype(np.float32) for name, shape in VARIABLES.items()}
        for _ in range(num_networks * len(STEPS))
    ]
    np.save(folder / "weights.npy", np.stack([np.concatenate([v.ravel() for v in row.values()]) for row in rows]))
    with gzip.open(folder / "metrics.csv.gz", "wt", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(COLUMNS)
        for number in range(len(rows)):
            network, step = number // len(STEPS), STEPS[number % len(STEPS)]
            config = [
                "relu",
                "zeros",
                "cifar10",
                "cnn",
                0.25,
                86,
                20,
                0.05,
                1e-6,
                0.01,
                3,
                16,
                "adam",
                42,
                0.5,
                "he_normal",
            ]
            path = f"/internal/{network}"
            measured = [(number % 97) / 97, 1.5, 0.5, 1.25]
            table.writerow([f"{path}/permanent_ckpt-{step}", *config, path, step, *measured, step == 86])
    with open(folder / "layout.csv", "w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(["varname", "start_idx", "end_idx", "size", "shape"])
        start = 0
        for name, shape in VARIABLES.items():
            size = int(np.prod(shape))
            table.writerow([name, start, start + size, size, str(shape)])
            start += size
    return rows


def write_split(file, num_rows):
    order = np.random.default_rng(1).permutation(num_rows)
    np.savetxt(file, order, fmt="%d")
    return order


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published") / "cifar10"
    return folder, publish(folder)


def test_final_checkpoints_in_our_order_of_axes(published, tmp_path):
    folder, rows = published
    store = import_networks("small-cnn-zoo", folder, tmp_path / "s")
    assert list(store.problems()) == []
    dataset = WeightDataset(tmp_path / "s")
    assert len(dataset) == 20
    assert dataset.spec == cnn_spec()
    for item in (0, 7, 19):
        found, row = dataset[item], rows[item * 9 + 8]
        assert found.source_index == item * 9 + 8
        for layer, name in enumerate(["conv2d", "conv2d_1", "conv2d_2"]):
            kernel = torch.from_numpy(row[f"sequential/{name}/kernel:0"])
            ours = found.features.weights[layer][0, ..., 0]
            for o, i, y, x in [(0, 0, 0, 0), (5, 0, 2, 1), (15, ours.shape[1] - 1, 1, 2)]:
                assert ours[o, i, y, x] == kernel[y, x, i, o]
            assert torch.equal(
                found.features.biases[layer][0, :, 0], torch.from_numpy(row[f"sequential/{name}/bias:0"])
            )
        assert torch.equal(found.features.weights[3][0, ..., 0].T, torch.from_numpy(row["sequential/dense/kernel:0"]))
        assert dataset.column("test_accuracy")[item].item() == pytest.approx((item * 9 + 8) % 97 / 97)
        metadata = dataset.metadata(item)
        assert metadata["config"]["learning_rate"] == 0.01
        assert metadata["config"]["w_init"] == "he_normal"
        assert metadata["config"]["random_seed"] == 42
    assert dataset.provenance["step"] == 86
    assert "convention" not in dataset.provenance


def test_splits_follow_the_index_file(published, tmp_path):
    folder, _ = published
    order = write_split(tmp_path / "split.csv", 180)
    import_networks("small-cnn-zoo", folder, tmp_path / "s", split_file=tmp_path / "split.csv")
    dataset = WeightDataset(tmp_path / "s")
    final = [row for row in order.tolist() if row % 9 == 8]
    first, second = list(range(10)), final[10:]
    random.Random(0).shuffle(first)
    assert dataset.split("test").column("source_index").tolist() == second
    assert sorted(dataset.split("train").column("source_index").tolist()) == sorted(final[i] for i in first[:8])
    assert sorted(dataset.split("val").column("source_index").tolist()) == sorted(final[i] for i in first[8:])


def test_other_steps(published, tmp_path):
    import_networks("small-cnn-zoo", published[0], tmp_path / "s", step=3)
    assert WeightDataset(tmp_path / "s").column("source_index").tolist() == [9 * i + 3 for i in range(20)]


def test_our_zoo_goes_out_and_comes_back(tmp_path):
    plan = ZooPlan.make(open_images("mnist-sample"), count=6, epochs=4, batch_size=64, limit_images=200)
    make_zoo(plan, tmp_path / "zoo", workers=1)
    zoo = WeightDataset(tmp_path / "zoo")
    assert export_networks("small-cnn-zoo", tmp_path / "zoo", tmp_path / "out") == 6
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "layout.csv",
        "metrics.csv.gz",
        "split.csv",
        "weights.npy",
    ]
    with gzip.open(tmp_path / "out" / "metrics.csv.gz", "rt", newline="") as stream:
        rows = list(csv.reader(stream))
    assert rows[0] == COLUMNS
    assert [row[18] for row in rows[1:]] == ["0", "1", "2", "3", "4"] * 6
    assert [row[23] for row in rows[1:6]] == ["False"] * 4 + ["True"]
    layout = (tmp_path / "out" / "layout.csv").read_text().splitlines()
    assert layout[1:3] == [
        'sequential/conv2d/bias:0,0,16,16,"(16,)"',
        'sequential/conv2d/kernel:0,16,160,144,"(3, 3, 1, 16)"',
    ]
    split = tmp_path / "out" / "split.csv"
    import_networks("small-cnn-zoo", tmp_path / "out", tmp_path / "back", split_file=split)
    back = WeightDataset(tmp_path / "back")
    for name in ("weights", "split", "train_loss", "train_accuracy", "test_loss", "test_accuracy"):
        assert torch.equal(back.column(name), zoo.column(name)), name
    config = back.metadata(3)["config"]
    assert {name: config[name] for name in zoo.metadata(3)["config"]} == zoo.metadata(3)["config"]
    import_networks("small-cnn-zoo", tmp_path / "out", tmp_path / "early", step=1)
    assert torch.equal(WeightDataset(tmp_path / "early").column("weights"), zoo.column("checkpoint_weights")[:, 1])
    export_networks("small-cnn-zoo", tmp_path / "back", tmp_path / "again")
    assert np.array_equal(np.load(tmp_path / "again" / "weights.npy"), np.load(tmp_path / "out" / "weights.npy")[4::5])


def test_our_zoo_goes_out_as_state_dicts_too(tmp_path):
    plan = ZooPlan.make(open_images("mnist-sample"), count=4, epochs=1, batch_size=64, limit_images=100)
    make_zoo(plan, tmp_path / "zoo", workers=1)
    for kind in ("state-dicts", "npz"):
        export_networks(kind, tmp_path / "zoo", tmp_path / kind)
        import_networks(kind, tmp_path / kind, tmp_path / f"{kind}-back")
        weights = WeightDataset(tmp_path / f"{kind}-back").column("weights")
        assert torch.equal(weights, WeightDataset(tmp_path / "zoo").column("weights"))


def edit(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def edit_metrics(folder, change):
    with gzip.open(folder / "metrics.csv.gz", "rt", newline="") as stream:
        rows = list(csv.reader(stream))
    with gzip.open(folder / "metrics.csv.gz", "wt", newline="") as stream:
        csv.writer(stream).writerows(change(rows))


def set_weight(folder, row, value):
    weights = np.load(folder / "weights.npy")
    weights[row, 100] = value
    np.save(folder / "weights.npy", weights)


def save_objects(folder):
    np.save(folder / "weights.npy", np.array([{}], dtype=object))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "weights.npy").unlink(), r"but there is no weights\.npy"),
        (lambda f: (f / "metrics.csv.gz").unlink(), r"but there is no metrics\.csv\.gz"),
        (lambda f: (f / "layout.csv").unlink(), r"but there is no layout\.csv"),
        (lambda f: edit(f / "layout.csv", "(3, 3, 1, 16)", "(3, 3, 2, 16)"), r"conv2d/kernel:0 .* to fill its shape"),
        (lambda f: edit(f / "layout.csv", "(3, 3, 1, 16)", "(3, 3, 16)"), "convolutions of one number of dimensions"),
        (lambda f: edit(f / "layout.csv", "160,176", "161,177"), r"conv2d_1/bias:0 .* to start at 160"),
        (lambda f: edit(f / "layout.csv", "conv2d_1/kernel", "conv2d_1/gamma"), r"kernel:0 and one bias:0 .*gamma"),
        (lambda f: edit(f / "layout.csv", "start_idx", "start"), "but start_idx is missing"),
        (lambda f: edit(f / "layout.csv", "(16, 10)", "(10, 16)"), "a bias for each of its outputs"),
        (lambda f: np.save(f / "weights.npy", np.zeros((180, 4969))), r"shape \(rows, 4970\).*\(180, 4969\)"),
        (lambda f: np.save(f / "weights.npy", np.zeros((179, 4970))), "as many rows .*179, but got 180"),
        (save_objects, r"Refused .*weights\.npy"),
        (lambda f: set_weight(f, 17, np.nan), r"row 17 of .*weights\.npy holds NaN"),
        (lambda f: (f / "metrics.csv.gz").write_bytes(b"no gzip"), r"Cannot read .*metrics\.csv\.gz"),
        (
            lambda f: edit_metrics(f, lambda rows: [[c.replace("test_loss", "loss") for c in r] for r in rows]),
            "test_loss",
        ),
        (lambda f: edit_metrics(f, lambda rows: [*rows[:9], [*rows[9][:-1]], *rows[10:]]), "row 8 has more or fewer"),
        (
            lambda f: edit_metrics(f, lambda rows: [*rows[:9], [*rows[9][:19], "nan", *rows[9][20:]], *rows[10:]]),
            "row 8",
        ),
    ],
)
def test_damaged_zoos_are_refused_in_one_line(published, tmp_path, damage, message):
    shutil.copytree(published[0], tmp_path / "zoo")
    damage(tmp_path / "zoo")
    with pytest.raises(ValueError, match=message) as caught:
        import_networks("small-cnn-zoo", tmp_path / "zoo", tmp_path / "s")
    assert "\n" not in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["zoo"]


def test_nan_before_the_final_checkpoint_does_not_matter(published, tmp_path):
    shutil.copytree(published[0], tmp_path / "zoo")
    set_weight(tmp_path / "zoo", 16, np.nan)
    import_networks("small-cnn-zoo", tmp_path / "zoo", tmp_path / "s")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (range(179), "from 0 to 179 once, but got 179 numbers"),
        ([*range(179), 0], "179 of them different"),
        (range(1, 181), "up to 180"),
        (["a", "b"], "Cannot read the index file"),
        ([], "got 0 numbers"),
    ],
)
@pytest.mark.filterwarnings("ignore:loadtxt")
def test_splits_that_do_not_fit_are_refused(published, tmp_path, lines, message):
    (tmp_path / "split.csv").write_text("".join(f"{line}\n" for line in lines))
    with pytest.raises(ValueError, match=message):
        import_networks("small-cnn-zoo", published[0], tmp_path / "s", split_file=tmp_path / "split.csv")
    assert not (tmp_path / "s").exists()


def test_steps_and_stores_that_do_not_fit_are_refused(published, tmp_path):
    with pytest.raises(ValueError, match=r"\[0, 1, 2, 3, 20, 40, 60, 80, 86\], but got 5"):
        import_networks("small-cnn-zoo", published[0], tmp_path / "s", step=5)
    with pytest.raises(ValueError, match="Expected the index file .* but there is no such file"):
        import_networks("small-cnn-zoo", published[0], tmp_path / "s", split_file=tmp_path / "none.csv")
    np.savez(tmp_path / "a.npz", weights=np.zeros((3, 13)), spec=np.array(cnn_spec().mlp([2, 3, 1]).to_json()))
    import_networks("npz", tmp_path / "a.npz", tmp_path / "plain")
    with pytest.raises(ValueError, match="Expected a complete zoo"):
        export_networks("small-cnn-zoo", tmp_path / "plain", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def claim_entries(folder, number):
    """A layout that claims a dense layer of so many entries."""
    rows = (folder / "layout.csv").read_text().splitlines()
    start = int(rows[-1].split(",")[1])
    rows[-1] = f'sequential/dense/kernel:0,{start},{start + number},{number},"(1, {number})"'
    (folder / "layout.csv").write_text("\n".join(rows) + "\n")


def test_a_layout_that_claims_too_much_is_refused_before_it_takes_memory(published, tmp_path):
    shutil.copytree(published[0], tmp_path / "zoo")
    claim_entries(tmp_path / "zoo", 10**12)
    with pytest.raises(
        ValueError, match=r"shape \(rows, 1000000004810\), as in .*layout\.csv, but it has \(180, 4970\)"
    ):
        import_networks("small-cnn-zoo", tmp_path / "zoo", tmp_path / "s")


@pytest.mark.parametrize(
    ("rows", "spaces", "message"),
    [
        (180, 100_000, "its text would take .* MiB of memory, .* times its size on disk"),
        (1, 3_000_000, "it has a line of more than 1048576 characters"),
    ],
)
def test_a_table_that_unpacks_to_any_length_is_refused(published, tmp_path, monkeypatch, rows, spaces, message):
    shutil.copytree(published[0], tmp_path / "zoo")
    monkeypatch.setenv("NF_MAX_MEMORY", "64M")
    with gzip.open(published[0] / "metrics.csv.gz", "rb") as stream:
        header, row, *_ = stream.read().splitlines()
    with gzip.open(tmp_path / "zoo" / "metrics.csv.gz", "wb") as stream:
        stream.write(b"\n".join([header, *[row.replace(b"relu", b"relu" + b" " * spaces)] * rows]))
    with pytest.raises(ValueError, match=rf"Refused .*metrics\.csv\.gz: {message}"):
        import_networks("small-cnn-zoo", tmp_path / "zoo", tmp_path / "s")


@pytest.mark.parametrize("step", ["1e30", "-1", "0.5", "nan", "9" * 400])
def test_steps_are_whole_numbers(published, tmp_path, step):
    shutil.copytree(published[0], tmp_path / "zoo")
    at = COLUMNS.index("step")
    edit_metrics(tmp_path / "zoo", lambda rows: [*rows[:9], [*rows[9][:at], step, *rows[9][at + 1 :]], *rows[10:]])
    with pytest.raises(ValueError, match=rf"as step in row 8 of metrics\.csv\.gz, but got '{step}'"):
        import_networks("small-cnn-zoo", tmp_path / "zoo", tmp_path / "s")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
@pytest.mark.timeout(120)
def test_an_index_file_that_is_a_pipe_is_refused_at_once(published, tmp_path):
    os.mkfifo(tmp_path / "split.csv")
    with pytest.raises(ValueError, match=r"Cannot read the index file .*split\.csv: expected a regular file"):
        import_networks("small-cnn-zoo", published[0], tmp_path / "s", split_file=tmp_path / "split.csv")


def test_weights_too_large_for_single_precision_are_refused(published, tmp_path):
    shutil.copytree(published[0], tmp_path / "zoo")
    weights = np.load(tmp_path / "zoo" / "weights.npy").astype(np.float64)
    weights[17] = 1e300
    np.save(tmp_path / "zoo" / "weights.npy", weights)
    with pytest.raises(ValueError, match="row 17 of .* holds NaN or infinity"):
        import_networks("small-cnn-zoo", tmp_path / "zoo", tmp_path / "s")


FULL_DISK = """
import resource, sys
from neuralfunctionals.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
main(["data", "export", "small-cnn-zoo", sys.argv[1], "--out", sys.argv[2]])
"""


def test_a_full_disk_is_told_in_one_line_and_nothing_remains(published, tmp_path):
    import_networks("small-cnn-zoo", published[0], tmp_path / "s")
    command = [sys.executable, "-c", FULL_DISK, tmp_path / "s", tmp_path / "out"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith("nf: [Errno 27] File too large")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s"]
