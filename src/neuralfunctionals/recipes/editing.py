"""Editing INRs: the five tasks of the paper's Tables 2 and 4, at four scales."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from neuralfunctionals.data import WeightDataset
from neuralfunctionals.models import NFN, NFT, NeuronGraphNet
from neuralfunctionals.recipes.functionals import Functional
from neuralfunctionals.recipes.run import SAMPLES, DataConfig, EditConfig, Run, Scale, training_of
from neuralfunctionals.tasks import EditTask, OptimizerConfig, TrainingConfig
from neuralfunctionals.tasks.edit import TURNABLE

TASKS: dict[str, EditConfig] = {
    "edit/mnist-erode": EditConfig("erode"),
    "edit/mnist-dilate": EditConfig("dilate"),
    "edit/mnist-gradient": EditConfig("gradient"),
    "edit/fashion-gradient": EditConfig("gradient"),
    "edit/cifar10-contrast": EditConfig("contrast"),
}
"""The recipes and what each learns."""

FUNCTIONALS: dict[str, Functional] = {
    "neuron-graph": Functional(NeuronGraphNet, set_by_data=("omega",)),
    "nft-states": Functional(NFT, {"symmetry": "NP"}, set_by_data=("omega",)),
    "nft": Functional(NFT, {"symmetry": "NP"}, set_by_data=("omega",)),
    "nft-hnp": Functional(NFT, {"symmetry": "HNP", "io_encoding": False}, set_by_data=("omega",)),
    "nfn-np": Functional(NFN, {"symmetry": "NP"}),
    "nfn-hnp": Functional(NFN, {"symmetry": "HNP"}),
}
"""The editors, by name; the first is the default."""
MODELS = tuple(FUNCTIONALS)
"""The models that can edit."""


def full_images(recipe: str) -> str:
    """The image set that the paper used."""
    return recipe.removeprefix("edit/").partition("-")[0]


def edit_run(recipe: str, scale: Scale, model: str) -> Run:
    """The run of a recipe for a model."""
    if scale == "paper":
        return _paper(recipe, model)
    return _tiny(recipe, model) if scale == "tiny" else _timed(recipe, scale, model)


def options_from(run: Run, dataset: WeightDataset) -> dict[str, Any]:
    """Arguments of the model that follow from the data."""
    needs_omega = "omega" in FUNCTIONALS[run.model_name].set_by_data
    return {"omega": dataset.provenance.get("omega", 30.0)} if needs_omega else {}


def make_task(run: Run, model: nn.Module, made: Mapping[str, Any]) -> EditTask:
    """The run's task with a model, for networks made in a known way."""
    assert isinstance(run.task, EditConfig)
    return EditTask(
        model,
        edit=run.task.edit,
        augment=run.task.augment,
        omega=made.get("omega", 30.0),
        convention=made.get("convention", "paper"),
        optimizer=run.optimizer,
        seed=run.seed,
    )


_NFT_PAPER: dict[str, Any] = {
    "channels": 256,
    "num_blocks": 4,
    "hidden_channels": 512,
    "num_heads": 8,
    "dropout": 0.1,
    "fourier_scale": 3.0,
}


def _paper(recipe: str, model: str) -> Run:
    """The appendix: 50,000 steps of 32 networks, Adam at 1e-3 after 10,000 steps of warm-up; 7 M parameters."""
    has_colours = full_images(recipe) == "cifar10"
    return Run(
        recipe,
        "paper",
        model,
        model={
            "neuron-graph": {"channels": 128, "num_rounds": 6},
            "nft-states": {**_NFT_PAPER, "neuron_states": 4},
            "nft": _NFT_PAPER,
            "nft-hnp": _NFT_PAPER,
            "nfn-np": {"channels": [236] * 3},
            "nfn-hnp": {"channels": [147 if has_colours else 217] * 3},
        }[model],
        task=TASKS[recipe],
        data=DataConfig(images=full_images(recipe)),
        optimizer=OptimizerConfig("adam", lr=1e-3, warmup_steps=10_000),
        training=TrainingConfig(steps=50_000, batch_size=32, val_every=1000, log_every=50),
    )


_NFT: dict[str, Any] = {
    "channels": 32,
    "num_blocks": 2,
    "hidden_channels": 64,
    "num_heads": 4,
    "standardize": True,
    "fourier_scale": 0.3,
}
_OPTIONS: dict[str, dict[str, Any]] = {
    "neuron-graph": {"channels": 96, "num_rounds": 3},
    "nft-states": {**_NFT, "neuron_states": 3, "state_channels": 64},
    "nft": _NFT,
    "nft-hnp": _NFT,
    "nfn-np": {"channels": [39] * 3, "standardize": True},
    "nfn-hnp": {"channels": [38] * 3, "standardize": True},
}
"""Models of the scales `small` and `long`."""
_TRAINING: dict[str, tuple[float, int, int]] = {
    "neuron-graph": (2.5e-3, 64, 3500),
    "nft-states": (3e-3, 32, 1500),
    "nft": (3e-3, 32, 1500),
    "nft-hnp": (3e-3, 32, 1500),
    "nfn-np": (3e-3, 32, 5000),
    "nfn-hnp": (1e-2, 32, 5000),
}
"""Learning rate, batch, and steps that take ten minutes of one core."""


def _timed(recipe: str, scale: Scale, model: str) -> Run:
    """Full training sets, canonical weights, and as many steps as the scale has time for."""
    rate, batch, steps = _TRAINING[model]
    task = TASKS[recipe]
    optimizer = OptimizerConfig("adamw", lr=rate, weight_decay=0.01, beta2=0.98, schedule="cosine", clip_norm=1.0)
    return replace(
        _paper(recipe, model),
        scale=scale,
        model=_OPTIONS[model],
        task=replace(task, augment="turns" if task.edit in TURNABLE else "none"),
        canonical="sine",
        **training_of(scale, steps, batch, optimizer),
    )


_NFT_TINY: dict[str, Any] = {"channels": 8, "num_blocks": 1, "hidden_channels": 16, "num_heads": 2}
_TINY: dict[str, dict[str, Any]] = {
    "neuron-graph": {"channels": 8, "num_rounds": 2, "entry_channels": 8, "rank": 4},
    "nft-states": {**_NFT_TINY, "neuron_states": 1, "state_channels": 8},
    "nft": _NFT_TINY,
    "nft-hnp": _NFT_TINY,
    "nfn-np": {"channels": [4] * 3},
    "nfn-hnp": {"channels": [4] * 3},
}


def _tiny(recipe: str, model: str) -> Run:
    """Seconds: proves the pipeline, not the model."""
    small = _timed(recipe, "small", model)
    return replace(
        small,
        scale="tiny",
        model=_TINY[model],
        data=DataConfig(images=SAMPLES[full_images(recipe)], limit=64, fit="fast"),
        optimizer=replace(small.optimizer, warmup_steps=5),
        training=TrainingConfig(steps=20, batch_size=8, val_every=10, log_every=5),
    )
