"""`nf models`, `nf classify`, `nf edit`, `nf predict`: apply trained models to your own networks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuralfunctionals.cli.command import Add, Command, parse_size, print_table, say
from neuralfunctionals.errors import UserError, require_choice

if TYPE_CHECKING:
    from neuralfunctionals.data.formats.given import GivenNetworks
    from neuralfunctionals.inr import SirenForm

# Torch and everything that needs it is imported inside the functions, so that --help is fast.


# nf models


def _models() -> dict[str, Any]:
    from neuralfunctionals.files.strict_json import read_json
    from neuralfunctionals.shipped import SHIPPED, find_shipped

    rows = []
    for name in SHIPPED:
        result = read_json(find_shipped(name) / "result.json")
        metric, value = next((k, v) for k, v in result["test"].items() if k != "networks")
        rows.append({"name": name, "recipe": result["recipe"], "league": result["league"], metric: value})
    return {"models": rows}


def _show_models(result: dict[str, Any]) -> None:
    rows = []
    for row in result["models"]:
        *known, (metric, value) = row.items()
        rows.append([*(text for _, text in known), f"{metric} {value:.4g}"])
    print_table(["model", "trained by", "league", "on test networks"], rows)


# Shared by the commands that take networks.


def add_networks(add: Add, kind: str, *, sine: bool = True, optional: bool = False) -> None:
    """Adds the arguments of every command that applies a model to networks."""
    text = f"the directory of a finished run of {kind}, or a name of nf models"
    add("run", metavar="RUN", nargs="?" if optional else None, help=text)
    add("--weights", metavar="FILE", help="networks in a .pth, .pt, .ckpt, .safetensors or .npz file")
    add("--data", metavar="DIR", help="or a store of networks")
    if sine:
        add("--omega", type=float, help="frequency of the networks; defaults to the one they record, or to the model's")
        add("--convention", metavar="NAME", help="SIREN convention of the networks, paper or dws; same default")
    add(
        "--layers",
        metavar="NAMES",
        help="names of the layers from input to output, such as conv1,conv2,fc, if their order is ambiguous",
    )
    add("--module", metavar="PATH", help="the networks' class, such as my_package.MyNet, built without arguments")


def read_networks(
    *,
    weights: str | None,
    data: str | None,
    layers: str | None,
    module: str | None,
    omega: float | None = None,
    convention: str | None = None,
) -> tuple[Any, dict[str, Any]]:
    """Reads the networks; also returns the requested frequency and convention."""
    if (weights is None) == (data is None):
        raise UserError("Expected networks: either --weights FILE or --data DIR.")
    from neuralfunctionals.data import WeightDataset
    from neuralfunctionals.data.formats.given import read_given
    from neuralfunctionals.imports import call_object

    made = None if module is None else call_object(module)
    networks = read_given(weights if data is None else WeightDataset(data), layers=layers, module=made)
    return networks, {"omega": omega, "convention": convention}


@contextmanager
def apply_model(run: str, method: str, recipes: str, **given: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Applies a model to the given networks, and finally reports the form it assumed for them.

    Args:
        run: The model.
        method: The method of its task to call.
        recipes: The recipes whose tasks have this method.
        given: See `read_networks`.

    Yields:
        The model's task, its results for one network or several, and the assumed form of sine networks.
    """
    from neuralfunctionals.pipelines import Pipeline
    from neuralfunctionals.runs import open_run

    opened = open_run(run)
    if not hasattr(opened.task, method):
        raise UserError(f"Expected a run of a recipe {recipes}/..., but {run} is a run of {opened.run.recipe}.")
    pipeline = Pipeline(opened)
    networks, asked = read_networks(**given)
    form = pipeline.choose_form(networks, **asked)
    yield opened.task, pipeline(networks, **asked), form
    if form is not None:
        _say_assumed(networks, form, asked, why=", which the model was trained on")


def _say_assumed(networks: GivenNetworks, form: SirenForm, asked: dict[str, Any], *, why: str = "") -> None:
    """Reports which parts of a form are neither recorded by the networks nor requested."""
    spec = networks.features.spec
    assumed = [name for name, value in asked.items() if value is None and getattr(spec, name) is None]
    if assumed:
        values = {"omega": f"{form.omega:g}", "convention": form.convention}
        parts = " and ".join(f"{name} {values[name]}" for name in assumed)
        options = " and ".join(f"--{name}" for name in assumed)
        say(f"{networks.where} does not record its SIREN form; assuming {parts}{why}. Override it with {options}.")


# nf classify


def _classify(run: str, **given: Any) -> dict[str, Any]:
    with apply_model(run, "classify", "classify", **given) as (_, found, _):
        answers = found if isinstance(found, list) else [found]
    return {
        "networks": len(answers),
        "labels": [answer.label for answer in answers],
        "probabilities": [[round(p, 6) for p in answer.probabilities] for answer in answers],
    }


