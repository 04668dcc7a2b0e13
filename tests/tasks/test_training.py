"""The engine: exact resumption after real kills, averages, early stopping, accumulation, precision, devices."""

import csv
import json
import os
import signal
import subprocess
import sys

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger

from neuralfunctionals.models import NFT
from neuralfunctionals.run_directory import RunDirectory
from neuralfunctionals.runs import build_model
from neuralfunctionals.tasks import EditTask, OptimizerConfig, TrainingConfig, TrainingDivergedError, train

TINY = {"channels": 8, "num_blocks": 1, "hidden_channels": 16, "num_heads": 2, "dropout": 0.1}
CONFIG = {"steps": 24, "batch_size": 8, "val_every": 8, "log_every": 1}

# A run that dies by SIGKILL in the middle of a step, as a machine that is switched off.
KILLED = """
import json, os, signal, sys
from test_training import run
from neuralfunctionals.data import WeightDataset
path, out, config, step = sys.argv[1:]
def die(task):
    if task.trainer.global_step == int(step):
        os.kill(os.getpid(), signal.SIGKILL)
run(WeightDataset(path), out, json.loads(config), before_loss=die)
"""


class Watched(EditTask):
    """Calls something before every loss."""

    before_loss = staticmethod(lambda task: None)

    def loss(self, batch):
        self.before_loss(self)
        return super().loss(batch)


def run(dataset, out, config, *, before_loss=lambda task: None, **optimizer):
    torch.manual_seed(0)
    optimizer = {"schedule": "cosine", "warmup_steps": 4, "clip_norm": 1.0, **optimizer}
    task = Watched(NFT(dataset.spec, **TINY), edit="dilate", optimizer=OptimizerConfig(**optimizer))
    task.before_loss = before_loss
    train(task, dataset, out, TrainingConfig(**config), progress=False)
    return task


def curve(out):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in RunDirectory(out).read_curve()]


def test_the_steps_are_reported_to_a_function(sirens, tmp_path, capsys):
    calls = []
    task = EditTask(NFT(sirens.spec, **TINY), edit="dilate")
    config = TrainingConfig(steps=4, batch_size=8, val_every=2)
    train(task, sirens, tmp_path, config, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(done, 4) for done in range(5)]
    assert capsys.readouterr().err == ""


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"ema_decay": 0.9, "accumulate": 2}], ids=["plain", "averaged-accumulated"])
def test_killed_and_continued_equals_uninterrupted_step_for_step(sirens, tmp_path, more):
    # Eighty networks, 64 of them for training: eight batches are an epoch, and end with the validation.
    config = {**CONFIG, **more}
    whole = run(sirens, tmp_path / "whole", config)
    assert len(curve(tmp_path / "whole")) == 27
    for kills in ([8], [16], [3], [5, 13, 22]):
        out = tmp_path / "-".join(map(str, kills))
        for step in kills:
            arguments = [str(sirens.path), str(out), json.dumps(config), str(step)]
            environment = {**os.environ, "PYTHONPATH": os.path.dirname(__file__), "OMP_NUM_THREADS": "1"}
            dead = subprocess.run([sys.executable, "-c", KILLED, *arguments], env=environment, capture_output=True)
            assert dead.returncode == -signal.SIGKILL, dead.stderr.decode()
        continued = run(sirens, out, config)
        assert curve(out) == curve(tmp_path / "whole")
        for name, tensor in whole.state_dict().items():
            assert torch.equal(tensor, continued.state_dict()[name]), name


def test_accumulated_parts_give_the_steps_of_the_whole_batch(sirens, tmp_path):
    """Without dropout, whose masks would differ."""
    losses = []
    for parts in (1, 4):
        torch.manual_seed(0)
        task = EditTask(NFT(sirens.spec, **{**TINY, "dropout": 0.0}), edit="erode")
        out = tmp_path / str(parts)
        train(task, sirens, out, TrainingConfig(steps=4, batch_size=8, accumulate=parts, log_every=1), progress=False)
        losses.append([row["loss"] for row in curve(out) if "loss" in row])
    assert len(losses[0]) == 4
    torch.testing.assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]), atol=1e-5, rtol=0)


def test_the_best_validation_is_kept_and_patience_ends_a_run(sirens, tmp_path):
    task = run(
        sirens, tmp_path, {"steps": 40, "batch_size": 8, "val_every": 2, "patience": 2}, lr=0.3, schedule="constant"
    )
    values = [row["val/mse"] for row in curve(tmp_path) if "val/mse" in row]
    best = values.index(min(values))
    assert len(values) == best + 3 < 20
    kept = torch.load(tmp_path / "checkpoints" / "best.ckpt", weights_only=True)
    assert kept["global_step"] == 2 * (best + 1)
    for name, tensor in kept["state_dict"].items():
        assert torch.equal(tensor, task.state_dict()[name])


def test_bf16_trains_close_to_float32(sirens, tmp_path):
    curves = []
    for precision in ("float32", "bf16"):
        run(sirens, tmp_path / precision, {**CONFIG, "steps": 8, "precision": precision})
        curves.append(curve(tmp_path / precision))
    first, second = curves
    assert first[-1]["val/mse"] == pytest.approx(second[-1]["val/mse"], rel=0.05)
    assert first[-1]["val/mse"] != second[-1]["val/mse"]


def test_logs_are_written_for_people_and_tensorboard(sirens, tmp_path):
    run(sirens, tmp_path, CONFIG)
    rows = RunDirectory(tmp_path).read_curve()
    assert [row["step"] for row in rows if "loss" in row] == list(range(1, 25))
    assert [row["step"] for row in rows if "val/mse" in row] == [8, 16, 24]
    seconds = [row["seconds"] for row in rows]
    assert seconds == sorted(seconds)
    assert any((tmp_path / "tensorboard").glob("events.*"))


