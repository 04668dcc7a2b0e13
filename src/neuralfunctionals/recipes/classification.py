"""Classes of INRs, from their weights or from Inr2Array's latents: the paper's Tables 1 and 6, at four scales."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from neuralfunctionals.data import WeightDataset
from neuralfunctionals.models import NFN, NFT, DWSNet, LatentClassifier, NeuronGraphNet, RenderCNN, SpatialNFN
from neuralfunctionals.recipes.functionals import Functional
from neuralfunctionals.recipes.run import SAMPLES, ClassifyConfig, DataConfig, Run, Scale, training_of
from neuralfunctionals.tasks import ClassifyTask, OptimizerConfig, TrainingConfig

_ATTENTION = {"symmetry": "NP", "pooling": "cross_attention"}
FUNCTIONALS: dict[str, Functional] = {
    "neuron-graph": Functional(NeuronGraphNet, {"pooling": "vector"}, set_by_data=("omega",)),
    "nft-states": Functional(NFT, _ATTENTION, set_by_data=("omega",)),
    "nft": Functional(NFT, _ATTENTION, set_by_data=("omega",)),
    "nfn-np": Functional(NFN, {"symmetry": "NP", "pooling": "HNP"}),
    "nfn-hnp": Functional(NFN, {"symmetry": "HNP", "pooling": "HNP"}),
    "spatial-nfn": Functional(SpatialNFN),
    "dws": Functional(DWSNet, {"invariant": True}),
    "render-cnn": Functional(RenderCNN, set_by_data=("omega", "image_size")),
    "latent": Functional(LatentClassifier, set_by_data=("num_latents", "latent_channels", "num_classes")),
}
"""The classifiers, by name; the first is the default."""

LATENT_MODELS = ("latent",)
"""Those that read latents."""
MODELS = tuple(name for name in FUNCTIONALS if name not in LATENT_MODELS)
"""Those that read weights."""

_EPOCH = {"mnist": 3515, "fashion": 4296, "cifar10": 3515}
"""Batches of 128 latents in the paper's training sets, with ten copies of each image."""


def classify_run(recipe: str, scale: Scale, model: str) -> Run:
    """The run of a recipe for a model."""
    if scale == "paper":
        return _paper(recipe, model)
    return _tiny(recipe, model) if scale == "tiny" else _timed(recipe, scale, model)


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
    known = {
        "omega": dataset.provenance.get("omega", 30.0),
        "image_size": dataset.provenance.get("image_shape", [28])[0],
    }
    from_data = {name: known[name] for name in FUNCTIONALS[run.model_name].set_by_data}
    pixels = run.task.decode_size**2 * dataset.spec.widths[-1]
    return {"out_channels": run.task.num_classes + pixels, **from_data}


def make_task(run: Run, model: nn.Module, made: Mapping[str, Any]) -> ClassifyTask:
    """The run's task with a model."""
    assert isinstance(run.task, ClassifyConfig)
    return ClassifyTask(
        model,
        source="latents" if run.model_name in LATENT_MODELS else "weights",
        num_classes=run.task.num_classes,
        mixup_alpha=run.task.mixup_alpha,
        label_smoothing=run.task.label_smoothing,
        decode_size=run.task.decode_size,
        omega=made.get("omega", 30.0),
        augment=run.task.augment,
        mirror=run.task.mirror,
        convention=made.get("convention", "paper"),
        optimizer=run.optimizer,
        seed=run.seed,
    )


