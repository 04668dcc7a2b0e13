"""`nf encode`: latents of the networks of a file, or of a whole dataset."""

from __future__ import annotations

import argparse
import os
from typing import Any

from neuralfunctionals.cli.bars import encoding_bar
from neuralfunctionals.cli.command import Command, print_table
from neuralfunctionals.cli.networks import add_networks, open_pipeline, read_networks, say_form
from neuralfunctionals.errors import UserError

# Torch and all that needs it is imported inside the functions: help must come at once.


def _add_encode_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_networks(parser, "an inr2array/ recipe")
    add("--out", metavar="PATH", help="the store of latents, resumed if unfinished; or an .npz file for --weights")
    add("--workers", type=int, metavar="N", help="shards of a store at the same time, one thread each (all cores)")
    add("--force", action="store_true", help="replace an existing .npz file")


def _encode(arguments: Any) -> dict[str, Any]:
    return _encode_store(arguments) if arguments.weights is None else _encode_file(arguments)


def _encode_file(arguments: Any) -> dict[str, Any]:
    from neuralfunctionals.data.formats.network_files import write_latents

    out = arguments.out
    if out is not None and not out.endswith(".npz"):
        raise UserError(f"Expected --out to end in .npz for latents of --weights, but got {out}.")
    if out is not None and os.path.exists(out) and not arguments.force:
        raise UserError(f"{out} already exists. Name another file, or replace it with --force.")
    pipeline = open_pipeline(arguments, "encode", "inr2array")
    networks, form = read_networks(arguments)
    latents = pipeline(networks, **form)
    latents = latents[None] if networks.is_single else latents
    say_form(pipeline, networks, form)
    result = {"networks": len(latents), "latent_shape": list(latents.shape[1:])}
    if out is None:
        return {**result, "latents": latents.tolist()}
    write_latents(out, latents)
    return {**result, "out": os.fspath(out)}


def _encode_store(arguments: Any) -> dict[str, Any]:
    import time

    from neuralfunctionals.runs import encode

    if arguments.out is None:
        raise UserError("Expected --out DIR, where the store of latents goes.")
    told = [name for name in ("omega", "convention", "layers", "module") if getattr(arguments, name) is not None]
    if told:
        raise UserError(f"--{told[0]} describes the networks of --weights FILE; a store says it itself. Leave it out.")
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


def _show_encoded(result: dict[str, Any]) -> None:
    shown = {name: value for name, value in result.items() if name != "latents"}
    if len(shown) < len(result):
        shown["latents"] = "print them with --json, or write them with --out FILE.npz"
    print_table((), [(name, str(value)) for name, value in shown.items()])


COMMANDS = {
    "encode": Command(
        "Encode networks as invariant latent arrays with a trained Inr2Array.",
        "nf encode digits-inr2array --weights siren.pth --json",
        _add_encode_arguments,
        _encode,
        show=_show_encoded,
    ),
}
