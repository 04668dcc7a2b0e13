"""`nf fit` and `nf zoo`: from image sets to stores of networks, shard by shard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from neuralfunctionals.cli.bars import fitting_bar, zoo_bar
from neuralfunctionals.cli.command import Add, Command
from neuralfunctionals.cli.data import quantiles
from neuralfunctionals.errors import UserError
from neuralfunctionals.progress import Progress

# Torch and everything that needs it is imported inside the functions, so that --help is fast.


def _add_run_arguments(add: Add, done: str) -> None:
    add(
        "--images",
        required=True,
        metavar="NAME|PATH",
        help="mnist-sample, fashion-sample, shapes-sample, mnist, fashion, cifar10, svhn-grey, a folder, an array file",
    )
    add("--out", required=True, metavar="DIR", help="the store; an interrupted run is resumed")
    add("--seed", type=int, default=0, help="random seed (0)")
    add("--engine", default="auto", metavar="NAME", help="native, torch or auto (native where there is a C++ compiler)")
    add("--workers", type=int, metavar="N", help=f"number of shards {done} in parallel, one thread each (all cores)")
    add("--shard-size", type=int, metavar="N", help=f"number of networks {done} and written together")
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


def _require_positive(**values: int | None) -> None:
    for name, value in values.items():
        if value is not None and value < 1:
            raise UserError(f"Expected --{name.replace('_', '-')} to be at least 1, but got {value}.")


def _make_store(
    plan_of: Callable[..., Any],
    make: Callable[..., Any],
    bar: Callable[[], Any],
    done: str,
    *,
    images: str,
    data_root: str | None,
    image_size: int | None,
    out: str,
    shard: str | None,
    workers: int | None,
    ray: str | None,
    **options: Any,
) -> tuple[Any, Any, dict[str, Any]]:
    """Makes the missing networks of a share of the work.

    Args:
        plan_of: Creates the plan from the images and the options.
        make: Creates the store of a plan.
        bar: Its progress bar.
        done: Past participle of the work, as in `items_fitted`.
        images: For this and the following arguments, see `_add_run_arguments`.

    Returns:
        The plan, the dataset (None if the share is empty), and the results that both commands print.
    """
    import time

    from neuralfunctionals.data import Store, WeightDataset, open_images

    share = _parse_share(shard)
    _require_positive(workers=workers, shard_size=options["shard_size"], image_size=image_size)
    with Progress("bytes", from_zero=True) as downloading:
        image_set = open_images(images, data_root=data_root, image_size=image_size, progress=downloading.update)
    plan = plan_of(image_set, **options)
    finished = set(Store(out).shards) if Store.is_at(out) else set()
    own = range(share[0], plan.header.num_shards, share[1])
    left = sum(len(plan.header.items_of(number)) for number in own if number not in finished)
    started = time.perf_counter()
    made = 0
    with bar() as advance:

        def report(count: int, qualities: Sequence[float]) -> None:
            nonlocal made
            made += len(qualities)
            advance(left, count, qualities)

        make(plan, out, workers=workers, share=share, ray_address=ray, progress=report)
    seconds = time.perf_counter() - started
    dataset = WeightDataset(out) if own else None
    return (
        plan,
        dataset,
        {
            "items": 0 if dataset is None else len(dataset),
            f"items_{done}": made,
            "items_per_second": round(made / seconds, 4),
            "elapsed_seconds": round(seconds, 3),
            "engine": plan.engine,
            "complete": dataset is not None and dataset.is_complete,
            "out": out,
        },
    )


# nf fit


def _add_fit_arguments(add: Add) -> None:
    _add_run_arguments(add, "fitted")
    add("--limit", type=int, metavar="N", help="fit N images, from the splits in proportion")
    add("--copies", type=int, default=1, metavar="K", help="number of networks per training image (1)")
    add("--recipe", default="default", metavar="NAME", help="fitting recipe: default, fast, sharp or slow")
    add(
        "--psnr",
        dest="psnr_db",
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


def _fit(*, hidden: str, **options: Any) -> dict[str, Any]:
    widths = _parse_widths(hidden)
    _require_positive(limit=options["limit"], copies=options["copies"])
    from neuralfunctionals.data import FitPlan, fit_dataset

    plan, dataset, result = _make_store(FitPlan.make, fit_dataset, fitting_bar, "fitted", hidden=widths, **options)
    if dataset is None:
        return result
    psnr_db, stop = dataset.column("psnr_db"), plan.recipe.stop_psnr_db
    return {
        **result,
        "psnr_db_min": round(psnr_db.min().item(), 3),
        "psnr_db_median": round(psnr_db.median().item(), 3),
        "psnr_db_mean": round(psnr_db.mean().item(), 3),
        "missed_psnr": 0 if stop is None else int((psnr_db < stop).sum()),
    }


# nf zoo


def _add_zoo_arguments(add: Add) -> None:
    _add_run_arguments(add, "trained")
    add("--count", type=int, required=True, metavar="N", help="number of networks")
    add("--grey", action="store_true", help="convert the images to grey")
    add("--epochs", type=int, default=86, help="epochs to train each network (86)")
    add("--batch-size", type=int, default=512, metavar="N", help="images per step (512)")
    add("--limit-images", type=int, metavar="M", help="use M images, from the splits in proportion")


def _zoo(**options: Any) -> dict[str, Any]:
    _require_positive(**{name: options[name] for name in ("count", "epochs", "batch_size", "limit_images")})
    from neuralfunctionals.data import ZooPlan, make_zoo

    _, dataset, result = _make_store(ZooPlan.make, make_zoo, zoo_bar, "trained", **options)
    if dataset is None:
        return result
    return {**result, "test_accuracy": quantiles(dataset.column("test_accuracy").numpy(), digits=4)}


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