_NFT_PAPER: dict[str, Any] = {"channels": 256, "num_blocks": 6, "hidden_channels": 1024, "num_heads": 4, "dropout": 0.1}
_PAPER: dict[str, dict[str, Any]] = {
    "neuron-graph": {"channels": 128, "num_rounds": 6},
    "nft-states": {**_NFT_PAPER, "neuron_states": 4},
    "nft": _NFT_PAPER,
    "nfn-np": {"channels": [512] * 3, "num_frequencies": 128, "head_dropout": 0.5},
    "nfn-hnp": {"channels": [512] * 3, "num_frequencies": 128, "head_dropout": 0.5},
    "spatial-nfn": {"channels": [512] * 3},
    "dws": {"channels": 32, "num_layers": 4, "standardize": True, "batch_norm": True},
    "render-cnn": {"channels": 32},
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


_NFT: dict[str, Any] = {
    "channels": 32,
    "num_blocks": 2,
    "hidden_channels": 64,
    "num_heads": 4,
    "latent_channels": 64,
    "head_channels": [256],
    "standardize": True,
    "fourier_scale": 0.3,
}
_NFN: dict[str, Any] = {
    "channels": [64] * 3,
    "num_frequencies": 32,
    "head_channels": [256],
    "head_dropout": 0.5,
    "standardize": True,
    "fourier_scale": 0.3,
}
_OPTIONS: dict[str, dict[str, Any]] = {
    "neuron-graph": {"channels": 96, "num_rounds": 3, "dropout": 0.05},
    "nft-states": {**_NFT, "neuron_states": 3, "state_channels": 64},
    "nft": _NFT,
    "nfn-np": _NFN,
    "nfn-hnp": _NFN,
    "spatial-nfn": {
        "channels": [64] * 3,
        "num_frequencies": 32,
        "latent_channels": 64,
        "standardize": True,
        "fourier_scale": 0.3,
    },
    "dws": {"channels": 32, "num_layers": 4, "standardize": True, "batch_norm": True},
    "render-cnn": {"channels": 16},
    "latent": {"channels": 128, "num_blocks": 4, "num_heads": 4, "hidden_channels": 512},
}
"""Models of the scales `small` and `long`."""
_TRAINING: dict[str, tuple[float, int, int]] = {
    "neuron-graph": (2.5e-3, 64, 6000),
    "nft-states": (2e-3, 64, 1500),
    "nft": (2e-3, 64, 1500),
    "nfn-np": (1e-3, 64, 2000),
    "nfn-hnp": (1e-3, 64, 2000),
    "spatial-nfn": (1e-3, 64, 1000),
    "dws": (5e-3, 64, 2000),
    "render-cnn": (3e-3, 128, 3000),
    "latent": (5e-4, 128, 6000),
}
"""Learning rate, batch, and steps that take ten minutes of one core."""


def _timed(recipe: str, scale: Scale, model: str) -> Run:
    """Full training sets, canonical weights, and as many steps as the scale has time for."""
    paper = _paper(recipe, model)
    on_latents = model in LATENT_MODELS
    rate, batch, steps = _TRAINING[model]
    optimizer = OptimizerConfig("adamw", lr=rate, weight_decay=0.01, beta2=0.98, schedule="cosine", clip_norm=1.0)
    return replace(
        paper,
        scale=scale,
        model=_OPTIONS[model],
        task=ClassifyConfig()
        if on_latents
        else ClassifyConfig(augment="affine", mirror=paper.data.images != "mnist", decode_size=14),
        data=DataConfig(images=paper.data.images),
        canonical="none" if on_latents else "sine",
        **training_of(scale, steps, batch, optimizer),
    )


_NFT_TINY = {"channels": 8, "num_blocks": 1, "hidden_channels": 16, "num_heads": 2, "latent_channels": 8}
_TINY: dict[str, dict[str, Any]] = {
    "neuron-graph": {"channels": 8, "num_rounds": 2, "head_channels": [16]},
    "nft-states": {**_NFT_TINY, "head_channels": [16], "neuron_states": 1, "state_channels": 8},
    "nft": {**_NFT_TINY, "head_channels": [16]},
    "nfn-np": {"channels": [4], "num_frequencies": 4, "head_channels": [16]},
    "nfn-hnp": {"channels": [4], "num_frequencies": 4, "head_channels": [16]},
    "spatial-nfn": {"channels": [4], "num_frequencies": 4, "grid_size": 3, "latent_channels": 8},
    "dws": {"channels": 4, "num_layers": 2, "standardize": True, "batch_norm": True},
    "render-cnn": {"channels": 4},
    "latent": {"channels": 16, "num_blocks": 1, "num_heads": 2, "hidden_channels": 32},
}


def _tiny(recipe: str, model: str) -> Run:
    """Seconds: proves the pipeline, not the model."""
    small = _timed(recipe, "small", model)
    return replace(
        small,
        scale="tiny",
        model=_TINY[model],
        data=DataConfig(images=SAMPLES[small.data.images], limit=64, fit="fast"),
        optimizer=replace(small.optimizer, warmup_steps=5),
        training=TrainingConfig(steps=20, batch_size=8, val_every=10, log_every=5),
    )
