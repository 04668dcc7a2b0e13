"""The `nf` command: a table from command to function."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

# Torch and all that needs it is imported inside the functions: help must come at once.
import jsonargparse

from neuralfunctionals import __version__


@dataclass(frozen=True)
class Command:
    """One command: what it takes, what it does. `run` returns what `--json` prints."""

    summary: str
    example: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[Any], dict[str, Any]]


# nf fit and nf zoo: image sets to stores, shard by shard


def _add_run_arguments(parser: argparse.ArgumentParser, done: str) -> None:
    add = parser.add_argument
    add(
        "--images",
        required=True,
        metavar="NAME|PATH",
        help="mnist-sample, fashion-sample, shapes-sample, mnist, fashion, cifar10, svhn-grey, a folder, an array file",
    )
    add("--out", required=True, metavar="DIR", help="the store; an interrupted run is continued")
    add("--seed", type=int, default=0, help="start of the random numbers (0)")
    add("--engine", default="auto", metavar="NAME", help="native, torch or auto (native where there is a C++ compiler)")
    add("--workers", type=int, metavar="N", help=f"shards {done} at the same time, one thread each (all cores)")
    add("--shard-size", type=int, metavar="N", help=f"items {done} and written together")
    add("--shard", metavar="I/N", help="do the I-th of N equal parts of the work, for N machines with one directory")
    add("--ray", metavar="ADDRESS", help="run on a Ray cluster; 'local' starts one on this machine")
    add("--data-root", metavar="DIR", help="where full image sets are, or will be downloaded to (NF_DATA_ROOT)")
    add("--image-size", type=int, metavar="N", help="resize the images of a folder to N x N")


def _require_positive(arguments: Any, *names: str) -> None:
    for name in names:
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise ValueError(f"Expected --{name.replace('_', '-')} to be at least 1, but got {value}.")


def _open_images(arguments: Any) -> Any:
    from neuralfunctionals.data import open_images

    with _download_bar() as downloading:
        return open_images(
            arguments.images, data_root=arguments.data_root, image_size=arguments.image_size, progress=downloading
        )


def _count_items(plan: Any, share: tuple[int, int]) -> int:
    """How many items this share of the shards has."""
    return sum(len(plan.header.items_of(shard)) for shard in range(share[0], plan.header.num_shards, share[1]))


# nf fit


def _add_fit_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    _add_run_arguments(parser, "fitted")
    add("--limit", type=int, metavar="N", help="fit N images, spread over the splits in proportion")
    add("--copies", type=int, default=1, metavar="K", help="networks for each training image (1)")
    add("--recipe", default="default", metavar="NAME", help="how to train: default, fast, sharp, slow")
    add("--psnr", type=float, metavar="DB", help="stop each network at this quality; those that miss it are marked")
    add("--hidden", default="32,32", metavar="N,N", help="widths of the hidden layers (32,32)")
    add("--omega", type=float, default=30.0, help="frequency of the sines (30)")
    add(
        "--convention", default="paper", metavar="NAME", help="paper (default) or dws: how inputs and outputs are meant"
    )


def _fit(arguments: Any) -> dict[str, Any]:
    share = _parse_share(arguments.shard)
    hidden = _parse_widths(arguments.hidden)
    _require_positive(arguments, "workers", "shard_size", "image_size", "limit", "copies")
    import time

    from neuralfunctionals.data import FitPlan, WeightDataset, fit_dataset

    plan = FitPlan.make(
        _open_images(arguments),
        recipe=arguments.recipe,
        copies=arguments.copies,
        limit=arguments.limit,
        psnr_db=arguments.psnr,
        hidden=hidden,
        omega=arguments.omega,
        convention=arguments.convention,
        seed=arguments.seed,
        engine=arguments.engine,
        shard_size=arguments.shard_size,
    )
    started = time.perf_counter()
    fitted: list[float] = []
    total = _count_items(plan, share)
    with _items_bar("fitting", total) as advance:

        def report(count: int, psnr_db: Sequence[float]) -> None:
            fitted.extend(psnr_db)
            advance(count, f"{sum(fitted) / len(fitted):.1f} dB" if fitted else "")

        fit_dataset(
            plan, arguments.out, workers=arguments.workers, share=share, ray_address=arguments.ray, progress=report
        )
    seconds = time.perf_counter() - started
    if not total:
        return {
            "items": 0,
            "items_fitted": 0,
            "engine": plan.engine,
            "out": os.fspath(arguments.out),
            "complete": False,
        }
    dataset = WeightDataset(arguments.out)
    psnr_db = dataset.column("psnr_db")
    missed = 0 if plan.recipe.stop_psnr_db is None else int((psnr_db < plan.recipe.stop_psnr_db).sum())
    return {
        "items": len(dataset),
        "items_fitted": len(fitted),
        "items_per_second": round(len(fitted) / seconds, 2),
        "elapsed_seconds": round(seconds, 3),
        "psnr_db_min": round(psnr_db.min().item(), 3),
        "psnr_db_median": round(psnr_db.median().item(), 3),
        "psnr_db_mean": round(psnr_db.mean().item(), 3),
        "missed_psnr": missed,
        "engine": plan.engine,
        "complete": dataset.is_complete,
        "out": os.fspath(arguments.out),
    }


# nf zoo


def _add_zoo_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    _add_run_arguments(parser, "trained")
    add("--count", type=int, required=True, metavar="N", help="number of networks")
    add("--grey", action="store_true", help="take the mean of the colours")
    add("--epochs", type=int, default=86, help="times that each network sees its images (86)")
    add("--batch-size", type=int, default=512, metavar="N", help="images a step (512)")
    add("--limit-images", type=int, metavar="M", help="use M images, spread over training and testing in proportion")


def _zoo(arguments: Any) -> dict[str, Any]:
    share = _parse_share(arguments.shard)
    _require_positive(arguments, "workers", "shard_size", "image_size", "count", "epochs", "batch_size", "limit_images")
    import time

    from neuralfunctionals.data import WeightDataset, ZooPlan, make_zoo

    plan = ZooPlan.make(
        _open_images(arguments),
        count=arguments.count,
        grey=arguments.grey,
        epochs=arguments.epochs,
        batch_size=arguments.batch_size,
        limit_images=arguments.limit_images,
        seed=arguments.seed,
        engine=arguments.engine,
        shard_size=arguments.shard_size,
    )
    started = time.perf_counter()
    trained: list[float] = []
    total = _count_items(plan, share)
    with _items_bar("training", total) as advance:

        def report(count: int, accuracies: Sequence[float]) -> None:
            trained.extend(accuracies)
            advance(count, f"{100 * sum(trained) / len(trained):.1f}% right" if trained else "")

        make_zoo(
            plan, arguments.out, workers=arguments.workers, share=share, ray_address=arguments.ray, progress=report
        )
    seconds = time.perf_counter() - started
    result = {
        "items": 0,
        "items_trained": len(trained),
        "items_per_second": round(len(trained) / seconds, 4),
        "elapsed_seconds": round(seconds, 3),
        "engine": plan.engine,
        "complete": False,
        "out": os.fspath(arguments.out),
    }
    if total:
        dataset = WeightDataset(arguments.out)
        accuracy = _quantiles(dataset.column("test_accuracy"), digits=4)
        result |= {"items": len(dataset), "complete": dataset.is_complete, "test_accuracy": accuracy}
    return result


def _quantiles(values: Any, digits: int) -> dict[str, float]:
    levels = {"min": 0.0, "5%": 0.05, "median": 0.5, "95%": 0.95, "max": 1.0}
    return {name: round(values.quantile(q).item(), digits) for name, q in levels.items()}


def _parse_share(text: str | None) -> tuple[int, int]:
    if text is None:
        return 0, 1
    first, slash, second = text.partition("/")
    if not slash or not first.isdecimal() or not second.isdecimal() or not int(first) <= int(second) or int(second) < 1:
        raise ValueError(f"Expected --shard I/N, such as 1/4 up to 4/4, but got '{text}'.")
    return int(first) % int(second), int(second)


def _parse_widths(text: str) -> list[int]:
    parts = str(text).split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(f"Expected --hidden as widths such as 32,32, but got '{text}'.")
    return [int(part) for part in parts]


# nf data


def _add_store_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", metavar="DIR", help="a store")


def _data_info(arguments: Any) -> dict[str, Any]:
    from neuralfunctionals.data import SPLITS, WeightDataset

    dataset = WeightDataset(arguments.store)
    header = dataset.store.header
    result: dict[str, Any] = {
        "items": len(dataset),
        "items_planned": header.num_items,
        "complete": dataset.is_complete,
        "spec": str(header.spec),
        "tensors": list(dataset.tensor_names),
        **dataset.provenance,
    }
    if "split" in dataset.tensor_names:
        counts = dataset.column("split").bincount(minlength=len(SPLITS)).tolist()
        result["splits"] = dict(zip(SPLITS, counts, strict=True))
    if "psnr_db" in dataset.tensor_names:
        psnr_db = dataset.column("psnr_db")
        result["psnr_db"] = _quantiles(psnr_db, digits=3)
        stop = (result.get("recipe") or {}).get("stop_psnr_db")
        result["missed_psnr"] = 0 if stop is None else int((psnr_db < stop).sum())
    for name in ("train_accuracy", "test_accuracy"):
        if name in dataset.tensor_names:
            result[name] = _quantiles(dataset.column(name), digits=4)
    return result


def _data_verify(arguments: Any) -> dict[str, Any]:
    from neuralfunctionals.data import Store, StoreError

    store = Store(arguments.store)
    problems = [f"{file.name}: {problem}" for file, problem in store.problems()]
    if problems:
        raise StoreError(" ".join(problems[:5]) + (f" And {len(problems) - 5} more." if len(problems) > 5 else ""))
    return {"items": store.header.num_items, "shards": store.header.num_shards, "intact": True}


def _add_import_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("format", help="nfn-sirens, state-dicts, npz, or small-cnn-zoo")
    add("source", metavar="PATH", help="what to import")
    add("--out", required=True, metavar="DIR", help="the new store")
    add("--convention", default="paper", metavar="NAME", help="paper (default) or dws: how the weights are meant")
    add("--omega", type=float, default=30.0, help="frequency of the sines (30)")
    add("--step", type=int, metavar="N", help="which checkpoint of a small-cnn-zoo (the last)")
    add("--split", metavar="FILE", help="index file of a small-cnn-zoo: row numbers in the order of the split")


def _data_import(arguments: Any) -> dict[str, Any]:
    from neuralfunctionals.data.published import import_networks

    with _plain_bar("importing") as advance:
        store = import_networks(
            arguments.format,
            arguments.source,
            arguments.out,
            convention=arguments.convention,
            omega=arguments.omega,
            step=arguments.step,
            split_file=arguments.split,
            progress=advance,
        )
    return {"items": store.header.num_items, "spec": str(store.header.spec), "out": os.fspath(arguments.out)}


def _add_export_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("format", help="nfn-sirens, state-dicts, npz, or small-cnn-zoo")
    add("store", metavar="DIR", help="a store")
    add("--out", required=True, metavar="PATH", help="a new directory, or a file for npz")
    add("--prefix", default="siren", help="start of the folders' names for nfn-sirens (siren)")
    add("--convention", metavar="NAME", help="paper or dws; that of the store if missing")


def _data_export(arguments: Any) -> dict[str, Any]:
    from neuralfunctionals.data.published import export_networks

    with _plain_bar("exporting") as advance:
        count = export_networks(
            arguments.format,
            arguments.store,
            arguments.out,
            prefix=arguments.prefix,
            convention=arguments.convention,
            progress=advance,
        )
    return {"items": count, "out": os.fspath(arguments.out)}


COMMANDS: dict[str, Command] = {
    "fit": Command(
        "Turn images into a dataset of fitted sine networks.",
        "nf fit --images mnist-sample --limit 64 --recipe fast --out /tmp/sirens",
        _add_fit_arguments,
        _fit,
    ),
    "zoo": Command(
        "Train a zoo of small CNNs, each with its own hyperparameters, and measure their accuracies.",
        "nf zoo --images mnist-sample --count 12 --epochs 4 --batch-size 64 --out /tmp/zoo",
        _add_zoo_arguments,
        _zoo,
    ),
    "data info": Command("Show what a store holds.", "nf data info /tmp/sirens", _add_store_argument, _data_info),
    "data verify": Command(
        "Read every byte of a store and name what is damaged or missing.",
        "nf data verify /tmp/sirens",
        _add_store_argument,
        _data_verify,
    ),
    "data import": Command(
        "Bring networks from other formats into a store; no code of theirs is run.",
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
"""All commands by the words that call them."""


class _Parser(jsonargparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Leaves with 2."""
        _fail(message)


