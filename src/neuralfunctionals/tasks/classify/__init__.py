"""Classifying INRs by their weights or by Inr2Array's latents: the paper's Tables 1 and 6, at four scales."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from neuralfunctionals.config import SAMPLES, TITLES, Augment, DataConfig, OptimizerConfig, Run, Scale, TrainingConfig
from neuralfunctionals.tasks.definition import Column, ModelSettings, Picture, Published, Recipe, Space, TaskDefinition
from neuralfunctionals.tasks.nft_settings import NEURON_STATES, NFT


@dataclass(frozen=True)
class ClassifyConfig:
    """Settings of the classification task."""

    num_classes: int = 10
    """Number of classes."""
    mixup_alpha: float = 0.0
    """Mixup of training inputs with weights from Beta(alpha, alpha); 0 for none."""
    label_smoothing: float = 0.0
    """Label smoothing: share of each label that is spread over all classes."""
    decode_size: int = 0
    """Side length of a small picture that the model also learns to predict in training; 0 for none."""
    decode_weight: float = 1.0
    """Weight of the picture's squared error in the loss."""
    augment: Augment = "none"
    """Transform training networks at random: by mild affine maps, or by rotations and reflections."""
    mirror: bool = False
    """Also mirror half of the training networks."""


_NFT = NFT.also(
    tiny={"latent_channels": 8, "head_channels": [16]},
    small={"latent_channels": 64, "head_channels": [256]},
    paper={"channels": 256, "num_blocks": 6, "hidden_channels": 1024, "num_heads": 4, "dropout": 0.1},
    lr=2e-3,
    batch_size=64,
    steps=3000,
)
_DRAWS: dict[str, dict[str, Any]] = {
    "tiny": {"picture_size": 14},
    "small": {"picture_size": 14, "head_channels": [512]},
}
"""Options of a model that predicts a picture and classifies it."""
_NFN = ModelSettings(
    tiny={"channels": [4], "num_frequencies": 4, "head_channels": [16]},
    small={
        "channels": [64] * 3,
        "num_frequencies": 32,
        "head_channels": [256],
        "head_dropout": 0.5,
        "standardize": True,
        "fourier_scale": 0.3,
    },
    paper={"channels": [512] * 3, "num_frequencies": 128, "head_dropout": 0.5},
    lr=1e-3,
    batch_size=64,
    steps=3000,
)
_SETTINGS: dict[str, ModelSettings] = {
    "neuron-graph": ModelSettings(
        tiny={
            "channels": 8,
            "num_rounds": 2,
            "num_frequencies": 2,
            "pool_channels": 8,
            "head_channels": [16],
            "picture_size": 14,
        },
        small={
            "channels": 96,
            "num_rounds": 3,
            "num_frequencies": 16,
            "pool_channels": 768,
            "head_channels": [1024],
            "picture_size": 14,
            "dropout": 0.05,
        },
        paper={"channels": 128, "num_rounds": 6},
        lr=2.5e-3,
        batch_size=64,
        steps=3750,
    ),
    "nft-states": _NFT.also(**NEURON_STATES).also(**_DRAWS, steps=2400),
    "nft": _NFT,
    "nfn-np": _NFN,
    "nfn-hnp": _NFN,
    "spatial-nfn": ModelSettings(
        tiny={"channels": [4], "num_frequencies": 4, "grid_size": 3, "latent_channels": 8},
        small={
            "channels": [64] * 3,
            "num_frequencies": 32,
            "latent_channels": 64,
            "standardize": True,
            "fourier_scale": 0.3,
        },
        paper={"channels": [512] * 3},
        lr=1e-3,
        batch_size=64,
        steps=1600,
    ),
    "dws": ModelSettings(
        tiny={"channels": 4, "num_layers": 2, "standardize": True, "batch_norm": True},
        small={"channels": 32, "num_layers": 4, "standardize": True, "batch_norm": True},
        paper={"channels": 32, "num_layers": 4, "standardize": True, "batch_norm": True},
        lr=5e-3,
        batch_size=64,
        steps=3500,
    ),
    "probe-cnn": ModelSettings(
        {"channels": 4, "derivatives": True},
        {"derivatives": True},
        {"derivatives": True},
        lr=3e-3,
        batch_size=64,
        steps=24_000,
    ),
    "render-cnn": ModelSettings(
        {"channels": 4}, {"channels": 16}, {"channels": 32}, lr=3e-3, batch_size=128, steps=8000
    ),
    "latent": ModelSettings(
        tiny={"channels": 16, "num_blocks": 1, "num_heads": 2, "hidden_channels": 32},
        small={"channels": 128, "num_blocks": 4, "num_heads": 4, "hidden_channels": 512},
        paper={"channels": 512, "num_blocks": 12, "num_heads": 4, "hidden_channels": 2048, "dropout": 0.1},
        lr=5e-4,
        batch_size=128,
        steps=4000,
    ),
}
_LATENT_MODELS = ("latent",)
_VALUE_MODELS = ("probe-cnn", "render-cnn")
"""Models that see nothing but values of the networks, which signs and phases do not change."""
_EPOCH = {"mnist": 3515, "fashion": 4296, "cifar10": 3515}
"""Batches of 128 latents in the paper's training sets, with ten copies of each image."""


