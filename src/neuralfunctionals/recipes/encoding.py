"""Latents by a trained autoencoder, for a whole dataset or a picture: `encode`, `latents_of`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from neuralfunctionals.data import EncodePlan, RunDirectory, Store, WeightDataset, encode_dataset
from neuralfunctionals.recipes.execute import open_run
from neuralfunctionals.tasks import ReconstructTask

# Axes: B input networks, M latents, D latent channels.


def encode(
    run: str | os.PathLike[str],
    data: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> WeightDataset:
    """Latents of every network, in the same kind of store; one that was begun is continued.

    Networks of another form than the run's own are converted first; see `nf.inr.convert`.

    Args:
        run: A finished run of an `inr2array/` recipe.
        data: A store of networks.
        out: The store of latents.
        workers: Shards encoded at the same time, one thread each; all cores if missing.
        progress: Called with the number of networks in all, and those finished since the last call.
    """
    opened = open_run(run)
    if not isinstance(opened.task, ReconstructTask):
        raise ValueError(f"Expected a run of an inr2array/ recipe, but {run} is one of {opened.run.recipe}.")
    weights = (opened.directory.model / "model.safetensors").read_bytes()
    made_by: dict[str, Any] = {"recipe": opened.run.recipe, "model": opened.run.model_name, "seed": opened.run.seed}
    made_by["sha256"] = hashlib.sha256(weights).hexdigest()
    source = WeightDataset(data)
    opened.task.require_data(source)
    assert opened.task.form is not None
    form = source.find_form(opened.task.form)
    if form is not None and form != opened.task.form:
        made_by["converted_to"] = asdict(opened.task.form)
    plan = EncodePlan.make(partial(opened.task.encode, form=form), source.store, made_by)
    report = progress or (lambda total, count: None)
    encode_dataset(plan, out, workers=workers, progress=lambda count: report(plan.header.num_items, count))
    return WeightDataset(out)


def latents_of(
    run: str | os.PathLike[str], *, limit: int = 1000
) -> tuple[Float[Tensor, "B M D"], Int[Tensor, "B"]] | None:
    """Latents of a run's own test networks, and their classes; nothing where the model or the networks are gone.

    Args:
        run: A finished run of an `inr2array/` recipe.
        limit: Networks at most, spread over the split.
    """
    if not RunDirectory(run).model.is_dir():
        return None
    opened = open_run(run)
    if opened.data is None or not Store.is_at(opened.data):
        return None
    test_set = WeightDataset(opened.data).in_form(opened.task.form).split("test").spread(limit)
    if len(test_set) < 3 or "label" not in test_set.tensor_names:
        return None
    parts = [test_set[part] for part in torch.arange(len(test_set)).split(64)]
    return torch.cat([opened.task.encode(part.features) for part in parts]), torch.cat([part.label for part in parts])