def _show_classified(result: dict[str, Any]) -> None:
    shown = 20
    rows = [
        [str(number), str(label), f"{max(probabilities):.1%}"]
        for number, (label, probabilities) in enumerate(zip(result["labels"], result["probabilities"], strict=True))
    ]
    print_table(["network", "class", "sure"], rows[:shown])
    if len(rows) > shown:
        say(f"{len(rows) - shown} more networks; --json prints all of them.")


# nf edit


OPERATIONS = "blur, contrast, dilate, erode, gradient, invert, mirror"
"""The names of `data.OPERATIONS`, repeated here so that --help is fast."""


def _add_edit_arguments(add: Add) -> None:
    add_networks(add, "an edit/ recipe", optional=True)
    add("--operation", metavar="NAME", help=f"instead of RUN: render, edit the picture, fit again; one of {OPERATIONS}")
    add("--function", metavar="PATH", help="the same with your own function on byte images (B, H, W, C)")
    add(
        "--image-size",
        metavar="SIZE",
        help="size of the pictures for --operation and --function, such as 28 or 28x32 (28)",
    )
    add("--out", required=True, metavar="FILE", help="output file: a state_dict for one network, an .npz for many")
    add("--force", action="store_true", help="replace an existing file")


def _edit(
    run: str | None,
    *,
    operation: str | None,
    function: str | None,
    image_size: str | None,
    out: str,
    force: bool,
    **given: Any,
) -> dict[str, Any]:
    from neuralfunctionals.data.formats.network_files import write_given

    if sum(way is not None for way in (run, operation, function)) != 1:
        raise UserError("Expected one way to edit: a RUN (or a name of nf models), --operation or --function.")
    if os.path.exists(out) and not force:
        raise UserError(f"{out} already exists. Choose another file, or replace it with --force.")
    if run in OPERATIONS.split(", "):
        raise UserError(f"Expected a RUN, but got '{run}'. Did you mean --operation {run}?")
    if run is None:
        return _edit_pictures(operation, function, parse_size(image_size) or (28, 28), out, **given)
    with apply_model(run, "edit", "edit", **given) as (task, edited, form):
        write_given(out, edited, form=form)
    count = 1 if isinstance(edited, dict) else len(edited)
    return {"networks": count, "edit": getattr(task, "edit_name", Path(run).name), "out": out}


def _edit_pictures(
    operation: str | None, function: str | None, size: tuple[int, int], out: str, **given: Any
) -> dict[str, Any]:
    """Renders the networks, edits the pictures, and fits again."""
    from neuralfunctionals.data import OPERATIONS
    from neuralfunctionals.data.formats.network_files import write_given
    from neuralfunctionals.imports import call_object
    from neuralfunctionals.inr import SirenForm, refit

    if operation is not None:
        require_choice("--operation to be", operation, OPERATIONS)
    change = OPERATIONS[operation] if operation else partial(call_object, str(function))
    networks, asked = read_networks(**given)
    spec = networks.features.spec
    chosen = SirenForm.choose(**asked, known=spec, assumed=SirenForm(), where=networks.where)
    edited = refit(chosen.label(networks.features), change, height=size[0], width=size[1])
    write_given(out, networks.restore(edited.features), form=chosen)
    _say_assumed(networks, chosen, asked)
    psnr_db = round(float(edited.psnr_db.mean()), 2)
    return {"networks": len(networks.features), "edit": operation or function, "psnr_db_mean": psnr_db, "out": out}


# nf predict


def _predict(run: str, **given: Any) -> dict[str, Any]:
    with apply_model(run, "predict", "generalization", **given) as (_, found, _):
        accuracies = found if isinstance(found, list) else [found]
    return {"networks": len(accuracies), "accuracies": [round(accuracy, 4) for accuracy in accuracies]}


COMMANDS = {
    "models": Command(
        "List the trained models that come with the package.",
        "nf models",
        lambda add: None,
        _models,
        show=_show_models,
    ),
    "classify": Command(
        "Classify networks, with probabilities.",
        "nf classify digits-classify --weights siren.pth",
        lambda add: add_networks(add, "a classify/ recipe"),
        _classify,
        show=_show_classified,
    ),
    "edit": Command(
        "Edit networks with a trained model, or by any operation on their pictures.",
        "nf edit digits-dilate --weights siren.pth --out dilated.pth",
        _add_edit_arguments,
        _edit,
    ),
    "predict": Command(
        "Predict the test accuracies of CNNs.",
        "nf predict cnn-accuracy --weights cnn.pth",
        lambda add: add_networks(add, "a generalization/ recipe", sine=False),
        _predict,
    ),
}