def _fail(message: object) -> NoReturn:
    print(f"nf: {' '.join(str(message).split())}", file=sys.stderr)
    raise SystemExit(2)


def build_parser(name: str) -> jsonargparse.ArgumentParser:
    """The parser of one command."""
    command = COMMANDS[name]
    parser = _Parser(
        prog=f"nf {name}",
        description=command.summary,
        epilog=f"example: {command.example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one line of JSON last")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns 0, or leaves with 2 and one line on standard error for what the user can put right."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["--version"]:
        print(f"nf {__version__}")
        return 0
    name = next((" ".join(words[:count]) for count in (2, 1) if " ".join(words[:count]) in COMMANDS), None)
    if name is None:
        return _print_help(words)
    options = build_parser(name).parse_args(words[len(name.split()) :])
    try:
        result = COMMANDS[name].run(options)
    except (ValueError, FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError) as error:
        _fail(error)
    except OSError as error:
        _fail(f"{error}. What was finished before is safe: free some space or repair the disk, and repeat the command.")
    except KeyboardInterrupt:
        print("nf: interrupted. What was finished is safe: repeat the command to continue.", file=sys.stderr)
        return 130
    _print(result, as_json=options.json)
    return 0


def _print_help(words: Sequence[str]) -> int:
    """All commands, or those of a group; anything but a call for help is a mistake."""
    group = words[0] if words and not words[0].startswith("-") else ""
    found = {name: command for name, command in COMMANDS.items() if not group or name.split()[0] == group}
    rest = words[1:] if group else words
    if not found or (rest and rest[0] not in ("-h", "--help")):
        _fail(f"Expected a command ({', '.join(found or COMMANDS)}), but got '{' '.join(words)}'. Try nf --help.")
    print("Weight-space learning: models that read the weights of other networks.\n\nusage: nf COMMAND ...\n")
    for name, command in found.items():
        print(f"  nf {name:<14}{command.summary}")
    print(f"\nnf COMMAND --help explains a command.\nexample: {next(iter(found.values())).example}")
    return 0


