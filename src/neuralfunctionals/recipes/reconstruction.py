"""Inr2Array: the autoencoders of the paper's Table 5 and Figure 3, at four scales."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from neuralfunctionals.models import Inr2Array
from neuralfunctionals.recipes.functionals import Functional
from neuralfunctionals.recipes.run import SAMPLES, DataConfig, ReconstructConfig, Run, Scale, training_of
from neuralfunctionals.tasks import OptimizerConfig, ReconstructTask, TrainingConfig

_ENCODERS = {"neuron-graph": "neuron-graph", "nft-states": "nft", "nft": "nft", "nfn": "nfn"}
FUNCTIONALS: dict[str, Functional] = {
    name: Functional(Inr2Array, {"encoder": encoder}, set_by_data=("omega",), has_canonical=True)
    for name, encoder in _ENCODERS.items()
}
"""The encoders, by name; the first is the default. The last two are the paper's."""


def reconstruct_run(recipe: str, scale: Scale, model: str) -> Run:
    """The run of a recipe for an encoder."""
    if scale == "paper":
        return _paper(recipe, model)
    return _tiny(recipe, model) if scale == "tiny" else _timed(recipe, scale, model)


def make_task(run: Run, model: nn.Module, made: Mapping[str, Any]) -> ReconstructTask:
    """The run's task with a model, for networks made in a known way."""
    assert isinstance(run.task, ReconstructConfig)
    return ReconstructTask(
        model,
        target=run.task.target,
        augment=run.task.augment,
        omega=made.get("omega", 30.0),
        convention=made.get("convention", "paper"),
        optimizer=run.optimizer,
        seed=run.seed,
    )


_NFT_PAPER = {"hidden_channels": 1024, "num_heads": 4}
_PAPER: dict[str, dict[str, Any]] = {
    "neuron-graph": {},
    "nft-states": {**_NFT_PAPER, "neuron_states": 4},
    "nft": _NFT_PAPER,
    "nfn": {},
}


def _paper(recipe: str, model: str) -> Run:
    """The appendix: 200,000 steps of 64 networks, ten for each image; 22 M parameters with the NFT encoder."""
    shared = {"channels": 256, "num_blocks": 6, "fourier_scale": 3.0, "grid_size": 4, "latent_channels": 256}
    return Run(
        recipe,
        "paper",
        model,
        model={**shared, **_PAPER[model]},
        task=ReconstructConfig(),
        data=DataConfig(images=recipe.removeprefix("inr2array/"), copies=10),
        optimizer=OptimizerConfig("adamw", lr=1e-4, weight_decay=0.01, warmup_steps=10_000),
        training=TrainingConfig(steps=200_000, batch_size=64, val_every=2000, log_every=50, patience=10),
    )


_SHARED: dict[str, Any] = {"latent_channels": 64, "decoder": "joint", "decoder_channels": 256}
_NFT: dict[str, Any] = {
    **_SHARED,
    "channels": 32,
    "num_blocks": 2,
    "hidden_channels": 64,
    "num_heads": 4,
    "standardize": True,
    "fourier_scale": 0.3,
}
_OPTIONS: dict[str, dict[str, Any]] = {
    "neuron-graph": {**_SHARED, "channels": 96, "num_blocks": 3},
    "nft-states": {**_NFT, "neuron_states": 3, "state_channels": 64},
    "nft": _NFT,
    "nfn": {**_SHARED, "channels": 64, "num_blocks": 2, "fourier_scale": 0.3, "standardize": True},
}
"""Models of the scales `small` and `long`."""
_TRAINING: dict[str, tuple[float, int, int]] = {
    "neuron-graph": (2.5e-3, 64, 4000),
    "nft-states": (2e-3, 32, 2000),
    "nft": (2e-3, 32, 2000),
    "nfn": (1e-3, 32, 3000),
}
"""Learning rate, batch, and steps that take ten minutes of one core."""


def _timed(recipe: str, scale: Scale, model: str) -> Run:
    """Full training sets, canonical weights, and as many steps as the scale has time for."""
    rate, batch, steps = _TRAINING[model]
    paper = _paper(recipe, model)
    optimizer = OptimizerConfig("adamw", lr=rate, weight_decay=0.01, beta2=0.98, schedule="cosine", clip_norm=1.0)
    return replace(
        paper,
        scale=scale,
        model=_OPTIONS[model],
        task=ReconstructConfig(augment="affine" if scale == "long" else "none"),
        data=DataConfig(images=paper.data.images),
        canonical="sine",
        **training_of(scale, steps, batch, optimizer),
    )


_NFT_TINY: dict[str, Any] = {"hidden_channels": 16, "num_heads": 2}
_TINY: dict[str, dict[str, Any]] = {
    "neuron-graph": {},
    "nft-states": {**_NFT_TINY, "neuron_states": 1, "state_channels": 8},
    "nft": _NFT_TINY,
    "nfn": {},
}


def _tiny(recipe: str, model: str) -> Run:
    """Seconds: proves the pipeline, not the model."""
    small = _timed(recipe, "small", model)
    sizes = {"channels": 8, "num_blocks": 1, "latent_channels": 8, "decoder_channels": 16}
    return replace(
        small,
        scale="tiny",
        model={**sizes, **_TINY[model]},
        data=DataConfig(images=SAMPLES[small.data.images], limit=64, fit="fast"),
        optimizer=replace(small.optimizer, warmup_steps=5),
        training=TrainingConfig(steps=20, batch_size=8, val_every=10, log_every=5),
    )
