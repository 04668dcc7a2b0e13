"""Predicting the test accuracy of CNNs: the two zoos of the paper's Table 3, at four scales."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from neuralfunctionals.recipes.run import GeneralizationConfig, Run, Scale, ZooConfig
from neuralfunctionals.tasks import GeneralizationTask, OptimizerConfig, TrainingConfig

IMAGES = {"generalization/cifar10-grey": "cifar10", "generalization/svhn-grey": "svhn-grey"}
"""The recipes and the full image sets that their CNNs classify."""

MODELS = ("neuron-graph", "nft-states", "nft", "nft-hnp", "nfn-np", "nfn-hnp", "statnn")
"""The models that can predict; the first is the default."""

COST: dict[Scale, str] = {
    "tiny": "seconds",
    "small": "5 minutes of one core, and about 45 minutes of one core for its zoo",
    "long": "15 minutes of one core, and about 45 minutes of one core for its zoo",
    "paper": "5 hours on a GPU (the paper's figure); about six days on two cores for a zoo of 30,000",
}
"""What a run takes, by scale."""

_SAMPLES = {"cifar10": "fashion-sample", "svhn-grey": "mnist-sample"}
"""Embedded stand-ins. Not shapes-sample: without their colours its shapes leave nearly all CNNs of a zoo at chance."""


def generalization_run(recipe: str, scale: Scale, model: str) -> Run:
    """The run of a recipe for a model."""
    if scale == "paper":
        return _paper(recipe, model)
    return _tiny(recipe, model) if scale == "tiny" else _timed(recipe, scale, model)


def make_task(run: Run, model: nn.Module, made: Mapping[str, Any]) -> GeneralizationTask:
    """The run's task with a model."""
    assert isinstance(run.task, GeneralizationConfig)
    return GeneralizationTask(model, loss=run.task.loss, optimizer=run.optimizer, seed=run.seed)


def _paper(recipe: str, model: str) -> Run:
    """The appendix: 75,000 steps of 8 CNNs out of 12,000, Adam at 1e-3; 46 M parameters.

    The baselines as published: no warm-up, and standardized weights for NFN-NP alone. Validation chose HNP pooling and
    a Fourier scale of 3 over cross-attention and 10: `--model.pooling`, `--model.fourier_scale`.
    """
    nft = {"channels": 256, "num_blocks": 4, "hidden_channels": 1024, "num_heads": 4, "dropout": 0.1}
    options = _options(model, nft, nfn_channels=[16, 16, 5], graph_channels=96, head_channels=[1000, 1000])
    return Run(
        recipe,
        "paper",
        model,
        model={**options, "standardize": True} if model == "nfn-np" else options,
        task=GeneralizationConfig("bce"),
        data=ZooConfig(images=IMAGES[recipe], count=30_000, seed=_zoo_seed(recipe)),
        optimizer=OptimizerConfig("adam", lr=1e-3, warmup_steps=10_000 if model.startswith("nft") else 0),
        training=TrainingConfig(steps=75_000, batch_size=8, val_every=1500, log_every=50),
    )


_SMALL_TRAINING = {
    "nft-states": (1e-3, 800),
    "nft": (1e-3, 800),
    "nft-hnp": (1e-3, 800),
    "nfn-np": (3e-3, 2000),
    "nfn-hnp": (3e-3, 2000),
    "statnn": (3e-3, 4000),
    "neuron-graph": (1e-2, 2000),
}
"""Learning rate, of four by validation, and steps: the cheaper the model, the more."""


def _timed(recipe: str, scale: Scale, model: str) -> Run:
    """Smaller models, fewer steps and a rate that falls to zero; `long` has three times the steps of `small`.

    The zoo has 800 CNNs of 25 epochs on up to 24,000 images, for SVHN 400 of 50 epochs on all, at batch 64.
    """
    nft = {"channels": 32, "num_blocks": 2, "hidden_channels": 64, "num_heads": 4, "dropout": 0.0}
    options = _options(model, nft, nfn_channels=[16, 16, 5], graph_channels=32, head_channels=[256, 256])
    if model == "nft-hnp":  # for both NFTs validation chose between two poolings and two Fourier scales
        options = {**options, "pooling": "cross_attention"}
    if model == "nfn-np":  # validation also chose no encoding: its many constant channels drown the weights' one
        options = {**options, "io_encoding": "none"}
    rate, steps = _SMALL_TRAINING[model]
    steps = 3 * steps if scale == "long" else steps
    count, epochs, limit = (800, 25, 24_000) if IMAGES[recipe] == "cifar10" else (400, 50, None)
    return replace(
        _paper(recipe, model),
        scale=scale,
        model={**options, "standardize": True} if model in ("nfn-np", "nfn-hnp", "statnn") else options,
        data=ZooConfig(
            images=IMAGES[recipe],
            count=count,
            epochs=epochs,
            batch_size=64,
            limit_images=limit,
            seed=_zoo_seed(recipe),
        ),
        optimizer=OptimizerConfig("adam", lr=rate, warmup_steps=steps // 16, schedule="cosine", clip_norm=1.0),
        training=TrainingConfig(steps=steps, batch_size=8, val_every=steps // 20, log_every=10),
    )


def _tiny(recipe: str, model: str) -> Run:
    """Seconds: proves the pipeline, not the model."""
    small = _timed(recipe, "small", model)
    nft = {"channels": 8, "num_blocks": 1, "hidden_channels": 8, "num_heads": 2, "dropout": 0.0}
    return replace(
        small,
        scale="tiny",
        model=_options(model, nft, nfn_channels=[4, 4], graph_channels=8, head_channels=[32]),
        data=replace(small.data, images=_SAMPLES[IMAGES[recipe]], count=40, epochs=12, limit_images=600),
        optimizer=replace(small.optimizer, lr=1e-2, warmup_steps=5),
        training=TrainingConfig(steps=20, batch_size=4, val_every=10, log_every=5),
    )


def _zoo_seed(recipe: str) -> int:
    """Zoos of one seed share their hyperparameters: each recipe has its own."""
    return list(IMAGES).index(recipe)


def _options(
    model: str, nft: dict[str, Any], *, nfn_channels: list[int], graph_channels: int, head_channels: list[int]
) -> dict[str, Any]:
    attention = {**nft, "fourier_scale": 3.0, "pooling": "HNP", "head_channels": head_channels}
    linear = {"channels": nfn_channels, "pooling": "HNP", "head_channels": head_channels}
    return {
        "nft-states": {**attention, "neuron_states": 2, "state_channels": graph_channels},
        "nft": attention,
        "nft-hnp": attention,
        "nfn-np": linear,
        "nfn-hnp": linear,
        "statnn": {"head_channels": head_channels},
        "neuron-graph": {"channels": graph_channels, "dropout": 0.1, "pooling": "vector"},
    }[model]
