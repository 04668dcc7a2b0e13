"""The paper's tables as lists of runs, and how each is drawn: `TABLES`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from neuralfunctionals.data import WeightDataset
from neuralfunctionals.recipes import editing, generalization
from neuralfunctionals.recipes.catalog import RECIPES, find_run
from neuralfunctionals.recipes.run import SAMPLES, DataConfig, Run, with_steps, with_values
from neuralfunctionals.report import (
    classification_table,
    draw_accuracies,
    draw_curves,
    draw_edits,
    draw_latents,
    draw_predictions,
    draw_reconstructions,
    draw_sizes,
    edit_table,
    generalization_table,
    reconstruction_table,
)
from neuralfunctionals.report.finished import FinishedRun

Fields: TypeAlias = tuple[tuple[str, Any], ...]
"""Fields of a run, such as `model.channels`, and their values."""


@dataclass(frozen=True)
class Planned:
    """One run of a table."""

    recipe: str
    model: str
    seed: int = 0
    encoder: str | None = None
    """The autoencoder, of the same images and seed, whose latents it reads."""
    changes: Fields = ()
    """What is not as in the recipe."""
    small: Fields = ()
    """The same for the scale `small` alone. Steps take warm-up and validations with them."""

    def at(self, scale: str, *, full_images: bool, limit: int | None) -> Run:
        """The run at a scale."""
        run = find_run(self.recipe, scale=scale, model=self.model)
        small = dict(self.small) if scale == "small" else {}
        run = with_steps(run, small.get("training.steps", run.training.steps))
        run = with_values(run, {**small, **dict(self.changes), "seed": self.seed})
        if full_images:
            run = with_values(run, {"data.images": RECIPES[self.recipe].images})
        if limit is not None:
            run = with_values(run, {f"data.{'limit' if isinstance(run.data, DataConfig) else 'limit_images'}": limit})
        return run


@dataclass(frozen=True)
class PaperTable:
    """Which runs make a table, and how it is drawn."""

    summary: str
    runs: tuple[Planned, ...]
    draw: Callable[[Sequence[FinishedRun], Path], str]
    """Writes the pictures and returns the table."""


def _draw_editing(runs: Sequence[FinishedRun], out: Path) -> str:
    draw_edits(runs, out / "edits.png")
    draw_curves(runs, out / "curves.png")
    return edit_table(runs)


def _draw_generalization(runs: Sequence[FinishedRun], out: Path) -> str:
    draw_predictions(runs, out / "predictions.png")
    draw_curves(runs, out / "curves.png", metric="kendall_tau")
    zoos = {run.recipe: run.directory.read_config()["data"]["path"] for run in runs}
    draw_accuracies({recipe: WeightDataset(path) for recipe, path in zoos.items()}, out / "accuracies.png")
    return generalization_table(runs)


def _draw_reconstruction(runs: Sequence[FinishedRun], out: Path) -> str:
    draw_reconstructions(runs, out / "reconstructions.png")
    draw_curves(runs, out / "reconstruction_curves.png")
    return reconstruction_table(runs)


def _draw_classification(runs: Sequence[FinishedRun], out: Path) -> str:
    autoencoders = [run for run in runs if run.recipe.startswith("inr2array/")]
    classifiers = [run for run in runs if run.recipe.startswith("classify/")]
    draw_curves(classifiers, out / "curves.png", metric="accuracy")
    latents = next(run for run in classifiers if run.model == "inr2array-nft")
    draw_latents(WeightDataset(latents.config["data"]["path"]), out / "latents.png", split="test")
    return f"{classification_table(classifiers)}\n{_draw_reconstruction(autoencoders, out)}"


def _draw_symmetries(runs: Sequence[FinishedRun], out: Path) -> str:
    readers = [run for run in runs if run.recipe.startswith("classify/")]
    whole = [run for run in readers if run.config["run"]["training"]["limit"] is None]
    draw_curves(whole, out / "curves.png", metric="accuracy")
    draw_sizes([run for run in readers if run.recipe == "classify/mnist"], out / "sizes.png")
    edits = [run for run in runs if run.recipe.startswith("edit/")]
    arrays = [run for run in runs if run.recipe.startswith("inr2array/")]
    draw_curves(arrays + edits, out / "other_curves.png")
    return "\n".join([classification_table(whole), reconstruction_table(arrays), edit_table(edits)])


def _seeds(recipe: str, first: str, count: int) -> range:
    """The paper's main task gets several seeds."""
    return range(count if recipe == first else 1)