class Counter(Callback):
    """A callback of a user."""

    def on_train_start(self, trainer, pl_module):
        self.steps = 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.steps += 1
        pl_module.log("counted", float(self.steps))


def no_logger():
    return 3


def test_loggers_and_callbacks_are_named_or_given(sirens, tmp_path):
    plain = run(sirens, tmp_path / "plain", CONFIG)
    names = {"loggers": "CSVLogger", "callbacks": f"DeviceStatsMonitor, {__name__}:Counter"}
    named = run(sirens, tmp_path / "named", {**CONFIG, **names})
    (file,) = (tmp_path / "named").glob("lightning_logs/*/metrics.csv")
    with open(file) as lines:
        rows = list(csv.DictReader(lines))
    assert [float(row["loss"]) for row in rows if row["loss"]] == [
        pytest.approx(row["loss"]) for row in curve(tmp_path / "named") if "loss" in row
    ]
    assert [float(row["counted"]) for row in rows if row["counted"]] == list(range(1, 25))
    assert curve(tmp_path / "plain") == curve(tmp_path / "named")
    assert any(isinstance(part, Counter) and part.steps == 24 for part in named.trainer.callbacks)
    assert not any(isinstance(part, Counter) for part in plain.trainer.callbacks)
    counter, logger = Counter(), CSVLogger(tmp_path / "own")
    task = EditTask(NFT(sirens.spec, **TINY), edit="dilate")
    given = {"loggers": [logger], "callbacks": [counter]}
    train(task, sirens, tmp_path / "given", TrainingConfig(**CONFIG), progress=False, **given)
    assert counter.steps == 24
    assert logger in task.trainer.loggers


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"loggers": "CVSLogger"}, "Expected a logger of Lightning, or the path .* Did you mean CSVLogger?"),
        ({"callbacks": "LearningRateMonitr"}, "Did you mean LearningRateMonitor?"),
        ({"callbacks": "EarlyStopping"}, "missing a required argument: 'monitor'. Write a function without"),
        ({"callbacks": "nowhere.Stop"}, "Cannot import nowhere.Stop: there is no module 'nowhere'"),
        ({"loggers": f"{__name__}.no_logger"}, "no_logger to return a Logger of Lightning, but got int"),
        ({"loggers": f"{__name__}.Counter"}, "Counter to return a Logger of Lightning, but got Counter"),
    ],
)
def test_refuses_loggers_and_callbacks_that_cannot_be_made(sirens, tmp_path, names, message):
    with pytest.raises(ValueError, match=message):
        run(sirens, tmp_path, {**CONFIG, **names})
    assert not list(tmp_path.iterdir())


def test_refuses_to_go_on_when_the_loss_is_no_number(sirens, tmp_path):
    with pytest.raises(TrainingDivergedError, match=r"at step \d+. Use a smaller learning rate \(now 1e\+30"):
        run(sirens, tmp_path, CONFIG, lr=1e30, clip_norm=None)


def test_refuses_data_it_cannot_train_on(sirens, tmp_path):
    train_items = (sirens.column("split") == 0).nonzero()[:, 0]
    with pytest.raises(ValueError, match="networks in the validation split .* but there are none"):
        run(sirens.select(train_items), tmp_path, CONFIG)
    with pytest.raises(ValueError, match="networks in the training split .* but there are none"):
        run(sirens.select((sirens.column("split") == 1).nonzero()[:, 0]), tmp_path, CONFIG)
    other = NFT(type(sirens.spec).mlp([2, 16, 1]), **TINY)
    with pytest.raises(ValueError, match=r"takes networks .* but .* has"):
        train(EditTask(other, edit="dilate"), sirens, tmp_path, TrainingConfig(**CONFIG), progress=False)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_compiled_blocks_train_as_plain_ones(sirens, tmp_path):
    curves = []
    for compiled in (False, True):
        model = build_model("nft", sirens.spec, {**TINY, "dropout": 0.0}, seed=0, compiled=compiled)
        task = EditTask(model, edit="dilate")
        train(
            task, sirens, tmp_path / str(compiled), TrainingConfig(steps=4, batch_size=8, log_every=1), progress=False
        )
        curves.append([row["loss"] for row in curve(tmp_path / str(compiled)) if "loss" in row])
        assert all("_orig_mod" not in name for name in task.state_dict())
    torch.testing.assert_close(torch.tensor(curves[0]), torch.tensor(curves[1]), atol=1e-4, rtol=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_gpu_trains_as_the_processor_does(sirens, tmp_path, precision):
    config = {**CONFIG, "steps": 8, "precision": precision}
    run(sirens, tmp_path / "cpu", {**config, "accelerator": "cpu"})
    run(sirens, tmp_path / "gpu", {**config, "accelerator": "gpu"})
    assert curve(tmp_path / "gpu")[-1]["val/mse"] == pytest.approx(curve(tmp_path / "cpu")[-1]["val/mse"], rel=0.05)


class Noting(EditTask):
    """Keeps which images it was given."""

    def prepare(self, items):
        self.seen = [*getattr(self, "seen", []), *items.source_index.tolist()]
        return super().prepare(items)


def test_a_part_of_the_training_networks_is_spread_over_them(sirens, tmp_path):
    task = Noting(NFT(sirens.spec, **TINY), edit="dilate")
    train(task, sirens, tmp_path, TrainingConfig(**{**CONFIG, "steps": 8, "limit": 8}), progress=False)
    members = sirens.split("train").column("source_index").tolist()
    assert set(task.seen[:64]) == {members[i] for i in torch.linspace(0, len(members) - 1, 8).long()}
