"""The paper's tables as lists of runs: `TABLES`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from neuralfunctionals.config import SAMPLES, DataConfig, Run, with_values
from neuralfunctionals.registry import TASKS, find_run

Fields: TypeAlias = tuple[tuple[str, Any], ...]
"""Fields of a run, such as `model.channels`, and their values."""


@dataclass(frozen=True)
class Planned:
    """One run of a table."""

    recipe: str
    model: str
    seed: int = 0
    encoder: Planned | None = None
    """The autoencoder whose latents it is trained on."""
    changes: Fields = ()
    """Fields that differ from the recipe."""

    def at(self, scale: str, *, samples: bool = False, limit: int | None = None) -> Run:
        """The run at a scale, on full image sets or on embedded samples of them."""
        run = find_run(self.recipe, scale=scale, model=self.model)
        values = {**dict(self.changes), "seed": self.seed}
        if samples:
            values["data.images"] = find_run(self.recipe, scale="tiny", model=self.model).data.images
        if limit is not None:
            values["data.limit" if isinstance(run.data, DataConfig) else "data.limit_images"] = limit
        return with_values(run, values)


@dataclass(frozen=True)
class PaperTable:
    """The runs of a table."""

    summary: str
    runs: tuple[Planned, ...]


def _recipes(task: str) -> list[str]:
    return [f"{task}/{name}" for name in TASKS[task].recipes]


def _of_latents(autoencoder: Planned) -> Planned:
    """The classifier of an autoencoder's latents."""
    recipe = autoencoder.recipe.replace("inr2array/", "classify/")
    return Planned(recipe, "latent", autoencoder.seed, encoder=autoencoder)


_PROBES: Fields = (("model.probes", 64),)
"""Options of models that also run the networks, at 64 points."""
_MORE_PROBES: Fields = (("model.probes", 128),)
"""The same for editors, which need to know more about a picture than its class."""
_IMAGES: Fields = (("model.probes", 16),)
"""The same for CNNs, with 16 learned images."""
_RAW: Fields = (("canonical", "none"),)
"""Raw sine networks, with signs and phases."""


def _with_probes(recipe: str, models: tuple[str, ...], probes: Fields) -> tuple[Planned, ...]:
    """Runs of these models, and of `neuron-graph` with probes."""
    return (*(Planned(recipe, model) for model in models), Planned(recipe, "neuron-graph", changes=probes))


_EDITORS = ("nfn-np", "nfn-hnp", "nft", "nft-states", "neuron-graph")
_TABLE_2 = PaperTable(
    "Tables 2 and 4, Figure 4: error of edited INRs",
    tuple(planned for recipe in _recipes("edit") for planned in _with_probes(recipe, _EDITORS, _MORE_PROBES)),
)
_TABLE_3 = PaperTable(
    "Table 3: rank correlation of predicted and true test accuracies of CNNs",
    tuple(
        Planned(recipe, model, seed, changes=changes)
        for recipe in _recipes("generalization")
        for seed in range(2)
        for model, changes in (*((m, ()) for m in TASKS["generalization"].settings), ("neuron-graph", _IMAGES))
    ),
)
_ENCODERS = ("nfn", "nft", "nft-states", "neuron-graph")
_TABLE_5 = PaperTable(
    "Table 5, Figure 3: error of Inr2Array's reconstructions",
    tuple(planned for recipe in _recipes("inr2array") for planned in _with_probes(recipe, _ENCODERS, _PROBES)),
)
_CLASSIFIERS = ("dws", "nfn-np", "nfn-hnp", "spatial-nfn", "nft", "nft-states", "neuron-graph")
_SEEDED = ("nfn-hnp", "nft-states", "neuron-graph")
"""Classifiers with three seeds on MNIST."""
_TABLE_1 = PaperTable(
    "Tables 1, 5 and 6, Figure 3: classification of INRs by weights and by Inr2Array's latents",
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
        *(Planned(f"classify/{images}", model) for images in SAMPLES for model in ("probe-cnn", "render-cnn")),
        *(_of_latents(run) for run in _TABLE_5.runs),
    ),
)
_LONG = PaperTable(
    "The best models of each task, weights only; meant for the scale `long`",
    (
        *(Planned(f"classify/{images}", "neuron-graph") for images in SAMPLES),
        Planned("inr2array/mnist", "neuron-graph"),
        Planned("edit/mnist-dilate", "neuron-graph"),
        _of_latents(Planned("inr2array/mnist", "neuron-graph")),
    ),
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
"""The tables and figures that can be reproduced."""
