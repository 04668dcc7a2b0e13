"""Encodes a whole dataset with a trained autoencoder: `encode`."""

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
    """Encodes every network, and writes the latents to a store; resumes an unfinished store.

    Networks of another form than those of the run are converted first; see `nf.inr.convert`.

    Args:
        run: A finished run of an `inr2array/` recipe.
        data: A store of networks. Defaults to the store of the run.
        out: The store of latents.
        workers: Number of shards to encode in parallel, one thread each. Defaults to all cores.
        progress: Called with the total number of networks, and the number finished since the last call.
    """
    opened = open_run(run)
    if not hasattr(opened.task, "encode"):
        raise UserError(f"Expected a run of an inr2array/ recipe, but {run} is a run of {opened.run.recipe}.")
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
