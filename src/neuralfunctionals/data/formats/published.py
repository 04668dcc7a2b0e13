"""Import and export: a `.pth` per network in labelled folders, `state_dict`s, flat npz files, the CNN zoo.

Files are read as data only: tensors are unpickled with `weights_only`, and arrays must not hold objects.
"""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from neuralfunctionals.data.formats.network_files import (
    arrays_of_form,
    read_arrays,
    read_form,
    read_network,
)
from neuralfunctionals.data.formats.small_cnn_zoo import export_zoo, import_zoo
from neuralfunctionals.data.shards import describe_items
from neuralfunctionals.data.store import Store, StoreHeader
from neuralfunctionals.data.weight_dataset import WeightDataset
from neuralfunctionals.errors import UserError, require_choice
from neuralfunctionals.files.budget import require_memory
from neuralfunctionals.files.scratch import scratch_beside
from neuralfunctionals.files.untrusted import shard_size_for
from neuralfunctionals.files.writing import readable_name
from neuralfunctionals.images.splits import SPLITS, own_splits
from neuralfunctionals.inr import SirenForm, convert
from neuralfunctionals.inr.siren import can_be_siren
from neuralfunctionals.weight_space import NetworkSpec, WeightSpaceFeatures

FORMATS = ("nfn-sirens", "state-dicts", "npz", "small-cnn-zoo")
IMAGE_SIZE = (28, 28)
"""Default height and width at which imported networks are rendered."""
_COUNTERS = ("label", "source_index", "copy", "split")
_LARGEST = np.iinfo(np.int64).max
_NFN_FOLDER = re.compile(r"(?P<prefix>.*)_(?P<label>\d+)s")
_NFN_FILE = re.compile(r"net(?P<index>\d+)\.pth")
_ENDINGS = (".pth", ".pt", ".safetensors")

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class _Network:
    """One network to import: its file, label and index."""

    file: Path
    source_index: int
    label: int


