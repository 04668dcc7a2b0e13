"""Latents by a trained autoencoder, for a whole dataset: `encode`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from neuralfunctionals.data import EncodePlan, WeightDataset, encode_dataset
from neuralfunctionals.errors import UserError
from neuralfunctionals.runs.execute import open_run


def encode(
    run: str | os.PathLike[str],
    data: str | os.PathLike[str] | None,
    out: str | os.PathLike[str],
    *,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> WeightDataset:
    """Latents of every network, in the same kind of store; one that was begun is continued.

    Networks of another form than the run's own are converted first; see `nf.inr.convert`.

    Args:
        run: A finished run of an `inr2array/` recipe.
        data: A store of networks; defaults to the run's own.
        out: The store of latents.
        workers: Shards encoded at the same time, one thread each. Defaults to all cores.
        progress: Called with the number of networks in all, and those finished since the last call.
    """
    opened = open_run(run)
    if not hasattr(opened.task, "encode"):
        raise UserError(f"Expected a run of an inr2array/ recipe, but {run} is one of {opened.run.recipe}.")
    weights = (opened.directory.model / "model.safetensors").read_bytes()
    made_by: dict[str, Any] = {"recipe": opened.run.recipe, "model": opened.run.model_name, "seed": opened.run.seed}
    made_by["sha256"] = hashlib.sha256(weights).hexdigest()
    source = WeightDataset(opened.find_data(data))
    opened.task.require_data(source)
    encode_networks, own = opened.task.encode, opened.task.form
    if own is not None and (form := source.find_form(own)) is not None:
        encode_networks = partial(encode_networks, form=form)
        made_by |= {} if form == own else {"converted_to": asdict(own)}
    plan = EncodePlan.make(encode_networks, source.store, made_by)
    report = progress or (lambda total, count: None)
    encode_dataset(plan, out, workers=workers, progress=lambda count: report(plan.header.num_items, count))
    return WeightDataset(out)
