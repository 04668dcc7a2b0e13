"""Builds models and tasks from their descriptions: `build_model`, `build_task`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from neuralfunctionals.config import DataConfig, Run
from neuralfunctionals.data import WeightDataset
from neuralfunctionals.errors import UserError
from neuralfunctionals.imports import import_object
from neuralfunctionals.inr import SirenForm
from neuralfunctionals.inr.siren import can_be_siren
from neuralfunctionals.layers import Block
from neuralfunctionals.models import Canonical
from neuralfunctionals.models.pretrained import Pretrained, construct, with_pretrained
from neuralfunctionals.registry import find_task, model_class
from neuralfunctionals.tasks import Task
from neuralfunctionals.tasks.definition import Output, TaskDefinition
from neuralfunctionals.weight_space import NetworkSpec, NetworkSymmetry


def build_model(
    name: str,
    spec: NetworkSpec | None,
    options: Mapping[str, Any],
    *,
    seed: int,
    compiled: bool,
    output: Output = "networks",
    canonical: NetworkSymmetry | None = None,
) -> nn.Module:
    """Builds a model, with initial parameters that depend only on the seed.

    Args:
        name: One of `MODELS`, or the path of a class.
        spec: The input networks; None for a model of latents.
        options: Further arguments of its constructor.
        seed: Seed of the initial parameters; the global random state is not changed.
        compiled: Whether to compile its blocks, or the whole model if it has none.
        output: The kind of output that the task needs.
        canonical: The symmetry under which its inputs are canonicalized; see `models.Canonical`.
    """
    kind, fixed = model_class(name, output)
    inside = {"canonical": canonical} if "canonical" in _parameters(kind) else {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        arguments = {**({} if spec is None else {"spec": spec}), **fixed, **inside, **options}
        try:
            inspect.signature(kind).bind(**arguments)
        except TypeError as error:
            names = ", ".join(f"{name}=..." for name in arguments)
            raise UserError(f"Cannot build {name}({names}): {error}.") from error
        model = construct(with_pretrained(kind), arguments)
    return finish_model(model, compiled=compiled, canonical=canonical)


def finish_model(model: nn.Module, *, compiled: bool, canonical: NetworkSymmetry | None = None) -> nn.Module:
    """Prepares a model to be trained and saved by a run; arguments as for `build_model`."""
    if not isinstance(model, Pretrained):
        raise UserError(
            f"Expected a model that can be saved, but {type(model).__name__} cannot. Derive it from "
            "nf.models.Pretrained as well, or pass the class instead of an instance."
        )
    if canonical is not None and not isinstance(model, Canonical) and "canonical" not in _parameters(type(model)):
        spec = getattr(model, "spec", None)
        is_silent = isinstance(spec, NetworkSpec) and spec.activation is None
        model = Canonical(model, symmetry=canonical if is_silent else None)
    if compiled:
        # Blocks share their code, which is compiled only once.
        for part in [m for m in model.modules() if isinstance(m, Block)] or [model]:
            part.compile()
    return model


def options_from(run: Run, dataset: WeightDataset) -> dict[str, Any]:
    """Arguments of the run's model that depend on the task and the data, if its class has them."""
    task = find_task(run.recipe)
    if run.model_name in task.latent_models:
        latents = dataset[:1].latents
        if latents is None:
            raise UserError(f"Expected latents in {dataset.path}, but there are none. Make them with nf encode.")
        _, num_latents, latent_channels = latents.shape
        return {"num_latents": num_latents, "latent_channels": latent_channels, "num_classes": run.task.num_classes}
    takes = _parameters(model_class(run.model_name, task.output)[0])
    facts: dict[str, Any] = {}
    if task.output != "autoencoder":
        facts["out_channels"] = task.out_channels(run.task, dataset.spec)
    if task.data is DataConfig:
        facts["omega"] = dataset.provenance.get("omega", 30.0)
        facts["image_size"] = dataset.provenance.get("image_shape", [28])[0]
    required = {"out_channels"} if "." in run.model_name else set()
    return {name: value for name, value in facts.items() if name in takes or name in required}


def build_task(run: Run, model: nn.Module, made: Mapping[str, Any]) -> Task:
    """Builds the task of a run with its model, for networks with this provenance."""
    task = find_task(run.recipe)
    known = {
        "omega": made.get("omega", 30.0),
        "convention": made.get("convention", "paper"),
        "source": "latents" if run.model_name in task.latent_models else "weights",
    }
    kind, settings = task_class(task), run.task if isinstance(run.task, dict) else asdict(run.task)
    takes = _parameters(kind)
    built = kind(
        model,
        **settings,  # pyright: ignore[reportCallIssue]
        **{name: value for name, value in known.items() if name in takes},
        optimizer=run.optimizer,
        seed=run.seed,
    )
    told, spec = SirenForm.from_provenance(made), getattr(model, "spec", None)
    if built.form is not None and told is not None:  # the spec of a model may not record the form of its training data
        knows = isinstance(spec, NetworkSpec) and can_be_siren(spec)
        built.form = SirenForm.of(model.spec, assumed=told) if knows else told  # pyright: ignore[reportArgumentType]
    return built


def task_class(task: TaskDefinition) -> type[Task]:
    """The class of a task."""
    return task.task if isinstance(task.task, type) else import_object(task.task)


def _parameters(kind: type[Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(kind).parameters
