"""`nf encode`: encodes the networks of a file or a store as latents."""

from __future__ import annotations

import os
from typing import Any

from neuralfunctionals.cli.bars import encoding_bar
from neuralfunctionals.cli.command import Add, Command, print_table
from neuralfunctionals.cli.networks import add_networks, apply_model
from neuralfunctionals.errors import UserError

# Torch and everything that needs it is imported inside the functions, so that --help is fast.


def _add_encode_arguments(add: Add) -> None:
    add_networks(add, "an inr2array/ recipe")
    add("--out", metavar="PATH", help="the store of latents, resumed if unfinished; or an .npz file for --weights")
    add("--workers", type=int, metavar="N", help="number of shards to encode in parallel, one thread each (all cores)")
    add("--force", action="store_true", help="replace an existing .npz file")


def _encode(
    run: str, *, data: str | None, out: str | None, workers: int | None, force: bool, **given: Any
) -> dict[str, Any]:
    if given["weights"] is None:
        return _encode_store(run, data, out, workers, given)
    from neuralfunctionals.data.formats.network_files import write_latents

    if out is not None and not out.endswith(".npz"):
        raise UserError(f"Expected --out to end in .npz for latents of --weights, but got {out}.")
    if out is not None and os.path.exists(out) and not force:
        raise UserError(f"{out} already exists. Choose another file, or replace it with --force.")
    with apply_model(run, "encode", "inr2array", data=data, **given) as (_, found, _):
        latents = found[None] if found.ndim == 2 else found
        if out is not None:
            write_latents(out, latents)
    result = {"networks": len(latents), "latent_shape": list(latents.shape[1:])}
    return {**result, "latents": latents.tolist()} if out is None else {**result, "out": out}


def _encode_store(
    run: str, data: str | None, out: str | None, workers: int | None, given: dict[str, Any]
) -> dict[str, Any]:
    import time

    from neuralfunctionals.runs import encode

    if out is None:
        raise UserError("Expected --out DIR, the directory of the new store of latents.")
    told = [name for name in ("omega", "convention", "layers", "module") if given[name] is not None]
    if told:
        raise UserError(f"--{told[0]} describes the networks of --weights FILE; a store records it itself. Omit it.")
    if workers is not None and workers < 1:
        raise UserError(f"Expected --workers of at least 1, but got {workers}.")
    started = time.perf_counter()
    encoded = 0
    with encoding_bar() as advance:

        def report(total: int, count: int) -> None:
            nonlocal encoded
            encoded += count
            advance(total, count, ())

        dataset = encode(run, data, out, workers=workers, progress=report)
    latents = dataset[:1].latents
    assert latents is not None
    return {
        "items": len(dataset),
        "items_encoded": encoded,
        "latent_shape": list(latents.shape[1:]),
        "elapsed_seconds": round(time.perf_counter() - started, 3),
        "out": out,
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
