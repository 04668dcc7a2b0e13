"""`nf fit` and `nf zoo`: from image sets to stores of networks, shard by shard."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

from neuralfunctionals.cli.bars import fitting_bar, zoo_bar
from neuralfunctionals.cli.command import Command
from neuralfunctionals.cli.data import quantiles
from neuralfunctionals.errors import UserError
from neuralfunctionals.progress import Progress

# Torch and all that needs it is imported inside the functions: help must come at once.


def _add_run_arguments(parser: argparse.ArgumentParser, done: str) -> None:
    add = parser.add_argument
    add(
        "--images",
        required=True,
        metavar="NAME|PATH",
        help="mnist-sample, fashion-sample, shapes-sample, mnist, fashion, cifar10, svhn-grey, a folder, an array file",
    )
    add("--out", required=True, metavar="DIR", help="the store; an interrupted run is resumed")
    add("--seed", type=int, default=0, help="random seed (0)")
    add("--engine", default="auto", metavar="NAME", help="native, torch or auto (native where there is a C++ compiler)")
    add("--workers", type=int, metavar="N", help=f"shards {done} at the same time, one thread each (all cores)")
    add("--shard-size", type=int, metavar="N", help=f"items {done} and written together")
    add(
        "--shard", metavar="I/N", help="do the I-th of N equal parts of the work, for N machines that share a directory"
    )
    add("--ray", metavar="ADDRESS", help="run on a Ray cluster; 'local' starts one on this machine")
    add(
        "--data-root",
        metavar="DIR",
        help="directory of the full image sets, downloaded when first needed (NF_DATA_ROOT)",
    )
    add("--image-size", type=int, metavar="N", help="resize the images of a folder to N x N")


def _require_positive(arguments: Any, *names: str) -> None:
    for name in names:
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise UserError(f"Expected --{name.replace('_', '-')} to be at least 1, but got {value}.")


def _open_images(arguments: Any) -> Any:
    from neuralfunctionals.data import open_images

    with Progress("bytes", from_zero=True) as downloading:
        return open_images(
            arguments.images,
            data_root=arguments.data_root,
            image_size=arguments.image_size,
            progress=downloading.update,
        )


def _count_items(plan: Any, share: tuple[int, int], out: str) -> tuple[int, int]:
    """How many items this share of the shards has, and how many of them are still to be made."""
    from neuralfunctionals.data import Store

    counts = {s: len(plan.header.items_of(s)) for s in range(share[0], plan.header.num_shards, share[1])}
    finished = set(Store(out).shards) if Store.is_at(out) else set()
    return sum(counts.values()), sum(count for shard, count in counts.items() if shard not in finished)


# nf fit


def _add_fit_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    _add_run_arguments(parser, "fitted")
    add("--limit", type=int, metavar="N", help="fit N images, from the splits in proportion")
    add("--copies", type=int, default=1, metavar="K", help="networks for each training image (1)")
    add("--recipe", default="default", metavar="NAME", help="fitting recipe: default, fast, sharp or slow")
    add(
        "--psnr",
        type=float,
        metavar="DB",
        help="stop each network when it reaches this PSNR; those that do not are marked",
    )
    add("--hidden", default="32,32", metavar="N,N", help="widths of the hidden layers (32,32)")
    add("--omega", type=float, default=30.0, help="frequency of the sines (30)")
    add(
        "--convention",
        default="paper",
        metavar="NAME",
        help="paper (default) or dws: order of coordinates and range of outputs",
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
    total, left = _count_items(plan, share, arguments.out)
    with fitting_bar() as advance:

        def report(count: int, psnr_db: Sequence[float]) -> None:
            fitted.extend(psnr_db)
            advance(left, count, psnr_db)

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
    add("--grey", action="store_true", help="convert the images to grey")
    add("--epochs", type=int, default=86, help="epochs to train each network (86)")
    add("--batch-size", type=int, default=512, metavar="N", help="images per step (512)")
    add("--limit-images", type=int, metavar="M", help="use M images, from the splits in proportion")


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
    total, left = _count_items(plan, share, arguments.out)
    with zoo_bar() as advance:

        def report(count: int, accuracies: Sequence[float]) -> None:
            trained.extend(accuracies)
            advance(left, count, accuracies)

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
        accuracy = quantiles(dataset.column("test_accuracy").numpy(), digits=4)
        result |= {"items": len(dataset), "complete": dataset.is_complete, "test_accuracy": accuracy}
    return result


def _parse_share(text: str | None) -> tuple[int, int]:
    if text is None:
        return 0, 1
    first, slash, second = text.partition("/")
    if not slash or not first.isdecimal() or not second.isdecimal() or not int(first) <= int(second) or int(second) < 1:
        raise UserError(f"Expected --shard I/N, such as 1/4 up to 4/4, but got '{text}'.")
    return int(first) % int(second), int(second)


def _parse_widths(text: str) -> list[int]:
    parts = str(text).split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise UserError(f"Expected --hidden as widths such as 32,32, but got '{text}'.")
    return [int(part) for part in parts]


COMMANDS = {
    "fit": Command(
        "Turn images into a dataset of fitted sine networks.",
        "nf fit --images mnist-sample --limit 64 --recipe fast --out /tmp/sirens",
        _add_fit_arguments,
        _fit,
    ),
    "zoo": Command(
        "Train a zoo of small CNNs with different hyperparameters, and measure their accuracies.",
        "nf zoo --images mnist-sample --count 12 --epochs 4 --batch-size 64 --out /tmp/zoo",
        _add_zoo_arguments,
        _zoo,
    ),
}
