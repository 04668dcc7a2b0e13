"""Editing INRs: the five tasks of the paper's Tables 2 and 4, at three scales."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from neuralfunctionals.data import WeightDataset
from neuralfunctionals.models import NeuronGraphNet
from neuralfunctionals.recipes import functionals
from neuralfunctionals.recipes.functionals import Functional
from neuralfunctionals.recipes.run import SAMPLES, DataConfig, EditConfig, Run, Scale
from neuralfunctionals.tasks import EditTask, OptimizerConfig, TrainingConfig

TASKS: dict[str, EditConfig] = {
    "edit/mnist-erode": EditConfig("erode"),
    "edit/mnist-dilate": EditConfig("dilate"),
    "edit/mnist-gradient": EditConfig("gradient"),
    "edit/fashion-gradient": EditConfig("gradient"),
    "edit/cifar10-contrast": EditConfig("contrast"),
}
"""The recipes and what each learns."""

MODELS = ("nft", "nft-hnp", "nfn-np", "nfn-hnp", "neuron-graph")
"""The models that can edit."""
FUNCTIONALS = {**functionals.FUNCTIONALS, "neuron-graph": Functional(NeuronGraphNet, set_by_data=("omega",))}
"""What their names stand for."""


def full_images(recipe: str) -> str:
    """The image set that the paper used."""
    return recipe.removeprefix("edit/").partition("-")[0]


def edit_run(recipe: str, scale: Scale, model: str) -> Run:
    """The run of a recipe for a model."""
    return {"paper": _paper, "small": _small, "tiny": _tiny}[scale](recipe, model)


def options_from(run: Run, dataset: WeightDataset) -> dict[str, Any]:
    """Arguments of the model that follow from the data."""
    return {"omega": dataset.provenance.get("omega", 30.0)} if run.model_name == "neuron-graph" else {}


def make_task(run: Run, model: nn.Module, made: Mapping[str, Any]) -> EditTask:
    """The run's task with a model, for networks made in a known way."""
    assert isinstance(run.task, EditConfig)
    return EditTask(
        model,
        edit=run.task.edit,
        omega=made.get("omega", 30.0),
        convention=made.get("convention", "paper"),
        optimizer=run.optimizer,
        seed=run.seed,
    )


def _paper(recipe: str, model: str) -> Run:
    """The appendix: 50,000 steps of 32 networks, Adam at 1e-3 after 10,000 steps of warm-up; 7 M parameters."""
    nft = {
        "channels": 256,
        "num_blocks": 4,
        "hidden_channels": 512,
        "num_heads": 8,
        "dropout": 0.1,
        "fourier_scale": 3.0,
    }
    return Run(
        recipe,
        "paper",
        model,
        model=_options(model, nft, 236, 147 if full_images(recipe) == "cifar10" else 217, 256),
        task=TASKS[recipe],
        data=DataConfig(images=full_images(recipe)),
        optimizer=OptimizerConfig("adam", lr=1e-3, warmup_steps=10_000),
        training=TrainingConfig(steps=50_000, batch_size=32, val_every=1000, log_every=50),
    )


_SMALL = {
    "nft": (1e-2, 1000, 100),
    "nft-hnp": (1e-2, 1000, 100),
    "nfn-np": (3e-3, 3000, 250),
    "nfn-hnp": (1e-2, 3000, 250),
    "neuron-graph": (5e-3, 1000, 100),
}
"""Learning rate, steps and steps between validations. Linear layers are faster: the models train for about as long."""


def _small(recipe: str, model: str) -> Run:
    """At most three minutes on two cores: smaller models of one size, fewer steps and a rate that falls to zero.

    The rates, and that NFNs see standardized weights, were chosen by the validation error of MNIST dilate.
    """
    nft = _nft(channels=64, num_blocks=2, hidden_channels=128, num_heads=4, dropout=0.0)
    rate, steps, val_every = _SMALL[model]
    options = _options(model, nft, 39, 26 if full_images(recipe) == "cifar10" else 38, 48)
    return replace(
        _paper(recipe, model),
        scale="small",
        model={**options, "standardize": True} if model.startswith("nfn") else options,
        data=DataConfig(images=SAMPLES[full_images(recipe)]),
        optimizer=OptimizerConfig("adam", lr=rate, warmup_steps=steps // 16, schedule="cosine", clip_norm=1.0),
        training=TrainingConfig(steps=steps, batch_size=16, val_every=val_every, log_every=10),
    )


def _tiny(recipe: str, model: str) -> Run:
    """Seconds: proves the pipeline, not the model."""
    small = _small(recipe, model)
    nft = _nft(channels=8, num_blocks=1, hidden_channels=16, num_heads=2, dropout=0.0)
    return replace(
        small,
        scale="tiny",
        model=_options(model, nft, 4, 4, 8),
        data=replace(small.data, limit=64, fit="fast"),
        optimizer=replace(small.optimizer, warmup_steps=5),
        training=TrainingConfig(steps=20, batch_size=8, val_every=10, log_every=5),
    )


def _nft(**options: Any) -> dict[str, Any]:
    return {**options, "fourier_scale": 3.0}


def _options(
    model: str, nft: dict[str, Any], np_channels: int, hnp_channels: int, graph_channels: int
) -> dict[str, Any]:
    """Options that give all models about as many parameters; HNP layers have more of them with three colours."""
    return {
        "nft": nft,
        "nft-hnp": nft,
        "nfn-np": {"channels": [np_channels] * 3},
        "nfn-hnp": {"channels": [hnp_channels] * 3},
        "neuron-graph": {"channels": graph_channels, "output_scale": 0.03},
    }[model]
