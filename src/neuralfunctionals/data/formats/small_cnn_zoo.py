"""Import and export of the published Small CNN Zoo: `weights.npy`, `metrics.csv.gz`, `layout.csv`.

    weights.npy       one row of flat weights per network and checkpoint
    metrics.csv.gz    for each of these rows: hyperparameters (config.*), step, losses and accuracies
    layout.csv        the columns of the weights that belong to each variable, and its shape

Kernels have TensorFlow's layout, (rows, columns, in, out). An index file with one row number per line gives the order
in which networks are split. Files are read as data only.
Reference: Unterthiner et al., 2020, https://arxiv.org/abs/2002.11448; the split is that of Zhou et al., 2023,
https://arxiv.org/abs/2302.14040.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from neuralfunctionals.cnn.training import METRICS
from neuralfunctionals.data.cnn_dataset import zoo_splits
from neuralfunctionals.data.store import Store, StoreHeader
from neuralfunctionals.data.weight_dataset import WeightDataset
from neuralfunctionals.errors import UserError
from neuralfunctionals.files.budget import require_memory
from neuralfunctionals.files.untrusted import map_npy, require_file, shard_size_for
from neuralfunctionals.files.writing import readable_name
from neuralfunctionals.images.splits import SPLITS
from neuralfunctionals.weight_space import LayerSpec, NetworkSpec

# Axes: N packed entries, R rows.

WEIGHTS, METRICS_FILE, LAYOUT = "weights.npy", "metrics.csv.gz", "layout.csv"
SPLIT = "split.csv"
"""The index file that an export writes."""
_LAYOUT_COLUMNS = ("varname", "start_idx", "end_idx", "size", "shape")
_CONFIG_COLUMNS = (
    "activation b_init dataset dnn_architecture dropout epochs epochs_between_checkpoints init_std l2reg "
    "learning_rate num_layers num_units optimizer random_seed train_fraction w_init"
).split()
_METRIC_COLUMNS = ("test_accuracy", "test_loss", "train_accuracy", "train_loss")
_MAX_LINE = 1 << 20
_MAX_DIMENSIONS = 8
"""Of a variable: kernels have one to three besides inputs and outputs."""

Progress = Callable[[int, int], None]


# Import.


def import_zoo(
    source: Path, out: Path, provenance: dict[str, Any], report: Progress, *, step: int | None, split_file: Path | None
) -> None:
    """Writes one checkpoint of every network to a new store.

    Args:
        source: The directory.
        out: The store's directory.
        provenance: Provenance of the networks, for the store's header.
        report: Called with the number of networks done and the total number.
        step: The checkpoint. Defaults to the last one in the file. Networks without it are left out.
        split_file: The index file. By default, networks are split in the order of their rows.
    """
    _require_files(source)
    weights = _read_weights(source / WEIGHTS)
    spec, order = _read_layout(source / LAYOUT, weights.shape)
    steps = np.fromiter((_step(row, number) for number, row in enumerate(_read_metrics(source))), np.int64)
    if len(steps) != len(weights):
        raise UserError(
            f"Expected as many rows in {source / METRICS_FILE} as in {WEIGHTS}, {len(weights)}, but got {len(steps)}."
        )
    step = int(steps.max()) if step is None else step
    rows = np.arange(len(weights)) if split_file is None else _read_split(split_file, len(weights))
    rows = rows[steps[rows] == step]
    if not len(rows):
        raise UserError(f"Expected a step of {source / METRICS_FILE}, {np.unique(steps).tolist()}, but got {step}.")
    wanted = set(rows.tolist())
    metrics = {number: row for number, row in enumerate(_read_metrics(source)) if number in wanted}
    splits = zoo_splits(len(rows))
    provenance = {**provenance, "step": step, "split": None if split_file is None else readable_name(split_file)}
    store = Store.create(out, StoreHeader(len(rows), shard_size_for(spec.num_entries), spec, provenance))
    for shard in range(store.header.num_shards):
        items = store.header.items_of(shard)
        here = rows[items.start : items.stop]
        with np.errstate(over="ignore"):  # numbers that are too large become infinite, and are refused
            vectors = np.asarray(weights[here], dtype=np.float32)[:, order]
        if not np.isfinite(vectors).all():
            row = here[~np.isfinite(vectors).all(1)][0]
            raise UserError(
                f"Expected finite weights, but row {row} of {source / WEIGHTS} holds NaN or infinity. Leave out "
                "networks whose training diverged."
            )
        tensors = {
            "weights": vectors,
            "split": splits[items.start : items.stop],
            "source_index": here.astype(np.int64),
            "copy": np.zeros(len(here), dtype=np.int64),
            **{
                name: np.array([_number(metrics[row], name, row) for row in here.tolist()], dtype=np.float32)
                for name in METRICS
            },
        }
        metadata = [
            {
                "item": item,
                "source_index": row,
                "split": SPLITS[splits[item]],
                "config": {
                    name.removeprefix("config."): _value(text)
                    for name, text in metrics[row].items()
                    if name.startswith("config.")
                },
                "modeldir": metrics[row].get("modeldir", ""),
                **{name: _number(metrics[row], name, row) for name in METRICS},
            }
            for item, row in zip(items, here.tolist(), strict=True)
        ]
        store.write_shard(shard, tensors, metadata)
        report(items.stop, len(rows))


def _require_files(source: Path) -> None:
    missing = [name for name in (WEIGHTS, METRICS_FILE, LAYOUT) if not (source / name).is_file()]
    if missing:
        raise UserError(
            f"Expected {WEIGHTS}, {METRICS_FILE} and {LAYOUT} in {source}, but there is no {' and no '.join(missing)}."
        )


def _read_lines(file: Path, stream: io.TextIOBase) -> Iterator[str]:
    """The lines of a text; refuses texts that are too large, because a small archive can hold any amount."""
    stored, total, checked = file.stat().st_size, 0, 0
    while line := stream.readline(_MAX_LINE):
        if len(line) == _MAX_LINE:
            raise UserError(f"Refused {file}: it has a line of more than {_MAX_LINE} characters.")
        total += len(line)
        if total > checked + _MAX_LINE:
            require_memory(total, f"Refused {file}: its text", stored=stored)
            checked = total
        yield line


def _read_table(file: Path, stream: io.TextIOBase, columns: Sequence[str]) -> Iterator[dict[str, str]]:
    try:
        reader = csv.DictReader(_read_lines(file, stream))
        missing = [name for name in columns if name not in (reader.fieldnames or ())]
        if missing:
            raise UserError(
                f"Expected the columns {', '.join(columns)} in {file}, but {', '.join(missing)} is missing."
            )
        for number, row in enumerate(reader):
            if None in row or None in row.values():
                raise UserError(f"Expected as many values as columns in {file}, but row {number} has more or fewer.")
            yield row
    except (OSError, EOFError, zlib.error, csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"Cannot read {file}: {error}. Expected a table of comma-separated values.") from error


def _read_metrics(source: Path) -> Iterator[dict[str, str]]:
    with gzip.open(source / METRICS_FILE, "rt", newline="") as stream:
        yield from _read_table(source / METRICS_FILE, stream, ("step", *METRICS))


def _read_layout(file: Path, weights_shape: tuple[int, ...]) -> tuple[NetworkSpec, Int[np.ndarray, "N"]]:
    """The spec, and the column of each packed entry."""
    parts: dict[str, dict[str, tuple[int, tuple[int, ...]]]] = {}
    stop = 0
    with open(file, newline="") as stream:
        for row in _read_table(file, stream, _LAYOUT_COLUMNS):
            layer, _, kind = row["varname"].removesuffix(":0").rpartition("/")
            shape = tuple(int(n) for n in re.findall(r"[0-9]{1,18}", row["shape"]))
            bounds = tuple(_whole(row[n]) for n in ("start_idx", "end_idx", "size"))
            if kind not in ("kernel", "bias") or kind in parts.get(layer, {}):
                raise UserError(f"Expected one kernel:0 and one bias:0 per layer in {file}, but got {row['varname']}.")
            size, is_short = math.prod(shape), len(shape) < (2 if kind == "kernel" else 1)
            if bounds != (stop, stop + size, size) or is_short or len(shape) > _MAX_DIMENSIONS:
                raise UserError(
                    f"Expected {row['varname']} in {file} to start at {stop} and to fill its shape {row['shape']}, but "
                    f"it has start, end and size {row['start_idx']}, {row['end_idx']}, {row['size']}."
                )
            parts.setdefault(layer, {})[kind] = (stop, shape)
            stop += size
            if not size or stop > weights_shape[1]:
                break
    # Checked before anything of that size is allocated: the layout may be wrong.
    if stop != weights_shape[1]:
        raise UserError(
            f"Expected {WEIGHTS} to have the shape (rows, {stop}), as in {file}, but it has {weights_shape}."
        )
    return _layout_spec(file, parts)


def _layout_spec(
    file: Path, variables: Mapping[str, Mapping[str, tuple[int, tuple[int, ...]]]]
) -> tuple[NetworkSpec, Int[np.ndarray, "N"]]:
    parts: dict[str, dict[str, np.ndarray]] = {}
    for layer, found in variables.items():
        for kind, (start, shape) in found.items():
            places = np.arange(start, start + math.prod(shape)).reshape(shape)
            # (*kernel, in, out) to (out, in, *kernel)
            parts.setdefault(layer, {})[kind] = np.moveaxis(places, (-1, -2), (0, 1)) if kind == "kernel" else places
    layers = []
    for number, (name, part) in enumerate(parts.items()):
        if "kernel" not in part or ("bias" in part and part["bias"].shape != part["kernel"].shape[:1]):
            raise UserError(f"Expected {name} in {file} to have a kernel, and a bias for each of its outputs.")
        out_neurons, in_neurons, *kernel = part["kernel"].shape
        layers.append(LayerSpec(out_neurons, in_neurons, tuple(kernel), "bias" in part, f"layers.{number}"))
    if len({len(layer.kernel) for layer in layers if layer.kernel}) > 1:
        raise UserError(
            f"Expected convolutions of one number of dimensions in {file}, but got {', '.join(map(str, layers))}."
        )
    try:
        spec = NetworkSpec(tuple(layers))
    except ValueError as error:
        raise UserError(f"{file} describes no chain of layers: {error}") from error
    kinds = {"weight": "kernel", "bias": "bias"}
    named = list(parts.values())
    return spec, np.concatenate([named[g.layer - 1][kinds[g.kind]].ravel() for g in spec.groups])


def _read_weights(file: Path) -> np.ndarray:
    weights = map_npy(file)
    if weights.ndim != 2 or weights.dtype.kind != "f" or not weights.size:
        raise UserError(
            f"Expected real numbers of shape (rows, columns) in {file}, but got {weights.dtype} of shape "
            f"{weights.shape}."
        )
    return weights


def _read_split(file: Path, num_rows: int) -> Int[np.ndarray, "R"]:
    require_file(file, "index file")
    require_memory(file.stat().st_size, f"The index file {file}")
    try:
        with open(file) as stream:
            rows = np.loadtxt(stream, dtype=np.int64, delimiter=",", ndmin=1).ravel()
    except (OSError, ValueError, OverflowError) as error:
        raise UserError(f"Cannot read the index file {file}: {error}. Expected one row number per line.") from error
    if not np.array_equal(np.sort(rows), np.arange(num_rows)):
        largest = int(rows.max()) if len(rows) else "none"
        raise UserError(
            f"The index file {file} does not fit: expected each row from 0 to {num_rows - 1} once, but got {len(rows)} "
            f"numbers, {len(np.unique(rows))} of them different, up to {largest}. Does it belong to another zoo?"
        )
    return rows


def _whole(text: str) -> int:
    """The number, or -1."""
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else -1


def _step(row: dict[str, str], number: int) -> int:
    step = _number(row, "step", number)
    if not 0 <= step < 2**53 or not step.is_integer():
        raise UserError(f"Expected a whole number as step in row {number} of {METRICS_FILE}, but got '{row['step']}'.")
    return int(step)


def _number(row: dict[str, str], name: str, number: int) -> float:
    try:
        value = float(row[name])
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"Expected a number as {name} in row {number} of {METRICS_FILE}, but got '{row[name]}'.")
    return value


def _value(text: str) -> int | float | str:
    """A number if the text is one."""
    for kind in (int, float) if len(text) <= 40 else ():
        try:
            value = kind(text)
        except ValueError:
            continue
        return value if math.isfinite(value) else text
    return text


# Export.


def export_zoo(dataset: WeightDataset, out: Path, report: Progress) -> int:
    """Writes a zoo to a new directory, one row per network and checkpoint; returns the number of networks."""
    if any(name not in dataset.tensor_names for name in METRICS) or not dataset.is_complete:
        raise UserError(f"Expected a complete zoo with {', '.join(METRICS)} at {dataset.path}. Make one with nf zoo.")
    spec, provenance = dataset.spec, dataset.provenance
    has_checkpoints = "checkpoint_weights" in dataset.tensor_names
    steps = provenance.get("checkpoint_epochs") if has_checkpoints else [provenance.get("step")]
    if not steps or None in steps:
        raise UserError(
            f"Expected a zoo that records the steps of its checkpoints at {dataset.path}. Make one with nf zoo."
        )
    shape = (len(dataset) * len(steps), spec.num_entries)
    _write_layout(spec, out / LAYOUT)
    order = _read_layout(out / LAYOUT, shape)[1]
    config = {
        "b_init": "zeros",
        "dataset": provenance.get("images", ""),
        "dnn_architecture": "cnn",
        "epochs": steps[-1],
        "epochs_between_checkpoints": 20,
        "num_layers": sum(bool(layer.kernel) for layer in spec.layers),
        "num_units": spec.widths[1],
        "random_seed": provenance.get("seed", 0),
    }
    # No time stamp: equal zoos have equal bytes. Not written by memory map: a full disk must raise an error.
    with (
        open(out / METRICS_FILE, "wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
        open(out / WEIGHTS, "wb") as weights,
    ):
        np.lib.format.write_array_header_1_0(weights, {"descr": "<f4", "fortran_order": False, "shape": shape})
        columns = np.argsort(order)
        text = io.TextIOWrapper(packed, newline="")
        table = csv.writer(text, lineterminator="\n")
        names = [f"config.{name}" for name in _CONFIG_COLUMNS]
        table.writerow(["", *names, "modeldir", "step", *_METRIC_COLUMNS, "laststep"])
        for shard in range(dataset.store.header.num_shards):
            tensors, metadata = dataset.store.map_tensors(shard), dataset.store.read_index(shard)[0]
            prefix = "checkpoint_" if has_checkpoints else ""
            for place, item in enumerate(metadata):
                values = {**config, **item.get("config", {})}
                folder = item.get("modeldir") or f"zoo/{item['item']}"
                for k, step in enumerate(steps):
                    at = (place, k) if has_checkpoints else place
                    weights.write(tensors[f"{prefix}weights"][at][columns].astype("<f4").tobytes())
                    measured = [repr(float(tensors[f"{prefix}{name}"][at])) for name in _METRIC_COLUMNS]
                    table.writerow(
                        [
                            f"{folder}/permanent_ckpt-{step}",
                            *(values.get(name, "") for name in _CONFIG_COLUMNS),
                            folder,
                            step,
                            *measured,
                            step == steps[-1],
                        ]
                    )
                report(item["item"] + 1, len(dataset))
        text.flush()
        text.detach()
    (out / SPLIT).write_text("".join(f"{row}\n" for row in range(shape[0])))
    return len(dataset)


def _write_layout(spec: NetworkSpec, file: Path) -> None:
    counts: dict[str, int] = {}
    start = 0
    with open(file, "w", newline="") as stream:
        table = csv.writer(stream, lineterminator="\n")
        table.writerow(_LAYOUT_COLUMNS)
        for layer in spec.layers:
            kind = f"conv{len(layer.kernel)}d" if layer.kernel else "dense"
            number = counts[kind] = counts.get(kind, -1) + 1
            name = f"sequential/{kind}_{number}" if number else f"sequential/{kind}"
            variables: dict[str, tuple[int, ...]] = {"bias": (layer.out_neurons,)} if layer.has_bias else {}
            variables["kernel"] = (*layer.kernel, layer.in_neurons, layer.out_neurons)
            for variable, shape in variables.items():
                size = math.prod(shape)
                table.writerow([f"{name}/{variable}:0", start, start + size, size, str(shape)])
                start += size
