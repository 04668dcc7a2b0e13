"""What a training run leaves on disk, and the only thing that reports and later commands know of it: `RunDirectory`."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from neuralfunctionals.data.files import write_whole


class RunDirectory:
    """Names and files of a run:

    - `run.json`: the whole config, the data, the code's version and the machine; written first;
    - `metrics.csv`: the curve; `tensorboard/`: the same for TensorBoard;
    - `checkpoints/`: `last.ckpt` to continue from, `best.ckpt` by validation;
    - `model/`: the best model, as `save_pretrained` writes it;
    - `samples.safetensors`: a few inputs and outputs, for pictures;
    - `result.json`: the metrics of the best model; written last.

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
        """Whether a run was begun here."""
        return self.config_file.is_file()

    @property
    def is_finished(self) -> bool:
        """Whether it also ended."""
        return self.result_file.is_file()

    def require(self, *, finished: bool = True) -> RunDirectory:
        """Itself, if there is such a run."""
        if not self.is_run:
            raise ValueError(
                f"Expected the directory of a run, but {self.path} has no run.json. Make one with nf train."
            )
        if finished and not self.is_finished:
            raise ValueError(f"The run at {self.path} has not ended yet. Continue it with nf train ... --resume.")
        return self

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keeps other processes of this machine from training here meanwhile; raises if one does already.

        The lock is the kernel's own, on `run.json`: it ends with the process, however that ends.
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
                raise ValueError(
                    f"Another process is training in {self.path}. Wait until it ends, or name another directory."
                ) from error
            except OSError:  # a file system without locks
                pass
            yield

    def read_config(self) -> dict[str, Any]:
        """What `run.json` says."""
        return self._read(self.config_file)

    def read_result(self) -> dict[str, Any]:
        """What `result.json` says."""
        return self._read(self.result_file)

    def _read(self, file: Path) -> dict[str, Any]:
        try:
            return json.loads(file.read_text())
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"Cannot read {file}: {error}. Expected what nf train wrote.") from error

    def write_config(self, config: Mapping[str, Any]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        write_whole(self.config_file, _to_json(config))

    def write_result(self, result: Mapping[str, Any]) -> None:
        write_whole(self.result_file, _to_json(result))

    def read_samples(self) -> dict[str, Tensor]:
        """Pictures and other arrays by name."""
        return safetensors.torch.load_file(self.samples_file)

    def write_samples(self, samples: Mapping[str, Tensor]) -> None:
        contiguous = {name: tensor.cpu().contiguous().clone() for name, tensor in samples.items()}
        write_whole(self.samples_file, safetensors.torch.save(contiguous))

    def read_curve(self) -> list[dict[str, Any]]:
        """The rows of the curve, without the cells that are empty."""
        if not self.curve_file.is_file():
            return []
        with open(self.curve_file, newline="") as lines:
            rows = [{name: float(cell) for name, cell in row.items() if cell} for row in csv.DictReader(lines)]
        return [{**row, "step": int(row["step"])} for row in rows]

    def write_curve(self, rows: Sequence[Mapping[str, Any]]) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_whole(self.curve_file, text.getvalue().encode())


def _to_json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()
