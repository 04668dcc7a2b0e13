"""Tables of finished runs as Markdown, the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from neuralfunctionals.report.finished import FinishedRun, group

Results = list[dict[str, Any]]
"""Those of the seeds of one model."""

PAPER_EDITS: dict[str, dict[str, tuple[float, float]]] = {
    "edit/mnist-erode": {"nfn-hnp": (0.0217, 0.0225), "nfn-np": (0.0212, 0.0223), "nft": (0.0195, 0.0194)},
    "edit/mnist-dilate": {"nfn-hnp": (0.0575, 0.0656), "nfn-np": (0.0671, 0.0693), "nft": (0.0473, 0.0510)},
    "edit/mnist-gradient": {"nfn-hnp": (0.0536, 0.0552), "nfn-np": (0.0547, 0.0566), "nft": (0.0474, 0.0484)},
    "edit/fashion-gradient": {"nfn-hnp": (0.0851, 0.0859), "nfn-np": (0.0853, 0.0870), "nft": (0.0795, 0.0800)},
    "edit/cifar10-contrast": {"nfn-hnp": (0.0191, 0.0204), "nfn-np": (0.0185, 0.0203), "nft": (0.0192, 0.0200)},
}
"""Train and test MSE of the paper's Table 4 (its Table 2 has other test numbers for NFN-HNP)."""

PAPER_TAU: dict[str, dict[str, tuple[float, float]]] = {
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

PAPER_RECONSTRUCTIONS: dict[str, dict[str, tuple[float, float]]] = {
    "inr2array/mnist": {"nfn": (0.046, 0.001), "nft": (0.027, 0.003)},
    "inr2array/fashion": {"nfn": (0.085, 0.006), "nft": (0.070, 0.006)},
    "inr2array/cifar10": {"nfn": (0.117, 0.008), "nft": (0.036, 0.006)},
}
"""Test MSE of the paper's Table 5 and its standard error."""

_PAPER_CLASSES = {
    "classify/mnist": {"nfn": (96.2, 92.9), "spatial-nfn": (95.3, 92.9), "dws": (None, 85.7)},
    "classify/fashion": {"nfn": (84.1, 75.6), "spatial-nfn": (76.4, 70.8), "dws": (None, 65.5)},
    "classify/cifar10": {"nfn": (61.0, 46.6), "spatial-nfn": (52.3, 45.6)},
}
_PAPER_LATENTS = {
    "classify/mnist": {"inr2array-nfn": (100.0, 94.6), "inr2array-nft": (100.0, 98.5)},
    "classify/fashion": {"inr2array-nfn": (92.8, 76.7), "inr2array-nft": (97.6, 79.3)},
    "classify/cifar10": {"inr2array-nfn": (98.5, 45.4), "inr2array-nft": (100.0, 63.4)},
}
PAPER_CLASSES: dict[str, dict[str, tuple[float | None, float]]] = {
    recipe: {**models, "nfn-np": models["nfn"], "nfn-hnp": models["nfn"], **_PAPER_LATENTS[recipe]}
    for recipe, models in _PAPER_CLASSES.items()
}
"""Train and test accuracy in percent of the paper's Table 6; for NFN it has the better of NP and HNP."""


def edit_table(runs: Sequence[FinishedRun]) -> str:
    """MSE of each task and model: train and test, spread over seeds, and the paper's."""
    rows, last = [], None
    for recipe, model, results in _models(runs):
        untouched = [f"{results[0][split]['mse_no_edit']:.4f}" for split in ("train", "test")]
        if (recipe, untouched) != last:  # models of one recipe may have been measured on different networks
            last = recipe, untouched
            rows.append({"task": recipe, "model": "no edit", "train MSE": untouched[0], "test MSE": untouched[1]})
        published = PAPER_EDITS.get(recipe, {}).get(model, (None, None))
        rows.append(
            {
                **_facts(recipe, model, results),
                "train MSE": _spread(results, "train", "mse"),
                "test MSE": _spread(results, "test", "mse"),
                "paper: train": _number(published[0]),
                "paper: test": _number(published[1]),
                "training, s": _seconds(results),
            }
        )
    return _markdown(rows)


def generalization_table(runs: Sequence[FinishedRun]) -> str:
    """How well each model predicts accuracies: spread over seeds, and the paper's numbers."""
    return _markdown(
        [
            {
                **_facts(recipe, model, results),
                "train tau": _spread(results, "train", "kendall_tau"),
                "test tau": _spread(results, "test", "kendall_tau"),
                "paper: test tau": _with_error(PAPER_TAU.get(recipe, {}).get(model)),
                "test R2": _spread(results, "test", "r2"),
                "test L1": _spread(results, "test", "l1"),
                "training, s": _seconds(results),
            }
            for recipe, model, results in _models(runs)
        ]
    )


def reconstruction_table(runs: Sequence[FinishedRun]) -> str:
    """MSE of what Inr2Array's decoded networks show, with each encoder: spread over seeds, and the paper's numbers."""
    return _markdown(
        [
            {
                **_facts(recipe, model, results),
                "train MSE": _spread(results, "train", "mse"),
                "test MSE": _spread(results, "test", "mse"),
                "paper: test": _with_error(PAPER_RECONSTRUCTIONS.get(recipe, {}).get(model)),
                "training, s": _seconds(results),
            }
            for recipe, model, results in _models(runs)
        ]
    )


def classification_table(runs: Sequence[FinishedRun]) -> str:
    """Accuracy in percent of each classifier: train and test, spread over seeds, and the paper's."""
    rows = []
    for recipe, model, results in _models(runs):
        published = PAPER_CLASSES.get(recipe, {}).get(model, (None, None))
        rows.append(
            {
                **_facts(recipe, model, results),
                "train, %": _spread(results, "train", "accuracy", percent=True),
                "test, %": _spread(results, "test", "accuracy", percent=True),
                "paper: train": _number(published[0], digits=1),
                "paper: test": _number(published[1], digits=1),
                "training, s": _seconds(results),
            }
        )
    return _markdown(rows)


def _models(runs: Sequence[FinishedRun]) -> Iterator[tuple[str, str, Results]]:
    """Recipe, model and results: of each recipe first the models that read weights only, in the order they come."""
    for recipe, of_recipe in group(runs, by="recipe").items():
        leagues = group(of_recipe, by="league")
        for league in sorted(leagues, reverse=True):
            for model, same in group(leagues[league], by="model").items():
                yield recipe, model, [run.result for run in same]


def _facts(recipe: str, model: str, results: Results) -> dict[str, str]:
    return {
        "task": recipe,
        "model": model,
        "league": results[0].get("league", "weights only"),
        "parameters": f"{results[0]['parameters']:,}",
        "seeds": str(len(results)),
    }


def _seconds(results: Results) -> str:
    return f"{mean(result['training_seconds'] for result in results):.0f}"


def _spread(results: Results, split: str, metric: str, *, percent: bool = False) -> str:
    """Mean and, of several seeds, the standard error."""
    values = [result[split][metric] * (100 if percent else 1) for result in results]
    digits = 1 if percent else 4
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{mean(values):.{digits}f} ± {stdev(values) / len(values) ** 0.5:.{digits}f}"


def _number(value: float | None, *, digits: int = 4) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _with_error(published: tuple[float, float] | None) -> str:
    return "" if published is None else f"{published[0]:.3f} ± {published[1]:.3f}"


def _markdown(rows: Sequence[Mapping[str, str]]) -> str:
    """Rows of named cells; a cell that a row does not have stays empty."""
    names = list(rows[-1])
    lines = [names, ["---"] * len(names), *([row.get(name, "") for name in names] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