def _fields(recipe: Recipe, model: str, scale: Scale) -> dict[str, Any]:
    on_latents = model in _LATENT_MODELS
    if scale == "paper":
        return _paper_fields(recipe.images, on_latents=on_latents)
    if on_latents:
        return {}
    augmentation: dict[str, Any] = {"augment": "affine", "mirror": recipe.images != "mnist"}
    if model in _VALUE_MODELS:
        return {"task": ClassifyConfig(**augmentation)}
    # A high weight of the picture only helps models that classify the predicted picture.
    weight = 64.0 if model in _SETTINGS and "picture_size" in _SETTINGS[model].small else 1.0
    return {"task": ClassifyConfig(**augmentation, decode_size=14, decode_weight=weight), "canonical": "sine"}


def _paper_fields(images: str, *, on_latents: bool) -> dict[str, Any]:
    """As in the appendix: 100 epochs of 128 latents with mixup; on weights, the autoencoder's 200,000 steps."""
    epoch = _EPOCH[images]
    return {
        "task": ClassifyConfig(mixup_alpha=0.2 if on_latents else 0.0),
        "data": DataConfig(images=images, copies=20 if images == "cifar10" and not on_latents else 10),
        "optimizer": OptimizerConfig("adamw", lr=1e-4, weight_decay=0.01, warmup_steps=0 if on_latents else 10_000),
        "training": TrainingConfig(steps=100 * epoch, batch_size=128, val_every=epoch, log_every=50, patience=10)
        if on_latents
        else TrainingConfig(steps=200_000, batch_size=32, val_every=2000, log_every=50, patience=10),
    }


def _out_channels(config: ClassifyConfig, spec: Any) -> int:
    return config.num_classes + config.decode_size**2 * spec.widths[-1]


def _search(run: Run) -> Space:
    other: Space = {"task.mixup_alpha": (0.0, 0.2, 1.0)} if run.model_name in _LATENT_MODELS else {}
    return {"optimizer.weight_decay": (0.1, 0.01), **(other or {"model.dropout": (0.1, 0.0)})}


_TRAIN: dict[str, dict[str, float]] = {
    "classify/mnist": {"nfn": 96.2, "spatial-nfn": 95.3, "inr2array-nfn": 100.0, "inr2array-nft": 100.0},
    "classify/fashion": {"nfn": 84.1, "spatial-nfn": 76.4, "inr2array-nfn": 92.8, "inr2array-nft": 97.6},
    "classify/cifar10": {"nfn": 61.0, "spatial-nfn": 52.3, "inr2array-nfn": 98.5, "inr2array-nft": 100.0},
}
_TEST: dict[str, dict[str, float]] = {
    "classify/mnist": {"nfn": 92.9, "spatial-nfn": 92.9, "dws": 85.7, "inr2array-nfn": 94.6, "inr2array-nft": 98.5},
    "classify/fashion": {"nfn": 75.6, "spatial-nfn": 70.8, "dws": 65.5, "inr2array-nfn": 76.7, "inr2array-nft": 79.3},
    "classify/cifar10": {"nfn": 46.6, "spatial-nfn": 45.6, "inr2array-nfn": 45.4, "inr2array-nft": 63.4},
}


def _published(name: str, values: dict[str, dict[str, float]]) -> Published:
    """Accuracies of the paper's Table 6, which has the better of NP and HNP for NFN."""
    both = {recipe: {**of, "nfn-np": of["nfn"], "nfn-hnp": of["nfn"]} for recipe, of in values.items()}
    return Published(name, both, digits=1)


TASK = TaskDefinition(
    "neuralfunctionals.tasks.classify.task:ClassifyTask",
    metric="accuracy",
    higher_is_better=True,
    config=ClassifyConfig,
    recipes={
        images: Recipe(f"classify {TITLES[images]} INRs by weights or latents", "Tables 1 and 6", images)
        for images in SAMPLES
    },
    settings=_SETTINGS,
    fields=_fields,
    out_channels=_out_channels,
    latent_models=_LATENT_MODELS,
    search=_search,
    title="Classifying networks",
    question="Can a model tell from the weights alone what a network shows, such as which digit, without ever running "
    "it? The accuracy is the share of networks that are classified correctly: higher is better. 'chance' is the "
    "accuracy of guessing.",
    columns=(
        Column("train, %", "train", "accuracy", percent=True),
        Column("test, %", "test", "accuracy", percent=True),
        _published("paper: train", _TRAIN),
        _published("paper: test", _TEST),
    ),
    pictures=(
        Picture(
            "Predictions",
            "Test networks and the class that each model predicts from their weights; wrong ones are crossed out. "
            "The pictures are only shown for comparison: no model sees them.",
            ("image", "label", "predicted"),
            kind="classes",
        ),
    ),
    baseline=("chance", lambda task: 1 / task["num_classes"]),
)
