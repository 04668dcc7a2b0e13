"""Inr2Array: the autoencoders of the paper's Table 5 and Figure 3, at four scales."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from neuralfunctionals.config import SAMPLES, TITLES, Augment, DataConfig, OptimizerConfig, Run, Scale, TrainingConfig
from neuralfunctionals.tasks.definition import Column, ModelSettings, Picture, Published, Recipe, Space, TaskDefinition
from neuralfunctionals.tasks.nft_settings import NEURON_STATES, NFT


@dataclass(frozen=True)
class ReconstructConfig:
    """Settings of the autoencoder task."""

    target: Literal["inr", "image"] = "inr"
    """Reconstruction target: the picture that the network shows, or the image that it was fitted to."""
    augment: Augment = "none"
    """Transform training networks and targets at random: by mild affine maps, or by rotations and reflections."""


_PAPER: dict[str, Any] = {
    "channels": 256,
    "num_blocks": 6,
    "fourier_scale": 3.0,
    "grid_size": 4,
    "latent_channels": 256,
}
_SMALL: dict[str, Any] = {"latent_channels": 64, "decoder": "joint", "decoder_channels": 256, "paint_size": 7}
_TINY: dict[str, Any] = {"channels": 8, "num_blocks": 1, "latent_channels": 8, "decoder_channels": 16}
_NFT = NFT.also(
    tiny=_TINY, small=_SMALL, paper={**_PAPER, "hidden_channels": 1024, "num_heads": 4}, lr=2e-3, steps=4000
)
_SETTINGS: dict[str, ModelSettings] = {
    "neuron-graph": ModelSettings(
        {**_TINY, "state_frequencies": 2, "pool_channels": 8, "head_channels": 16, "paint_size": 7},
        {
            **_SMALL,
            "channels": 96,
            "num_blocks": 3,
            "state_frequencies": 16,
            "pool_channels": 768,
            "head_channels": 1024,
        },
        _PAPER,
        lr=2.5e-3,
        batch_size=64,
        steps=3500,
    ),
    "nft-states": _NFT.also(**NEURON_STATES, steps=3500),
    "nft": _NFT,
    "nfn": ModelSettings(
        _TINY,
        {**_SMALL, "channels": 64, "num_blocks": 2, "fourier_scale": 0.3, "standardize": True},
        _PAPER,
        lr=1e-3,
        batch_size=32,
        steps=4500,
    ),
}
"""The encoders; the last two are the paper's."""


def _fields(recipe: Recipe, model: str, scale: Scale) -> dict[str, Any]:
    if scale != "paper":
        return {"task": ReconstructConfig(augment="affine" if scale == "long" else "none"), "canonical": "sine"}
    # The appendix: 200,000 steps of 64 networks, ten per image; 22 M parameters with the NFT encoder.
    return {
        "data": DataConfig(images=recipe.images, copies=10),
        "optimizer": OptimizerConfig("adamw", lr=1e-4, weight_decay=0.01, warmup_steps=10_000),
        "training": TrainingConfig(steps=200_000, batch_size=64, val_every=2000, log_every=50, patience=10),
    }


def _search(run: Run) -> Space:
    """The values of the appendix at `paper`, otherwise relative to the values of the run."""
    space: Space = {}
    if {"num_blocks", "channels"} <= run.model.keys():
        blocks, channels = run.model["num_blocks"], run.model["channels"]
        space["model.num_blocks"] = tuple(sorted({max(1, 2 * blocks // 3), blocks}))
        space["model.channels"] = (channels, 2 * channels)
    if run.model_name in ("nft", "nft-states", "nfn"):
        space["model.fourier_scale"] = (3.0, 10.0)
    space["model.dropout"] = (0.1, 0.0)
    if run.model_name == "nft":
        hidden, heads = run.model["hidden_channels"], run.model["num_heads"]
        space |= {"model.hidden_channels": (hidden // 2, hidden), "model.num_heads": (heads, 2 * heads)}
    return space


_PUBLISHED: dict[str, dict[str, tuple[float, float]]] = {
    "inr2array/mnist": {"nfn": (0.046, 0.001), "nft": (0.027, 0.003)},
    "inr2array/fashion": {"nfn": (0.085, 0.006), "nft": (0.070, 0.006)},
    "inr2array/cifar10": {"nfn": (0.117, 0.008), "nft": (0.036, 0.006)},
}
"""Test MSE of the paper's Table 5 and its standard error."""

TASK = TaskDefinition(
    "neuralfunctionals.tasks.inr2array.task:ReconstructTask",
    metric="mse",
    config=ReconstructConfig,
    recipes={
        images: Recipe(f"encode {TITLES[images]} INRs as invariant arrays", "Table 5, Figure 3", images)
        for images in SAMPLES
    },
    settings=_SETTINGS,
    fields=_fields,
    output="autoencoder",
    search=_search,
    title="Networks as arrays",
    question="Two networks that show the same picture can have entirely different weights. Can a model turn the "
    "weights into a short array of numbers that does not depend on the order of neurons, and from which the picture "
    "can be drawn again? The error is the mean squared difference (MSE) between the network's picture and the one "
    "drawn from its array: lower is better.",
    metric_name="MSE",
    columns=(
        Column("train MSE", "train", "mse"),
        Column("test MSE", "test", "mse"),
        Published("paper: test", _PUBLISHED, digits=3),
    ),
    pictures=(
        Picture(
            "Reconstructions",
            "Test networks, their pictures drawn from the array of each model, and the images they were fitted to.",
            ("original", "reconstruction", "image"),
            file="reconstructions",
            above={"INR": "original"},
            each="reconstruction",
            below={"image": "image"},
        ),
        Picture(
            "A map of latents",
            "Each point is the array of one test network, in the two directions along which arrays differ most; the "
            "colour is the class. Classes were not used to make the arrays.",
            ("map", "map_label"),
            kind="map",
            file="latents",
        ),
    ),
)
