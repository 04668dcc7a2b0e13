"""Classes of INRs, from their weights or from Inr2Array's latents: the paper's Tables 1 and 6, at three scales."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from neuralfunctionals.data import WeightDataset
from neuralfunctionals.models import NFN, NFT, DWSNet, LatentClassifier, NeuronGraphNet, SpatialNFN
from neuralfunctionals.recipes.functionals import Functional
from neuralfunctionals.recipes.run import SAMPLES, ClassifyConfig, DataConfig, Run, Scale
from neuralfunctionals.tasks import ClassifyTask, OptimizerConfig, TrainingConfig

FUNCTIONALS: dict[str, Functional] = {
    "nft": Functional(NFT, {"symmetry": "NP", "pooling": "cross_attention"}),
    "nfn-np": Functional(NFN, {"symmetry": "NP", "pooling": "HNP"}),
    "nfn-hnp": Functional(NFN, {"symmetry": "HNP", "pooling": "HNP"}),
    "spatial-nfn": Functional(SpatialNFN),
    "dws": Functional(DWSNet, {"invariant": True}),
    "neuron-graph": Functional(NeuronGraphNet, {"invariant": True}, set_by_data=("omega",)),
    "latent": Functional(LatentClassifier, set_by_data=("num_latents", "latent_channels", "num_classes")),
}
"""The classifiers, by name."""

LATENT_MODELS = ("latent",)
"""Those that read latents."""
MODELS = tuple(name for name in FUNCTIONALS if name not in LATENT_MODELS)
"""Those that read weights."""

_EPOCH = {"mnist": 3515, "fashion": 4296, "cifar10": 3515}
"""Batches of 128 latents in the paper's training sets, with ten copies of each image."""


def classify_run(recipe: str, scale: Scale, model: str) -> Run:
    """The run of a recipe for a model."""
    return {"paper": _paper, "small": _small, "tiny": _tiny}[scale](recipe, model)


def options_from(run: Run, dataset: WeightDataset) -> dict[str, Any]:
    """Arguments of the model that follow from the data."""
    assert isinstance(run.task, ClassifyConfig)
    if run.model_name in LATENT_MODELS:
        latents = dataset[:1].latents
        if latents is None:
            raise ValueError(f"Expected latents in {dataset.path}, but there are none. Make them with nf encode.")
        return {
            "num_latents": latents.shape[1],
            "latent_channels": latents.shape[2],
            "num_classes": run.task.num_classes,
        }
    omega = {"omega": dataset.provenance.get("omega", 30.0)} if run.model_name == "neuron-graph" else {}
    return {"out_channels": run.task.num_classes, **omega}


def make_task(run: Run, model: nn.Module, made: Mapping[str, Any]) -> ClassifyTask:
    """The run's task with a model."""
    assert isinstance(run.task, ClassifyConfig)
    return ClassifyTask(
        model,
        source="latents" if run.model_name in LATENT_MODELS else "weights",
        num_classes=run.task.num_classes,
        mixup_alpha=run.task.mixup_alpha,
        augment=run.task.augment,
        omega=made.get("omega", 30.0),
        convention=made.get("convention", "paper"),
        optimizer=run.optimizer,
        seed=run.seed,
    )


_PAPER: dict[str, dict[str, Any]] = {
    "nft": {"channels": 256, "num_blocks": 6, "hidden_channels": 1024, "num_heads": 4, "dropout": 0.1},
    "nfn-np": {"channels": [512] * 3, "num_frequencies": 128, "head_dropout": 0.5},
    "nfn-hnp": {"channels": [512] * 3, "num_frequencies": 128, "head_dropout": 0.5},
    "spatial-nfn": {"channels": [512] * 3},
    "dws": {"channels": 32, "num_layers": 4, "standardize": True, "batch_norm": True},
    "neuron-graph": {"channels": 96, "num_rounds": 4},
    "latent": {"channels": 512, "num_blocks": 12, "num_heads": 4, "hidden_channels": 2048, "dropout": 0.1},
}


