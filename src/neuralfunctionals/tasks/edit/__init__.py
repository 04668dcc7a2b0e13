"""Editing INRs: the five tasks of the paper's Tables 2 and 4, at four scales."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from neuralfunctionals.config import TITLES, OptimizerConfig, Scale, TrainingConfig
from neuralfunctionals.tasks.definition import COST, Column, ModelSettings, Picture, Published, Recipe, TaskDefinition
from neuralfunctionals.tasks.nft_settings import NEURON_STATES, NFT

TURNABLE = ("dilate",)
"""Edits that commute with rotations and reflections. Kernels of 2 x 2 pixels do not, and neither do CLAHE's tiles."""


@dataclass(frozen=True)
class EditConfig:
    """Settings of the editing task."""

    edit: Literal["dilate", "erode", "gradient", "contrast"] = "dilate"
    """The edit to learn."""
    augment: Literal["none", "turns"] = "none"
    """Rotate and reflect training networks and targets at random; for dilate only."""


_NFT = NFT.also(
    paper={
        "channels": 256,
        "num_blocks": 4,
        "hidden_channels": 512,
        "num_heads": 8,
        "dropout": 0.1,
        "fourier_scale": 3.0,
    },
    lr=3e-3,
    steps=5000,
)
_SETTINGS: dict[str, ModelSettings] = {
    "neuron-graph": ModelSettings(
        tiny={"channels": 8, "num_rounds": 2, "num_frequencies": 2, "entry_channels": 8, "rank": 4},
        small={"channels": 96, "num_rounds": 3, "num_frequencies": 16},
        paper={"channels": 128, "num_rounds": 6},
        lr=4e-3,
        batch_size=64,
        steps=3500,
    ),
    "nft-states": _NFT.also(**NEURON_STATES, steps=4000),
    "nft": _NFT,
    "nft-hnp": _NFT,
    "nfn-np": ModelSettings(
        tiny={"channels": [4] * 3},
        small={"channels": [39] * 3, "standardize": True},
        paper={"channels": [236] * 3},
        lr=3e-3,
        steps=8000,
    ),
    "nfn-hnp": ModelSettings(
        tiny={"channels": [4] * 3},
        small={"channels": [38] * 3, "standardize": True},
        paper={"channels": [217] * 3},
        lr=1e-2,
        steps=9000,
    ),
}


def _fields(recipe: Recipe, model: str, scale: Scale) -> dict[str, Any]:
    if scale != "paper":
        augment = "turns" if recipe.task.edit in TURNABLE else "none"
        return {"task": replace(recipe.task, augment=augment), "canonical": "sine"}
    # The appendix: 50,000 steps of 32 networks, Adam at 1e-3 after 10,000 steps of warm-up; 7 M parameters.
    fields: dict[str, Any] = {
        "optimizer": OptimizerConfig("adam", lr=1e-3, warmup_steps=10_000),
        "training": TrainingConfig(steps=50_000, batch_size=32, val_every=1000, log_every=50),
    }
    if model == "nfn-hnp" and recipe.images == "cifar10":  # about as many parameters as the others, despite the colours
        fields["model"] = {"channels": [147] * 3}
    return fields


_PUBLISHED: dict[str, dict[str, tuple[float, float]]] = {
    "edit/mnist-erode": {"nfn-hnp": (0.0217, 0.0225), "nfn-np": (0.0212, 0.0223), "nft": (0.0195, 0.0194)},
    "edit/mnist-dilate": {"nfn-hnp": (0.0575, 0.0656), "nfn-np": (0.0671, 0.0693), "nft": (0.0473, 0.0510)},
    "edit/mnist-gradient": {"nfn-hnp": (0.0536, 0.0552), "nfn-np": (0.0547, 0.0566), "nft": (0.0474, 0.0484)},
    "edit/fashion-gradient": {"nfn-hnp": (0.0851, 0.0859), "nfn-np": (0.0853, 0.0870), "nft": (0.0795, 0.0800)},
    "edit/cifar10-contrast": {"nfn-hnp": (0.0191, 0.0204), "nfn-np": (0.0185, 0.0203), "nft": (0.0192, 0.0200)},
}
"""Train and test MSE of the paper's Table 4 (its Table 2 has other test numbers for NFN-HNP)."""


_VERBS = {"gradient": "outline", "contrast": "raise the contrast of"}


def _recipe(images: str, edit: Any) -> Recipe:
    summary = f"{_VERBS.get(edit, edit)} {TITLES[images]} INRs"
    return Recipe(summary, "Tables 2 and 4, Figure 4", images, EditConfig(edit))


TASK = TaskDefinition(
    "neuralfunctionals.tasks.edit.task:EditTask",
    metric="mse",
    config=EditConfig,
    recipes={
        "mnist-erode": _recipe("mnist", "erode"),
        "mnist-dilate": _recipe("mnist", "dilate"),
        "mnist-gradient": _recipe("mnist", "gradient"),
        "fashion-gradient": _recipe("fashion", "gradient"),
        "cifar10-contrast": _recipe("cifar10", "contrast"),
    },
    settings=_SETTINGS,
    fields=_fields,
    output="networks",
    cost={**COST, "paper": "2 hours on a GPU (the paper's figure); about a week on two cores"},
    title="Editing networks",
    question="A small network can hold a picture: for each position, it returns the brightness there. Can a model "
    "that sees nothing but the weights of such a network change them so that the network shows an edited picture, "
    "such as one with thicker strokes? The error is the mean squared difference (MSE) between the picture of the "
    "edited network and the picture edited directly, with values from -1 to 1: lower is better. "
    "The row 'no edit' is the error of unchanged networks.",
    metric_name="MSE",
    columns=(
        Column("train MSE", "train", "mse"),
        Column("test MSE", "test", "mse"),
        Published("paper: train", {r: {m: v[0] for m, v in of.items()} for r, of in _PUBLISHED.items()}),
        Published("paper: test", {r: {m: v[1] for m, v in of.items()} for r, of in _PUBLISHED.items()}),
    ),
    pictures=(
        Picture(
            "Before and after",
            "The pictures of test networks: original, target, and as edited by each model.",
            ("original", "target", "edited"),
            file="edits",
            above={"original": "original", "target": "target"},
            each="edited",
        ),
    ),
    baseline=("no edit", "mse_no_edit"),
)
