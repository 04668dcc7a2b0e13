"""The files of a training run, the only interface to reports and later commands: `RunDirectory`."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from neuralfunctionals.data.store_header import Provenance
from neuralfunctionals.errors import UserError
from neuralfunctionals.files.checksums import SUMS, read_intact, read_sums, sha256_of
from neuralfunctionals.files.strict_json import JsonError, conform, parse_json
from neuralfunctionals.files.writing import is_temporary, remove_abandoned, write_new, write_recorded, write_sums

REMEDY = "Restore it from a copy, or start the run again with --force."
"""What to do about a damaged file of a run."""


class _Setting(TypedDict, total=False):
    """The run config; see `config.Run`."""

    recipe: str
    scale: str
    model_name: str
    model: dict[str, Any]
    task: dict[str, Any]
    data: dict[str, Any]
    optimizer: dict[str, Any]
    training: dict[str, Any]
    canonical: str
    seed: int


class RunConfig(TypedDict, total=False):
    """The contents of `run.json`."""

    format: int
    run: _Setting
    parameters: int
    data: dict[str, Any]
    code: dict[str, Any]
    machine: dict[str, Any]
    started: str


class RunResult(TypedDict, total=False):
    """The contents of `result.json`."""

    recipe: str
    scale: str
    model: str
    league: str
    seed: int
    parameters: int
    steps: int
    best_step: int
    training_seconds: float
    training_networks: int
    metric: str
    higher_is_better: bool
    train: dict[str, float]
    val: dict[str, float]
    test: dict[str, float]


class RunDirectory:
    """The directory of a run, with these files:

    - `run.json`: the full config, data, code version and machine; written first;
    - `metrics.csv`: the training curve; `tensorboard/`: the same for TensorBoard;
    - `checkpoints/`: `last.ckpt` to resume from, and `best.ckpt`, the best by validation;
    - `model/`: the best model, written by `save_pretrained`;
    - `samples.safetensors`: a few inputs and outputs, for pictures;
    - `result.json`: the metrics of the best model; written last;
    - `SHA256SUMS`, here and in `checkpoints/`: checksums, which are checked whenever a file is read.

    Args:
        path: The directory.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config_file = self.path / "run.json"
        self.curve_file = self.path / "metrics.csv"
        self.checkpoints = self.path / "checkpoints"
        self.model = self.path / "model"
        self.samples_file = self.path / "samples.safetensors"
        self.result_file = self.path / "result.json"

    @property
    def is_run(self) -> bool:
        """Whether a run was started here."""
        return self.config_file.is_file()

    @property
    def is_finished(self) -> bool:
        """Whether the run is finished."""
        return self.result_file.is_file()

    def require(self, *, finished: bool = True) -> RunDirectory:
        """Returns itself; raises an error if there is no run, or no finished run."""
        if not self.is_run:
            raise UserError(
                f"Expected the directory of a run, but {self.path} has no run.json. Create one with nf train, or use a "
                "shipped model (nf models)."
            )
        if finished and not self.is_finished:
            raise UserError(f"The run at {self.path} is not finished. Resume it with nf train ... --resume.")
        return self

    @property
    def is_free(self) -> bool:
        """Whether a run can start here: the directory is empty, or has only temporary files of a killed process."""
        if not self.path.is_dir():
            return not self.path.exists()
        # Older releases wrote the checksums just before run.json.
        return all(is_temporary(path) or path.name == SUMS for path in self.path.iterdir())

    def clear(self) -> None:
        """Deletes the run. If interrupted, it leaves an unfinished run, which can be deleted again."""
        self.result_file.unlink(missing_ok=True)
        for path in self.path.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path != self.config_file:
                path.unlink(missing_ok=True)
        self.config_file.unlink(missing_ok=True)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Locks the directory, so that no other process on this machine trains here; raises an error if one does.

        The lock is held by the kernel, on `run.json`: it is released when the process ends, for any reason.
        """
        try:
            import fcntl
        except ImportError:  # not on Windows
            yield
            return
        with open(self.config_file, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UserError(
                    f"Another process is training in {self.path}. Wait until it ends, or choose another directory."
                ) from error
            except OSError:  # a file system without locks
                pass
            yield

    # Files.

    def read_config(self) -> dict[str, Any]:
        """The contents of `run.json`."""
        return self._read(self.config_file, RunConfig)

    def read_result(self) -> dict[str, Any]:
        """The contents of `result.json`."""
        return self._read(self.result_file, RunResult)

    def _read(self, file: Path, kind: Any) -> dict[str, Any]:
        try:
            data = read_intact(file, REMEDY)
        except OSError as error:
            raise UserError(f"Cannot read {file}: {error}. Expected a file written by nf train.") from error
        try:
            content = conform(parse_json(data, str(file)), kind, str(file))
            if kind is RunConfig:
                conform(content.get("data", {}), Provenance, f"{file}: data", open_names=True)
            return content
        except JsonError as error:
            raise UserError(f"{error} Expected a file written by nf train. {REMEDY}") from error

    def start(self, config: Mapping[str, Any]) -> None:
        """Writes `run.json`; raises an error if another process has started a run here in the meantime."""
        self.path.mkdir(parents=True, exist_ok=True)
        data = _to_json(config)
        if not write_new(self.config_file, data):
            raise UserError(f"Another process has started a run in {self.path} meanwhile. Choose another directory.")
        digest = hashlib.sha256(data).hexdigest()
        write_sums(self.path, {**read_sums(self.path), self.config_file.name: [digest]})

    def write_config(self, config: Mapping[str, Any]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        write_recorded(self.config_file, _to_json(config))

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Writes the result, after the checksums of all other files of the run."""
        remove_abandoned(self.path)
        remove_abandoned(self.checkpoints)
        sums = read_sums(self.path)
        if self.model.is_dir():
            sums |= {f"{self.model.name}/{f.name}": [sha256_of(f)] for f in sorted(self.model.iterdir())}
        write_sums(self.path, sums)
        write_recorded(self.result_file, _to_json(result))

    def read_samples(self) -> dict[str, Tensor]:
        """Pictures and other arrays by name."""
        try:
            return safetensors.torch.load(read_intact(self.samples_file, REMEDY))
        except SafetensorError as error:
            raise UserError(f"{self.samples_file} is damaged: {error}. {REMEDY}") from error

    def write_samples(self, samples: Mapping[str, Tensor]) -> None:
        contiguous = {name: tensor.cpu().contiguous().clone() for name, tensor in samples.items()}
        write_recorded(self.samples_file, safetensors.torch.save(contiguous))

    def read_curve(self) -> list[dict[str, Any]]:
        """The rows of the training curve, without empty cells."""
        if not self.curve_file.is_file():
            return []
        data = read_intact(self.curve_file, REMEDY)
        try:
            lines = csv.DictReader(io.StringIO(data.decode(), newline=""), strict=True)
            rows = [{name: float(cell) for name, cell in row.items() if cell} for row in lines]
            return [{**row, "step": int(row["step"])} for row in rows]
        except (KeyError, TypeError, ValueError, OverflowError, csv.Error) as error:
            raise UserError(f"{self.curve_file} is damaged: {error}. {REMEDY}") from error

    def write_curve(self, rows: Sequence[Mapping[str, Any]]) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_recorded(self.curve_file, text.getvalue().encode())


def _to_json(content: Mapping[str, Any]) -> bytes:
    try:
        return (json.dumps(content, indent=2, allow_nan=False) + "\n").encode()
    except ValueError as error:
        raise UserError(f"Expected finite numbers to write, but got {content}.") from error