def import_networks(
    kind: str,
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    convention: str | None = None,
    omega: float | None = None,
    image_size: tuple[int, int] | None = None,
    step: int | None = None,
    split_file: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Store:
    """Makes a store from networks in another format; atomic.

    Args:
        kind: `nfn-sirens` (`<prefix>_<label>s/net<i>.pth`), `state-dicts` (a directory of `.pth`, `.pt` or
            `.safetensors` files, whose sub-directories are classes), `npz` (`weights` and `spec`, as exported), or
            `small-cnn-zoo` (`weights.npy`, `metrics.csv.gz`, `layout.csv`).
        source: The directory or file.
        out: The new store.
        convention: SIREN convention of the networks; recorded, not converted. Defaults to the one that an `npz`
            records, or else `"paper"`.
        omega: Frequency of the sines. Defaults to the one that an `npz` records, or else 30.
        image_size: Height and width at which tasks that need images render sine networks of two coordinates. Defaults
            to 28 x 28. If an `npz` has images, they are kept instead.
        step: Checkpoint of a CNN zoo to import. Defaults to the last.
        split_file: Index file of a CNN zoo: one row number per line, in the order in which networks are split.
        progress: Called with the number of networks done and the total number.
    """
    _require_format(kind)
    for_sirens = {"convention": convention, "omega": omega, "image_size": image_size}
    given = [name for name, value in for_sirens.items() if value is not None]
    if kind == "small-cnn-zoo" and given:
        raise UserError(f"Expected no {given[0]} for a small-cnn-zoo: it is for sine networks. Leave it out.")
    known = read_form(source) if kind == "npz" and Path(source).is_file() else None
    form = SirenForm.choose(omega, convention, known=known, assumed=SirenForm(), where=source)
    source, out = Path(source), Path(out)
    if not source.exists():
        raise UserError(f"Expected networks to import at {source}, but there is no such file or directory.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"Expected a new directory for the store, but {out} already exists. Choose another one.")
    provenance: dict[str, Any] = {"kind": "imported networks", "format": kind, "source": readable_name(source)}
    if kind != "small-cnn-zoo":
        provenance |= {"convention": form.convention, "omega": form.omega}
    report = progress or (lambda done, total: None)
    with scratch_beside(out) as scratch:
        made = scratch / "store"
        if kind == "npz":
            _import_npz(source, made, provenance, image_size, report)
        elif kind == "small-cnn-zoo":
            order = None if split_file is None else Path(split_file)
            import_zoo(source, made, provenance, report, step=step, split_file=order)
        else:
            _import_files(_find_networks(kind, source), made, provenance, image_size, report)
        _put(made, out)
    return Store(out)


def _put(made: Path, out: Path) -> None:
    if out.is_dir():  # an empty one
        out.rmdir()
    os.replace(made, out)


def _require_format(name: str) -> None:
    require_choice("a format,", name, FORMATS)


def _find_networks(kind: str, source: Path) -> list[_Network]:
    if not source.is_dir():
        raise UserError(f"Expected a directory of networks, but {source} is a file.")
    if kind == "nfn-sirens":
        expected = "folders named <prefix>_<label>s with files net<i>.pth"
        found = [
            _Network(file, int(number["index"]), int(folder["label"]))
            for file in source.rglob("*.pth")
            if (folder := _NFN_FOLDER.fullmatch(file.parent.name))
            and (number := _NFN_FILE.fullmatch(file.name))
            and file.is_file()
        ]
        found.sort(key=lambda n: (n.source_index, n.label))
        if len({n.source_index for n in found}) < len(found):  # numbered from 0 again in each folder
            found = [_Network(n.file, place, n.label) for place, n in enumerate(found)]
    else:
        expected = f"files ending in {', '.join(_ENDINGS)}"
        files = sorted((p for p in source.rglob("*") if p.suffix in _ENDINGS and p.is_file()), key=_natural)
        folders = sorted({p.parent for p in files if p.parent != source}, key=_natural)
        # Folders named by numbers are labels, as in our exports; others are numbered in order.
        are_labels = all(folder.name.isdecimal() for folder in folders)
        labels = {folder: int(folder.name) if are_labels else place for place, folder in enumerate(folders)}
        found = [_Network(p, place, labels.get(p.parent, -1)) for place, p in enumerate(files)]
    if not found:
        raise UserError(f"Expected {expected} in {source}, but found none.")
    for network in found:
        if max(network.label, network.source_index) > _LARGEST:
            raise UserError(
                f"Expected numbers of at most 63 bits in the names of folders and files, as in {network.file}."
            )
    return found


def _natural(path: Path) -> list[tuple[int, int, str]]:
    """Sorts net2 before net10."""
    return [(0, int(x), "") if x.isdecimal() else (1, 0, x) for x in re.split(r"(\d+)", os.fspath(path)) if x]


def _shape(spec: NetworkSpec, image_size: tuple[int, int] | None) -> dict[str, Any]:
    """The shape of the images rendered from sine networks of two coordinates."""
    if can_be_siren(spec) and spec.widths[0] == 2:  # as `WeightDataset.can_render`
        shape = [*(image_size or IMAGE_SIZE), spec.widths[-1]]
        require_memory(4 * math.prod(shape), f"An image of {shape[0]}x{shape[1]}")
        return {"image_shape": shape}
    if image_size is not None:
        raise UserError(f"Expected sine networks of two coordinates to render images from, but got {spec}.")
    return {}


def _import_files(
    networks: list[_Network],
    out: Path,
    provenance: dict[str, Any],
    image_size: tuple[int, int] | None,
    report: Progress,
) -> None:
    spec = read_network(networks[0].file).spec
    splits = own_splits(len(networks))
    provenance = {**provenance, **_shape(spec, image_size)}
    store = Store.create(out, StoreHeader(len(networks), shard_size_for(spec.num_entries), spec, provenance))
    for shard in range(store.header.num_shards):
        items = store.header.items_of(shard)
        chosen = networks[items.start : items.stop]
        tensors = {
            "weights": torch.cat([read_network(n.file, spec).to_vectors() for n in chosen]).numpy(),
            "label": np.array([n.label for n in chosen], dtype=np.int64),
            "source_index": np.array([n.source_index for n in chosen], dtype=np.int64),
            "copy": np.zeros(len(chosen), dtype=np.int64),
            "split": splits[list(items)],
        }
        names = [f"{readable_name(n.file.parent)}/{readable_name(n.file)}" for n in chosen]
        counters = {name: tensors[name] for name in _COUNTERS}
        store.write_shard(shard, tensors, describe_items(items, **counters, file=names))
        report(items.stop, len(networks))


def _import_npz(
    source: Path, out: Path, provenance: dict[str, Any], image_size: tuple[int, int] | None, report: Progress
) -> None:
    features, content = read_arrays(source)
    spec, count = features.spec, len(features)
    content.setdefault("label", np.full(count, -1))
    content.setdefault("source_index", np.arange(count))
    content.setdefault("copy", np.zeros(count, dtype=np.int64))
    content.setdefault("split", own_splits(count))
    wrong = {name: array.shape for name, array in content.items() if array.shape[:1] != (count,)}
    if wrong:
        raise UserError(f"Expected {count} entries in every array of {source}, but got {wrong}.")
    content = {name: _storable(source, name, array) for name, array in content.items()}
    for name in _COUNTERS:
        if content[name].dtype.kind not in "iub":
            raise UserError(f"Expected whole numbers as '{name}' in {source}, but got {content[name].dtype}.")
        content[name] = content[name].astype(np.int64)
    if content["split"].ndim != 1 or not np.isin(content["split"], range(len(SPLITS))).all():
        raise UserError(f"Expected splits 0 (train), 1 (val) and 2 (test) in {source}, but got other values.")
    content |= {"split": content["split"].astype(np.uint8), "weights": features.to_vectors().numpy()}
    if "image" not in content:
        provenance = {**provenance, **_shape(spec, image_size)}
    elif image_size is not None:
        raise UserError(f"Expected no image size for {source}: it already has images. Leave it out.")
    store = Store.create(out, StoreHeader(count, shard_size_for(spec.num_entries), spec, provenance))
    for shard in range(store.header.num_shards):
        items = store.header.items_of(shard)
        tensors = {name: array[items.start : items.stop] for name, array in content.items()}
        store.write_shard(shard, tensors, describe_items(items, **{name: tensors[name] for name in _COUNTERS}))
        report(items.stop, count)


def _storable(file: Path, name: str, array: np.ndarray) -> np.ndarray:
    """Converts an array to a dtype that stores support, with the same values."""
    if not re.fullmatch(r"[A-Za-z][\w.-]*", name):
        raise UserError(f"Expected the names of arrays in {file} to be words, but got {name!r}.")
    if name == "image" and (array.dtype != np.uint8 or array.ndim != 4):
        raise UserError(
            f"Expected bytes (uint8) of shape (number, height, width, channels) as 'image' in {file}, but got "
            f"{array.dtype} of shape {array.shape}."
        )
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8 or (name in _COUNTERS and array.ndim != 1):
        raise UserError(
            f"Expected plain numbers of at most 64 bits as '{name}' in {file}, but got {array.dtype} of shape "
            f"{array.shape}."
        )
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        if array.size and int(array.max()) > _LARGEST:
            raise UserError(f"Expected numbers of at most 63 bits as '{name}' in {file}, but got {array.max()}.")
        return array.astype(np.int64)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def export_networks(
    kind: str,
    store: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    prefix: str = "siren",
    convention: str | None = None,
    progress: Progress | None = None,
) -> int:
    """Writes the networks of a store in another format; atomic.

    Args:
        kind: `nfn-sirens`, `state-dicts`, `npz` or `small-cnn-zoo`; see `import_networks`.
        store: The store's directory.
        out: A new directory, or a file for `npz`.
        prefix: Prefix of the folder names for `nfn-sirens`.
        convention: The convention to write. Defaults to that of the store.
        progress: Called with the number of networks done and the total number.

    Returns:
        The number of networks.
    """
    _require_format(kind)
    dataset = WeightDataset(store)
    own = SirenForm.from_provenance(dataset.provenance) or SirenForm()
    wanted = replace(own, convention=convention or own.convention)
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"Expected a new path to export to, but {out} already exists. Choose another one.")
    report = progress or (lambda done, total: None)
    with scratch_beside(out) as scratch:
        made = scratch / "networks"
        if kind == "npz":
            with open(made, "wb") as file:
                _export_npz(dataset, file, own, wanted)
        elif kind == "small-cnn-zoo":
            made.mkdir()
            export_zoo(dataset, made, report)
        else:
            for index, name, state_dict in _named_networks(dataset, kind, prefix, own, wanted):
                (made / name).parent.mkdir(parents=True, exist_ok=True)
                data = io.BytesIO()
                torch.save(state_dict, data)  # in memory: torch's errors do not tell a full disk from a bug
                (made / name).write_bytes(data.getbuffer())
                report(index + 1, len(dataset))
        _put(made, out)
    return len(dataset)


def _named_networks(
    dataset: WeightDataset,
    kind: str,
    prefix: str,
    own: SirenForm,
    wanted: SirenForm,
) -> Iterator[tuple[int, str, dict[str, Tensor]]]:
    last = dataset.spec.num_layers - 1
    # Files are numbered by image, unless there are several networks per image.
    has_copies = len(dataset.column("source_index").unique()) < len(dataset)
    if kind == "nfn-sirens" and not can_be_siren(dataset.spec):
        raise UserError(f"Expected sine networks, dense layers with biases, for {kind}, but got {dataset.spec}.")
    for start in range(0, len(dataset), 256):
        items = dataset[start : start + 256]
        assert items.features is not None
        networks = _in_form(items.features, own, wanted).to_state_dicts()
        labels = [-1] * len(networks) if items.label is None else items.label.tolist()
        keys = zip(networks, labels, items.source_index.tolist(), strict=True)
        for place, (state_dict, label, source_index) in enumerate(keys, start=start):
            if kind == "state-dicts":
                yield place, f"{label}/network{place:06d}.pth" if label >= 0 else f"network{place:06d}.pth", state_dict
                continue
            # The published module has the weights of a sine layer under .linear, but not those of the last layer.
            names = [layer.name for layer in dataset.spec.layers]
            theirs = [f"net.{i}" if i == last else f"net.{i}.linear" for i in range(last + 1)]
            renamed = {
                f"{new}.{kind}": state_dict[f"{old}.{kind}"]
                for old, new in zip(names, theirs, strict=True)
                for kind in ("weight", "bias")
            }
            yield place, f"{prefix}_{label}s/net{place if has_copies else source_index}.pth", renamed


def _export_npz(dataset: WeightDataset, file: BinaryIO, own: SirenForm, wanted: SirenForm) -> None:
    features = WeightSpaceFeatures.from_vectors(dataset.spec, dataset.column("weights"))
    arrays = {name: dataset.column(name).numpy() for name in dataset.tensor_names if name != "weights"}
    weights = _in_form(features, own, wanted).to_vectors().numpy()
    spec = dataset.store.header.spec or dataset.spec
    content: dict[str, Any] = {**arrays, "weights": weights, "spec": np.array(spec.to_json())}
    told = SirenForm.from_provenance(dataset.provenance) is not None  # CNNs have no such form
    np.savez(file, **content, **arrays_of_form(wanted if told else None))


def _in_form(features: WeightSpaceFeatures, own: SirenForm, wanted: SirenForm) -> WeightSpaceFeatures:
    return features if own == wanted else convert(own.label(features), wanted)
