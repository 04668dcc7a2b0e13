"""Predicting the test accuracy of CNNs: the two zoos of the paper's Table 3, at four scales."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from neuralfunctionals.config import TINY_ZOO, TITLES, OptimizerConfig, Run, Scale, TrainingConfig, ZooConfig
from neuralfunctionals.tasks.definition import Column, ModelSettings, Picture, Published, Recipe, Space, TaskDefinition


@dataclass(frozen=True)
class GeneralizationConfig:
    """Settings of the accuracy prediction task."""

    loss: Literal["bce", "mse"] = "bce"
    """Loss of the predicted accuracy: cross-entropy or squared error."""


_SAMPLES = {"cifar10": "fashion-sample", "svhn-grey": "mnist-sample"}
"""Embedded samples. Not shapes-sample: without colours, nearly all CNNs trained on it stay at chance."""
_SEEDS = {"cifar10": 0, "svhn-grey": 1}
"""Each recipe has its own seed, because zoos with the same seed share their hyperparameters."""

_POOLED: dict[str, Any] = {"fourier_scale": 3.0, "pooling": "HNP"}
_TINY: dict[str, Any] = {"channels": 8, "num_blocks": 1, "hidden_channels": 8, "num_heads": 2, "dropout": 0.0}
_SMALL: dict[str, Any] = {"channels": 32, "num_blocks": 2, "hidden_channels": 64, "num_heads": 4, "dropout": 0.0}
_PAPER: dict[str, Any] = {"channels": 256, "num_blocks": 4, "hidden_channels": 1024, "num_heads": 4, "dropout": 0.1}
_NFT = ModelSettings(
    {**_TINY, **_POOLED, "head_channels": [32]},
    {**_SMALL, **_POOLED, "head_channels": [256, 256]},
    {**_PAPER, **_POOLED, "head_channels": [1000, 1000]},
    lr=1e-3,
    batch_size=8,
    steps=800,
)
_STATES = _NFT.also(
    tiny={"neuron_states": 2, "state_channels": 8},
    small={"neuron_states": 2, "state_channels": 32},
    paper={"neuron_states": 2, "state_channels": 96},
)
_NFN = ModelSettings(
    {"channels": [4, 4], "pooling": "HNP", "head_channels": [32]},
    {"channels": [16, 16, 5], "pooling": "HNP", "head_channels": [256, 256], "standardize": True},
    {"channels": [16, 16, 5], "pooling": "HNP", "head_channels": [1000, 1000]},
    lr=3e-3,
    batch_size=8,
    steps=2000,
)
_SETTINGS: dict[str, ModelSettings] = {
    "neuron-graph": ModelSettings(
        {"channels": 8, "dropout": 0.1, "pooling": "vector"},
        {"channels": 32, "dropout": 0.1, "pooling": "vector"},
        {"channels": 96, "dropout": 0.1, "pooling": "vector"},
        lr=1e-2,
        batch_size=8,
        steps=2000,
    ),
    "nft-states": _STATES,
    "nft": _NFT,
    # For both NFTs, pooling and Fourier scale were chosen by validation, each from two values.
    "nft-hnp": _NFT.also(small={"pooling": "cross_attention"}),
    # Validation also chose no encoding: its many constant channels drown out the single channel of the weights.
    "nfn-np": _NFN.also(small={"io_encoding": "none"}, paper={"standardize": True}),
    "nfn-hnp": _NFN,
    "statnn": ModelSettings(
        {"head_channels": [32]},
        {"head_channels": [256, 256], "standardize": True},
        {"head_channels": [1000, 1000]},
        lr=3e-3,
        batch_size=8,
        steps=4000,
    ),
}
"""Learning rate, chosen from four by validation, and steps, more for cheaper models."""


def _fields(recipe: Recipe, model: str, scale: Scale) -> dict[str, Any]:
    """At `paper`, as in the appendix: 75,000 steps of 8 CNNs out of 12,000, Adam at 1e-3; 46 M parameters.

    The baselines are as published: no warm-up, and standardized weights for NFN-NP only. Validation chose HNP pooling
    over cross-attention, and a Fourier scale of 3 over 10: `--model.pooling`, `--model.fourier_scale`.

    Other scales use smaller models, fewer steps and a learning rate that falls to zero; `long` has three times as many
    steps as `small`. The zoo has 800 CNNs (25 epochs on up to 24,000 images; SVHN: 400, 50 epochs on all), batch 64.
    """
    zoo = ZooConfig(images=recipe.images, seed=_SEEDS[recipe.images])
    if scale == "paper":
        return {
            "data": replace(zoo, count=30_000),
            "optimizer": OptimizerConfig("adam", lr=1e-3, warmup_steps=10_000 if model.startswith("nft") else 0),
            "training": TrainingConfig(steps=75_000, batch_size=8, val_every=1500, log_every=50),
        }
    falling: dict[str, Any] = {"name": "adam", "schedule": "cosine", "clip_norm": 1.0}
    if scale == "tiny":
        return {
            "data": replace(zoo, images=_SAMPLES[recipe.images], **TINY_ZOO),
            "optimizer": OptimizerConfig(**falling, lr=1e-2, warmup_steps=5),
            "training": TrainingConfig(steps=20, batch_size=4, val_every=10, log_every=5),
        }
    settings = _SETTINGS.get(model, ModelSettings())
    steps = 3 * settings.steps if scale == "long" else settings.steps
    count, epochs, limit = (800, 25, 24_000) if recipe.images == "cifar10" else (400, 50, None)
    return {
        "data": replace(zoo, count=count, epochs=epochs, batch_size=64, limit_images=limit),
        "optimizer": OptimizerConfig(**falling, lr=settings.lr, warmup_steps=steps // 16),
        "training": TrainingConfig(steps=steps, batch_size=8, val_every=steps // 20, log_every=10),
    }


def _search(run: Run) -> Space:
    if run.model_name in ("nft", "nft-hnp"):
        return {"model.fourier_scale": (3.0, 10.0), "model.pooling": ("HNP", "cross_attention")}
    return {"optimizer.lr": (3e-4, 1e-3, 3e-3, 1e-2)}


_PUBLISHED: dict[str, dict[str, tuple[float, float]]] = {
    "generalization/cifar10-grey": {
        "nfn-hnp": (0.934, 0.001),
        "nfn-np": (0.922, 0.001),
        "statnn": (0.915, 0.002),
        "nft": (0.926, 0.001),
    },
    "generalization/svhn-grey": {
        "nfn-hnp": (0.931, 0.005),
        "nfn-np": (0.856, 0.001),
        "statnn": (0.843, 0.000),
        "nft": (0.858, 0.000),
    },
}
"""Kendall's tau of the paper's Table 3 and its standard error over two runs, from 12,000 training networks."""

TASK = TaskDefinition(
    "neuralfunctionals.tasks.generalization.task:GeneralizationTask",
    metric="kendall_tau",
    higher_is_better=True,
    config=GeneralizationConfig,
    recipes={
        name: Recipe(f"predict the test accuracy of CNNs on grey {TITLES[images]}", "Table 3", images)
        for name, images in {"cifar10-grey": "cifar10", "svhn-grey": "svhn-grey"}.items()
    },
    settings=_SETTINGS,
    fields=_fields,
    data=ZooConfig,
    cost={
        "tiny": "seconds",
        "small": "5 minutes of one core, and about 45 minutes of one core for its zoo",
        "long": "15 minutes of one core, and about 45 minutes of one core for its zoo",
        "paper": "5 hours on a GPU (the paper's figure); about six days on two cores for a zoo of 30,000",
    },
    search=_search,
    title="Predicting accuracy",
    question="Can a model predict from the weights of a trained image classifier how accurate it will be on new "
    "images, without running it on any? Kendall's tau compares the predicted order of the classifiers with the true "
    "one: 1 if all pairs are in the right order, 0 for chance.",
    metric_name="tau",
    columns=(
        Column("train tau", "train", "kendall_tau"),
        Column("test tau", "test", "kendall_tau"),
        Published("paper: test tau", _PUBLISHED, digits=3),
        Column("test R2", "test", "r2"),
        Column("test L1", "test", "l1"),
    ),
    pictures=(
        Picture(
            "Predicted and true",
            "Each point is a test network; on the dotted line, the prediction is exact.",
            ("predicted", "true"),
            kind="scatter",
            file="predictions",
        ),
    ),
)
