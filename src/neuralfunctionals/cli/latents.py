"""`nf encode`: latents for a whole dataset."""

from __future__ import annotations

import argparse
import os
from typing import Any

from neuralfunctionals.cli.bars import encoding_bar
from neuralfunctionals.cli.command import Command
from neuralfunctionals.errors import UserError

# Torch and all that needs it is imported inside the functions: help must come at once.


def _add_encode_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", metavar="RUN", help="the directory of a finished run of an inr2array/ recipe")
    add("--data", metavar="DIR", help="a store of networks; defaults to that of the run")
    add("--out", required=True, metavar="DIR", help="the store of latents; one begun is continued")
    add("--workers", type=int, metavar="N", help="shards at the same time, one thread each (all cores)")


def _encode(arguments: Any) -> dict[str, Any]:
    import time

    from neuralfunctionals.runs import encode

    if arguments.workers is not None and arguments.workers < 1:
        raise UserError(f"Expected --workers of at least 1, but got {arguments.workers}.")
    started = time.perf_counter()
    encoded = 0
    with encoding_bar() as advance:

        def report(total: int, count: int) -> None:
            nonlocal encoded
            encoded += count
            advance(total, count, ())

        dataset = encode(arguments.run, arguments.data, arguments.out, workers=arguments.workers, progress=report)
    latents = dataset[:1].latents
    assert latents is not None
    return {
        "items": len(dataset),
        "items_encoded": encoded,
        "latent_shape": list(latents.shape[1:]),
        "elapsed_seconds": round(time.perf_counter() - started, 3),
        "out": os.fspath(arguments.out),
    }


COMMANDS = {
    "encode": Command(
        "Turn networks into invariant latent arrays with a trained Inr2Array, or continue to.",
        "nf encode /tmp/run --data /tmp/digits --out /tmp/latents",
        _add_encode_arguments,
        _encode,
    ),
}
