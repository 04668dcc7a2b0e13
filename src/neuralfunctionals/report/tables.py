"""Tables of finished runs, the paper's numbers beside ours: `edit_table`, `generalization_table`."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, stdev

from neuralfunctionals.report.finished import FinishedRun, group

PAPER_EDITS: dict[str, dict[str, tuple[float, float]]] = {
    "edit/mnist-erode": {"nfn-hnp": (0.0217, 0.0225), "nfn-np": (0.0212, 0.0223), "nft": (0.0195, 0.0194)},
    "edit/mnist-dilate": {"nfn-hnp": (0.0575, 0.0656), "nfn-np": (0.0671, 0.0693), "nft": (0.0473, 0.0510)},
    "edit/mnist-gradient": {"nfn-hnp": (0.0536, 0.0552), "nfn-np": (0.0547, 0.0566), "nft": (0.0474, 0.0484)},
    "edit/fashion-gradient": {"nfn-hnp": (0.0851, 0.0859), "nfn-np": (0.0853, 0.0870), "nft": (0.0795, 0.0800)},
    "edit/cifar10-contrast": {"nfn-hnp": (0.0191, 0.0204), "nfn-np": (0.0185, 0.0203), "nft": (0.0192, 0.0200)},
}
"""Train and test MSE of the paper's Table 4 (its Table 2 has other test numbers for NFN-HNP)."""


def edit_table(runs: Sequence[FinishedRun]) -> str:
    """MSE of each task and model as a Markdown table: train and test, spread over seeds, and the paper's."""
    lines = [
        "| task | model | parameters | seeds | train MSE | test MSE | paper: train | paper: test | training, s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for recipe, of_recipe in group(runs, by="recipe").items():
        first = of_recipe[0].result
        no_edit = [f"{first[split]['mse_no_edit']:.4f}" for split in ("train", "test")]
        lines.append(f"| {recipe} | no edit | | | {no_edit[0]} | {no_edit[1]} | | | |")
        for model, same in group(of_recipe, by="model").items():
            results = [run.result for run in same]
            cells = [_spread([result[split]["mse"] for result in results]) for split in ("train", "test")]
            published = [f"{x:.4f}" for x in PAPER_EDITS.get(recipe, {}).get(model, ())] or ["", ""]
            seconds = f"{mean(result['training_seconds'] for result in results):.0f}"
            facts = [recipe, model, f"{results[0]['parameters']:,}", str(len(results)), *cells, *published, seconds]
            lines.append(f"| {' | '.join(facts)} |")
    return "\n".join(lines) + "\n"


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


def generalization_table(runs: Sequence[FinishedRun]) -> str:
    """How well each model predicts accuracies, as a Markdown table: spread over seeds, and the paper's numbers."""
    lines = [
        "| task | model | parameters | seeds | train tau | test tau | paper: test tau | test R2 | test L1 | seconds |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for recipe, of_recipe in group(runs, by="recipe").items():
        for model, same in group(of_recipe, by="model").items():
            results = [run.result for run in same]
            cells = [_spread([result["train"]["kendall_tau"] for result in results])]
            cells.append(_spread([result["test"]["kendall_tau"] for result in results]))
            published = PAPER_TAU.get(recipe, {}).get(model)
            cells.append("" if published is None else f"{published[0]:.3f} ± {published[1]:.3f}")
            cells += [_spread([result["test"][name] for result in results]) for name in ("r2", "l1")]
            seconds = f"{mean(result['training_seconds'] for result in results):.0f}"
            facts = [recipe, model, f"{results[0]['parameters']:,}", str(len(results)), *cells, seconds]
            lines.append(f"| {' | '.join(facts)} |")
    return "\n".join(lines) + "\n"


def _spread(values: Sequence[float]) -> str:
    """Mean and, of several, the standard error."""
    if len(values) == 1:
        return f"{values[0]:.4f}"
    return f"{mean(values):.4f} ± {stdev(values) / len(values) ** 0.5:.4f}"