def _paper(recipe: str, model: str) -> Run:
    """The appendix: 100 epochs of 128 latents with mixup, or the autoencoder's 200,000 steps for those of weights."""
    images = recipe.removeprefix("classify/")
    on_latents = model in LATENT_MODELS
    epoch = _EPOCH[images]
    return Run(
        recipe,
        "paper",
        model,
        model=_PAPER[model],
        task=ClassifyConfig(mixup_alpha=0.2 if on_latents else 0.0),
        data=DataConfig(images=images, copies=20 if images == "cifar10" and not on_latents else 10),
        optimizer=OptimizerConfig("adamw", lr=1e-4, weight_decay=0.01, warmup_steps=0 if on_latents else 10_000),
        training=TrainingConfig(steps=100 * epoch, batch_size=128, val_every=epoch, log_every=50, patience=10)
        if on_latents
        else TrainingConfig(steps=200_000, batch_size=32, val_every=2000, log_every=50, patience=10),
    )


_NFN: dict[str, Any] = {"channels": [64] * 3, "num_frequencies": 32, "head_channels": [256], "head_dropout": 0.5}
_SMALL: dict[str, dict[str, Any]] = {
    "nft": {
        "channels": 64,
        "num_blocks": 2,
        "hidden_channels": 128,
        "num_heads": 4,
        "latent_channels": 64,
        "head_channels": [256],
    },
    "nfn-np": _NFN,
    "nfn-hnp": _NFN,
    "spatial-nfn": {"channels": [64] * 3, "num_frequencies": 32, "latent_channels": 64},
    "dws": {"channels": 32, "num_layers": 4, "standardize": True, "batch_norm": True},
    "neuron-graph": {"channels": 64, "num_rounds": 4, "dropout": 0.1},
    "latent": {"channels": 128, "num_blocks": 4, "num_heads": 4, "hidden_channels": 512},
}
_SMALL_TRAINING = {
    "nft": (1e-3, 600, 16),
    "nfn-np": (1e-3, 1200, 16),
    "nfn-hnp": (1e-3, 1200, 16),
    "spatial-nfn": (1e-3, 700, 16),
    "dws": (5e-3, 1500, 16),
    "neuron-graph": (1e-3, 2000, 32),
    "latent": (5e-4, 1500, 64),
}
"""Learning rate, steps and batch."""


def _small(recipe: str, model: str) -> Run:
    """At most three minutes on two cores."""
    rate, steps, batch = _SMALL_TRAINING[model]
    paper = _paper(recipe, model)
    return replace(
        paper,
        scale="small",
        model=_SMALL[model],
        data=DataConfig(images=SAMPLES[paper.data.images]),
        optimizer=OptimizerConfig(
            "adamw", lr=rate, weight_decay=0.01, warmup_steps=steps // 16, schedule="cosine", clip_norm=1.0
        ),
        training=TrainingConfig(steps=steps, batch_size=batch, val_every=steps // 10, log_every=10),
    )


_TINY: dict[str, dict[str, Any]] = {
    "nft": {
        "channels": 8,
        "num_blocks": 1,
        "hidden_channels": 16,
        "num_heads": 2,
        "latent_channels": 8,
        "head_channels": [16],
    },
    "nfn-np": {"channels": [4], "num_frequencies": 4, "head_channels": [16]},
    "nfn-hnp": {"channels": [4], "num_frequencies": 4, "head_channels": [16]},
    "spatial-nfn": {"channels": [4], "num_frequencies": 4, "grid_size": 3, "latent_channels": 8},
    "dws": {"channels": 4, "num_layers": 2, "standardize": True, "batch_norm": True},
    "neuron-graph": {"channels": 8, "num_rounds": 2, "head_channels": [16]},
    "latent": {"channels": 16, "num_blocks": 1, "num_heads": 2, "hidden_channels": 32},
}


def _tiny(recipe: str, model: str) -> Run:
    """Seconds: proves the pipeline, not the model."""
    small = _small(recipe, model)
    return replace(
        small,
        scale="tiny",
        model=_TINY[model],
        data=replace(small.data, limit=64, fit="fast"),
        optimizer=replace(small.optimizer, warmup_steps=5),
        training=TrainingConfig(steps=20, batch_size=8, val_every=10, log_every=5),
    )