def _print(result: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result), flush=True)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None)
    for name, value in result.items():
        table.add_row(name, json.dumps(value) if isinstance(value, (dict, list)) else str(value))
    Console().print(table)


# Progress bars: on standard error so that standard output stays clean, and not before there is something to report, so
# that a mistake is one line.


@contextmanager
def _bar(*columns: Any) -> Iterator[Any]:
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(*(columns or Progress.get_default_columns()), console=Console(stderr=True))
    try:
        yield bar
    finally:
        if bar.tasks:
            bar.stop()


@contextmanager
def _items_bar(what: str, total: int) -> Iterator[Callable[[int, str], None]]:
    """With items a second, the quality so far and the time left."""
    import time

    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    texts = (TextColumn("{task.fields[rate]}"), TextColumn("{task.fields[quality]}"))
    with _bar(TextColumn(what), BarColumn(), MofNCompleteColumn(), *texts, TimeRemainingColumn()) as bar:
        started, done = time.perf_counter(), 0

        def advance(count: int, quality: str) -> None:
            nonlocal done
            if not bar.tasks:
                bar.add_task(what, total=total, rate="", quality="")
                bar.start()
            done += count
            rate = done / max(time.perf_counter() - started, 1e-9)
            bar.update(bar.task_ids[0], advance=count, rate=f"{rate:.3g} items/s", quality=quality)

        yield advance


@contextmanager
def _plain_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """For work of known length: called with the number done and the number in all."""
    with _bar() as bar:

        def report(done: int, total: int) -> None:
            if not bar.tasks:
                bar.add_task(what)
                bar.start()
            bar.update(bar.task_ids[0], completed=done, total=total)

        yield report


@contextmanager
def _download_bar() -> Iterator[Callable[[str, int, int], None]]:
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn

    with _bar(TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()) as bar:
        tasks: dict[str, Any] = {}

        def report(file: str, done: int, total: int) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file)
                bar.start()
            bar.update(tasks[file], completed=done, total=total or None)

        yield report


if __name__ == "__main__":
    sys.exit(main())
