"""The paper's tables as lists of runs, and how each is drawn: `TABLES`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from neuralfunctionals.data import WeightDataset
from neuralfunctionals.recipes import editing, generalization
from neuralfunctionals.recipes.catalog import find_run
from neuralfunctionals.recipes.run import SAMPLES, DataConfig, Run, with_values
from neuralfunctionals.report import (
    classification_table,
    draw_accuracies,
    draw_curves,
    draw_edits,
    draw_latents,
    draw_predictions,
    draw_reconstructions,
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
    encoder: Planned | None = None
    """The autoencoder whose latents it reads."""
    changes: Fields = ()
    """What is not as in the recipe."""

    def at(self, scale: str, *, samples: bool = False, limit: int | None = None) -> Run:
        """The run at a scale, from full image sets or from embedded samples of them."""
        run = find_run(self.recipe, scale=scale, model=self.model)
        run = with_values(run, {**dict(self.changes), "seed": self.seed})
        if samples:
            run = with_values(run, {"data.images": find_run(self.recipe, scale="tiny", model=self.model).data.images})
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
    latents = next(run for run in classifiers if run.model.startswith("inr2array-"))
    draw_latents(WeightDataset(latents.config["data"]["path"]), out / "latents.png", split="test")
    return f"{classification_table(classifiers)}\n{_draw_reconstruction(autoencoders, out)}"


def _draw_all(runs: Sequence[FinishedRun], out: Path) -> str:
    parts = {"classify": _draw_classification, "inr2array": _draw_reconstruction, "edit": _draw_editing}
    families = {family: [run for run in runs if run.family == family] for family in parts}
    if families["classify"]:  # its picture shows latents, which the autoencoders make
        families["classify"] += families.pop("inr2array")
    return "\n".join(parts[family](chosen, out) for family, chosen in families.items() if chosen)


def _of_latents(autoencoder: Planned) -> Planned:
    """The classifier of an autoencoder's latents."""
    recipe = autoencoder.recipe.replace("inr2array/", "classify/")
    return Planned(recipe, "latent", autoencoder.seed, encoder=autoencoder)


_PROBES: Fields = (("model.probes", 64),)
"""Models that also ask the function, at so many points."""
_IMAGES: Fields = (("model.probes", 16),)
"""The same for CNNs, with learned images."""
_RAW: Fields = (("canonical", "none"),)
"""Sine networks as they are, signs and phases included."""
_EDITORS = ("nfn-np", "nfn-hnp", "nft", "nft-states", "neuron-graph")
_TABLE_2 = PaperTable(
    "Tables 2 and 4, Figure 4: error of edited INRs",
    tuple(
        planned
        for recipe in editing.TASKS
        for planned in (
            *(Planned(recipe, model) for model in _EDITORS),
            Planned(recipe, "neuron-graph", changes=_PROBES),
        )
    ),
    _draw_editing,
)
_TABLE_3 = PaperTable(
    "Table 3: rank correlation of predicted and true test accuracies of CNNs",
    tuple(
        Planned(recipe, model, seed, changes=changes)
        for recipe in generalization.IMAGES
        for seed in range(2)
        for model, changes in (*((model, ()) for model in generalization.MODELS), ("neuron-graph", _IMAGES))
    ),
    _draw_generalization,
)
_ENCODERS = ("nfn", "nft", "nft-states", "neuron-graph")
_TABLE_5 = PaperTable(
    "Table 5, Figure 3: error of Inr2Array's reconstructions",
    tuple(
        planned
        for images in SAMPLES
        for planned in (
            *(Planned(f"inr2array/{images}", encoder) for encoder in _ENCODERS),
            Planned(f"inr2array/{images}", "neuron-graph", changes=_PROBES),
        )
    ),
    _draw_reconstruction,
)
_CLASSIFIERS = ("dws", "nfn-np", "nfn-hnp", "spatial-nfn", "nft", "nft-states", "neuron-graph")
_SEEDED = ("nfn-hnp", "nft-states", "neuron-graph")
"""Classifiers that get three seeds on MNIST."""
_TABLE_1 = PaperTable(
    "Tables 1, 5 and 6, Figure 3: classes of INRs, from weights and from Inr2Array's latents",
    (
        *_TABLE_5.runs,
        *(
            Planned(f"classify/{images}", model, seed)
            for images in SAMPLES
            for model in _CLASSIFIERS
            for seed in range(3 if images == "mnist" and model in _SEEDED else 1)
        ),
        *(Planned("classify/mnist", model, changes=_RAW) for model in ("nft", "nfn-hnp")),
        *(Planned(f"classify/{images}", "neuron-graph", changes=_PROBES) for images in SAMPLES),
        *(Planned(f"classify/{images}", "render-cnn") for images in SAMPLES),
        *(_of_latents(run) for run in _TABLE_5.runs),
    ),
    _draw_classification,
)
_LONG = PaperTable(
    "The best models of each task, weights only; meant for the scale `long`",
    (
        *(Planned(f"classify/{images}", "neuron-graph") for images in SAMPLES),
        Planned("inr2array/mnist", "neuron-graph"),
        Planned("edit/mnist-dilate", "neuron-graph"),
        _of_latents(Planned("inr2array/mnist", "neuron-graph")),
    ),
    _draw_all,
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
    "best": _LONG,
}
"""What can be reproduced."""
