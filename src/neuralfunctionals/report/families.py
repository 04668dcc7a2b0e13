"""What a report says of each kind of task, by the first word of its recipes: `Family`, `FAMILIES`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from neuralfunctionals.report.finished import FinishedRun
from neuralfunctionals.report.pictures import (
    draw_classes,
    draw_curves,
    draw_edits,
    draw_predictions,
    draw_reconstructions,
)
from neuralfunctionals.report.tables import classification_table, edit_table, generalization_table, reconstruction_table


@dataclass(frozen=True)
class Picture:
    """A picture of runs, and what is to be seen on it."""

    title: str
    caption: str
    draw: Callable[[Sequence[FinishedRun], Path], None]
    needs: tuple[str, ...] = ()
    """Arrays among a run's samples without which there is nothing to draw."""


@dataclass(frozen=True)
class Family:
    """A kind of task in a report."""

    title: str
    question: str
    """What the task asks, in plain words."""
    metric: str
    metric_name: str
    higher_is_better: bool
    table: Callable[[Sequence[FinishedRun]], str]
    """The table of its runs, in Markdown."""
    pictures: tuple[Picture, ...]
    reference: Callable[[FinishedRun, str], tuple[str, float] | None] = lambda run, split: None
    """What a split's metric is without any model, with its name."""


def _no_edit(run: FinishedRun, split: str) -> tuple[str, float] | None:
    value = run.result[split].get("mse_no_edit")
    return None if value is None else ("no edit", value)


def _chance(run: FinishedRun, split: str) -> tuple[str, float] | None:
    classes = run.task.get("num_classes")
    return ("chance", 1 / classes) if isinstance(classes, int) and classes > 0 else None


def _curves(metric: str) -> Picture:
    return Picture(
        "How they learned",
        "On the validation networks, against steps (left) and seconds of training (right). The best step is kept.",
        partial(draw_curves, metric=metric),
    )


FAMILIES: dict[str, Family] = {
    "edit": Family(
        "Editing networks",
        "A small network can hold a picture: asked for a place, it answers with the brightness there. Can a model that "
        "sees nothing but the weights of such a network change them so that the network shows an edited picture, "
        "with thicker strokes for instance? The error is the mean squared difference (MSE) between what the edited "
        "network shows and the picture edited directly, with values from -1 to 1: lower is better. "
        "The row 'no edit' is the error of networks left as they are.",
        "mse",
        "MSE",
        False,
        edit_table,
        (
            Picture(
                "Before and after",
                "What test networks show: as they are (original), as they should (target), and edited by each model.",
                partial(draw_edits, num_samples=8),
                ("original", "target", "edited"),
            ),
            _curves("mse"),
        ),
        _no_edit,
    ),
    "inr2array": Family(
        "Networks as arrays",
        "Two networks that show the same picture can have entirely different weights. Can a model turn the weights "
        "into a short array of numbers that does not depend on the order of neurons, and from which the picture can be "
        "shown again? The error is the mean squared difference (MSE) between what the network shows and "
        "what is shown again from its array: lower is better.",
        "mse",
        "MSE",
        False,
        reconstruction_table,
        (
            Picture(
                "What is left after the array",
                "Test networks, the picture shown again from the array of each model, and the image behind it.",
                partial(draw_reconstructions, num_samples=8),
                ("original", "reconstruction", "image"),
            ),
            _curves("mse"),
        ),
    ),
    "classify": Family(
        "Telling what a network shows",
        "Can a model tell from the weights alone what a network shows, which digit for instance, without ever "
        "running it? The accuracy is the share of networks whose class it names: higher is better. The row 'chance' is "
        "what guessing gives.",
        "accuracy",
        "accuracy",
        True,
        classification_table,
        (
            Picture(
                "What they read",
                "Test networks and the classes that each model reads from their weights; wrong ones are crossed out. "
                "The pictures are for us: no model sees them.",
                draw_classes,
                ("image", "label", "predicted"),
            ),
            _curves("accuracy"),
        ),
        _chance,
    ),
    "generalization": Family(
        "Predicting accuracy",
        "Can a model tell from the weights of a trained image classifier how accurate it will be on new images, "
        "without showing it any? Kendall's tau compares the predicted order of the classifiers with the true one: 1 if "
        "all pairs are in the right order, 0 for chance.",
        "kendall_tau",
        "tau",
        True,
        generalization_table,
        (
            Picture(
                "Predicted and true",
                "Each point is a test network; on the dotted line the prediction is exact.",
                draw_predictions,
                ("predicted", "true"),
            ),
            _curves("kendall_tau"),
        ),
    ),
}
"""A new kind of task is one more entry."""


def tell_apart(runs: Sequence[FinishedRun]) -> list[FinishedRun]:
    """The runs, marked where it is needed so that only those which differ in nothing but their seed share a name."""
    marked = list(runs)
    for describe in (lambda run: str(run.scale), lambda run: ""):
        settings: dict[tuple[str, str], list[object]] = {}
        for run in marked:
            known = settings.setdefault((run.recipe, run.model), [])
            known += [run.setting] if run.setting not in known else []
        marked = [
            replace(run, mark=f"{run.mark} {describe(run) or '#' + str(known.index(run.setting) + 1)}")
            if len(known := settings[run.recipe, run.model]) > 1
            else run
            for run in marked
        ]
    return marked
