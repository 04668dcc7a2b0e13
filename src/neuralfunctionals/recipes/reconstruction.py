"""Inr2Array: the autoencoders of the paper's Table 5 and Figure 3, at three scales."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from neuralfunctionals.models import Inr2Array
from neuralfunctionals.recipes.functionals import Functional
from neuralfunctionals.recipes.run import SAMPLES, DataConfig, ReconstructConfig, Run, Scale
from neuralfunctionals.tasks import OptimizerConfig, ReconstructTask, TrainingConfig

FUNCTIONALS: dict[str, Functional] = {
    name: Functional(Inr2Array, {"encoder": name}, set_by_data=("omega",), has_canonical=True)
    for name in ("nft", "nfn", "neuron-graph")
}
"""The encoders, by name; the last is not the paper's."""


def reconstruct_run(recipe: str, scale: Scale, model: str) -> Run:
    """The run of a recipe for an encoder."""
    return {"paper": _paper, "small": _small, "tiny": _tiny}[scale](recipe, model)


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


def _paper(recipe: str, model: str) -> Run:
    """The appendix: 200,000 steps of 64 networks, ten for each image; 22 M parameters with the NFT encoder."""
    return Run(
        recipe,
        "paper",
        model,
        model={"channels": 256, "num_blocks": 6, "fourier_scale": 3.0, "grid_size": 4, "latent_channels": 256}
        | ({"hidden_channels": 1024, "num_heads": 4} if model == "nft" else {}),
        task=ReconstructConfig(),
        data=DataConfig(images=recipe.removeprefix("inr2array/"), copies=10),
        optimizer=OptimizerConfig("adamw", lr=1e-4, weight_decay=0.01, warmup_steps=10_000),
        training=TrainingConfig(steps=200_000, batch_size=64, val_every=2000, log_every=50, patience=10),
    )


def _small(recipe: str, model: str) -> Run:
    """At most three minutes on two cores; linear layers are faster and get more steps."""
    paper = _paper(recipe, model)
    steps, batch_size = {"nft": (800, 16), "nfn": (1200, 16), "neuron-graph": (1600, 32)}[model]
    num_blocks = 4 if model == "neuron-graph" else 2
    nft = {"hidden_channels": 128, "num_heads": 4} if model == "nft" else {}
    return replace(
        paper,
        scale="small",
        model={
            **paper.model,
            "channels": 64,
            "num_blocks": num_blocks,
            "latent_channels": 64,
            "decoder_channels": 128,
            **nft,
        },
        data=DataConfig(images=SAMPLES[paper.data.images]),
        optimizer=OptimizerConfig(
            "adamw", lr=1e-3, weight_decay=0.01, warmup_steps=steps // 16, schedule="cosine", clip_norm=1.0
        ),
        training=TrainingConfig(steps=steps, batch_size=batch_size, val_every=steps // 8, log_every=10),
    )


def _tiny(recipe: str, model: str) -> Run:
    """Seconds: proves the pipeline, not the model."""
    small = _small(recipe, model)
    nft = {"hidden_channels": 16, "num_heads": 2} if model == "nft" else {}
    return replace(
        small,
        scale="tiny",
        model={**small.model, "channels": 8, "num_blocks": 1, "latent_channels": 8, "decoder_channels": 16, **nft},
        data=replace(small.data, limit=64, fit="fast"),
        optimizer=replace(small.optimizer, warmup_steps=5),
        training=TrainingConfig(steps=20, batch_size=8, val_every=10, log_every=5),
    )
