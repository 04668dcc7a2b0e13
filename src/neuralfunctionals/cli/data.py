"""`nf data`: inspect and verify stores, import and export networks."""

from __future__ import annotations

from typing import Any

from neuralfunctionals.cli.bars import plain_bar
from neuralfunctionals.cli.command import Add, Command, parse_size, say

# Torch and everything that needs it is imported inside the functions, so that --help is fast.


def quantiles(values: Any, digits: int) -> dict[str, float]:
    """Quantiles of the values of a column."""
    import numpy as np

    levels = {"min": 0.0, "5%": 0.05, "median": 0.5, "95%": 0.95, "max": 1.0}
    return {name: round(float(np.quantile(values, q)), digits) for name, q in levels.items()}


def _add_store_argument(add: Add) -> None:
    add("store", metavar="DIR", help="a store")


def _data_info(store: str) -> dict[str, Any]:
    import numpy as np

    from neuralfunctionals.data import SPLITS, Store

    opened = Store(store)
    shards, header = opened.map_shards(), opened.header
    columns = opened.join_columns(shards)
    result: dict[str, Any] = {
        "items": sum(len(header.items_of(shard)) for shard in shards),
        "items_planned": header.num_items,
        "complete": len(shards) == header.num_shards,
        "spec": None if header.spec is None else str(header.spec),
        "tensors": sorted(next(iter(shards.values()))),
        **header.provenance,
    }
    if "split" in columns:
        counts = np.bincount(columns["split"], minlength=len(SPLITS)).tolist()
        result["splits"] = dict(zip(SPLITS, counts, strict=True))
    if "psnr_db" in columns:
        psnr_db = columns["psnr_db"]
        result["psnr_db"] = quantiles(psnr_db, digits=3)
        stop = (result.get("recipe") or {}).get("stop_psnr_db")
        result["missed_psnr"] = 0 if stop is None else int((psnr_db < stop).sum())
    for name in ("train_accuracy", "test_accuracy"):
        if name in columns:
            result[name] = quantiles(columns[name], digits=4)
    return result


def _data_verify(store: str) -> dict[str, Any]:
    from neuralfunctionals.data import Store, StoreError

    opened = Store(store)
    problems = [f"{file.name}: {problem}" for file, problem in opened.problems()]
    if problems:
        raise StoreError(" ".join(problems[:5]) + (f" And {len(problems) - 5} more." if len(problems) > 5 else ""))
    return {"items": opened.header.num_items, "shards": opened.header.num_shards, "intact": True}


def _add_import_arguments(add: Add) -> None:
    add("format", help="nfn-sirens, state-dicts, npz, or small-cnn-zoo")
    add("source", metavar="PATH", help="file or directory to import")
    add("--out", required=True, metavar="DIR", help="the new store")
    add("--convention", metavar="NAME", help="SIREN convention: paper or dws; defaults to that of the npz, or paper")
    add("--omega", type=float, help="frequency of the sines; defaults to that of the npz, or 30")
    add("--image-size", metavar="N|HxW", help="size at which networks without images are rendered in training (28)")
    add("--step", type=int, metavar="N", help="which checkpoint of a small-cnn-zoo (the last)")
    add(
        "--split",
        dest="split_file",
        metavar="FILE",
        help="index file of a small-cnn-zoo: row numbers in the order of the split",
    )


def _data_import(*, image_size: str | None, **options: Any) -> dict[str, Any]:
    from neuralfunctionals.data.formats.published import import_networks
    from neuralfunctionals.inr import SirenForm

    with plain_bar("importing") as advance:
        kind = options.pop("format")
        store = import_networks(kind, **options, image_size=parse_size(image_size), progress=advance)
    made, asked = store.header.provenance, (options["omega"], options["convention"], image_size)
    if "image_shape" in made and None in asked:
        form = SirenForm.from_provenance(made)
        size = "x".join(map(str, made["image_shape"][:2]))
        say(
            f"assuming sine networks with {form}, rendered as images of {size}. If this is wrong, import them again "
            "with --omega, --convention and --image-size."
        )
    return {"items": store.header.num_items, "spec": str(store.header.spec), "out": options["out"]}


def _add_export_arguments(add: Add) -> None:
    add("format", help="nfn-sirens, state-dicts, npz, or small-cnn-zoo")
    add("store", metavar="DIR", help="a store")
    add("--out", required=True, metavar="PATH", help="a new directory, or a file for npz")
    add("--prefix", default="siren", help="prefix of the folder names for nfn-sirens (siren)")
    add("--convention", metavar="NAME", help="paper or dws; defaults to that of the store")


def _data_export(**options: Any) -> dict[str, Any]:
    from neuralfunctionals.data.formats.published import export_networks

    with plain_bar("exporting") as advance:
        count = export_networks(options.pop("format"), **options, progress=advance)
    return {"items": count, "out": options["out"]}


COMMANDS = {
    "data info": Command("Show what is in a store.", "nf data info /tmp/sirens", _add_store_argument, _data_info),
    "data verify": Command(
        "Verify the checksums of a store and list damaged or missing files.",
        "nf data verify /tmp/sirens",
        _add_store_argument,
        _data_verify,
    ),
    "data import": Command(
        "Import networks from other formats into a store; no code in the files is run.",
        "nf data import state-dicts my_networks/ --out /tmp/mine",
        _add_import_arguments,
        _data_import,
    ),
    "data export": Command(
        "Write a store in another format.",
        "nf data export nfn-sirens /tmp/sirens --out /tmp/published",
        _add_export_arguments,
        _data_export,
    ),
}