_EDITORS = ("nfn-np", "nfn-hnp", "nft")
_TABLE_2 = PaperTable(
    "Tables 2 and 4, Figure 4: error of edited INRs",
    tuple(
        Planned(recipe, model, seed)
        for recipe in editing.TASKS
        for seed in _seeds(recipe, "edit/mnist-dilate", 3)
        for model in _EDITORS
    ),
    _draw_editing,
)
_TABLE_3 = PaperTable(
    "Table 3: rank correlation of predicted and true test accuracies of CNNs",
    tuple(
        Planned(recipe, model, seed)
        for recipe in generalization.IMAGES
        for seed in range(2)
        for model in generalization.MODELS
    ),
    _draw_generalization,
)
_ENCODERS = ("nft", "nfn")
_TABLE_5 = PaperTable(
    "Table 5, Figure 3: error of Inr2Array's reconstructions",
    tuple(
        Planned(f"inr2array/{images}", encoder, seed)
        for images in SAMPLES
        for seed in _seeds(images, "mnist", 3)
        for encoder in _ENCODERS
    ),
    _draw_reconstruction,
)
_CLASSIFIERS = ("dws", "nfn-np", "nfn-hnp", "spatial-nfn", "nft")
_TABLE_1 = PaperTable(
    "Tables 1, 5 and 6, Figure 3: classes of INRs, from weights and from Inr2Array's latents",
    (
        *_TABLE_5.runs,
        *(
            Planned(f"classify/{images}", model, seed)
            for images in SAMPLES
            for seed in _seeds(images, "mnist", 3)
            for model in _CLASSIFIERS
        ),
        *(
            Planned(f"classify/{run.recipe.partition('/')[2]}", "latent", run.seed, encoder=run.model)
            for run in _TABLE_5.runs
        ),
    ),
    _draw_classification,
)


def _steps(steps: int, val_every: int) -> Fields:
    return (("training.steps", steps), ("training.val_every", val_every))


_FORMS: dict[str, Fields] = {
    "raw": (),
    "augmented": (("task.augment", True),),
    "canonical": (("canonical", "sine"),),
}
"""How a reader sees sine networks: as they are, with random signs and phases in training, or without them."""
_INPUT = (("model.standardize", True), ("model.fourier_scale", 0.3))
"""For models with Fourier features: with the paper's they stay near chance in so little time."""
_SLIM = (("model.channels", 32), ("model.hidden_channels", 64))
_READERS: tuple[tuple[str, Fields, Fields], ...] = (
    ("nft", (), (*_SLIM, *_INPUT, *_steps(800, 160))),
    ("nft", (("model.message_passing", True),), (*_SLIM, *_INPUT, *_steps(450, 90))),
    ("neuron-graph", (), (("model.channels", 32), ("optimizer.lr", 2e-3), *_steps(2150, 430))),
    ("nfn-hnp", (), (*_INPUT, *_steps(1100, 220))),
)
"""Models, changes, and what is theirs at `small`: about a hundred seconds of one core for each."""
_OTHERS: tuple[tuple[str, str, Fields], ...] = (
    ("inr2array/mnist", "nft", (("training.steps", 600),)),
    ("inr2array/mnist", "neuron-graph", (("training.steps", 1200),)),
    ("edit/mnist-dilate", "nft", (("training.steps", 300),)),
    ("edit/mnist-dilate", "neuron-graph", ()),
)
"""Recipes and models for the comparison in tasks other than classification, and what is theirs at `small`."""
_SIZES = (500, 1500, 4500)
"""Smaller training sets, for the plot of the best reader's accuracy against their size."""


def _read(images: str, reader: Any, form: str, seed: int = 0, size: int | None = None) -> Planned:
    model, changes, small = reader
    sizes = () if size is None else (("training.limit", size),)
    return Planned(f"classify/{images}", model, seed, changes=changes + _FORMS[form] + sizes, small=small)


_SYMMETRIES = PaperTable(
    "Beyond the paper: sine networks with and without their signs and phases",
    (
        *(
            _read(images, reader, form, seed)
            for images in SAMPLES
            for seed in _seeds(images, "mnist", 3)
            for reader in _READERS
            for form in _FORMS
        ),
        *(
            _read("mnist", reader, form, size=size)
            for size in _SIZES
            for reader in _READERS
            if reader[0] == "neuron-graph"
            for form in ("raw", "canonical")
        ),
        *(
            Planned(recipe, model, changes=_FORMS[form], small=small)
            for recipe, model, small in _OTHERS
            for form in ("raw", "canonical")
        ),
    ),
    _draw_symmetries,
)
TABLES: dict[str, PaperTable] = {
    "table1": _TABLE_1,
    "table2": _TABLE_2,
    "table3": _TABLE_3,
    "table4": _TABLE_2,
    "table5": _TABLE_5,
    "table6": _TABLE_1,
    "figure3": _TABLE_5,
    "figure4": _TABLE_2,
    "symmetries": _SYMMETRIES,
}
"""What can be reproduced."""
