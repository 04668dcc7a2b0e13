"""`nf models`, `nf classify`, `nf edit`, `nf predict`: trained models on networks of your own."""

from __future__ import annotations

import argparse
import os
from typing import Any

from neuralfunctionals.cli.command import Command, parse_size, print_table, say
from neuralfunctionals.errors import UserError

# Torch and all that needs it is imported inside the functions: help must come at once.


# nf models


def _models(arguments: Any) -> dict[str, Any]:
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


# What the commands on networks share.


def add_networks(parser: argparse.ArgumentParser, kind: str, *, sine: bool = True, optional: bool = False) -> None:
    """The model and the networks, as every command that applies a model to networks takes them."""
    add = parser.add_argument
    text = f"the directory of a finished run of {kind}, or a name of nf models"
    if optional:
        add("run", metavar="RUN", nargs="?", help=text)
    else:
        add("run", metavar="RUN", help=text)
    add("--weights", metavar="FILE", help="networks in a .pth, .pt, .ckpt, .safetensors or .npz file")
    add("--data", metavar="DIR", help="or a store of networks")
    if sine:
        add("--omega", type=float, help="frequency of the networks; defaults to what they say, or to the model's")
        add("--convention", metavar="NAME", help="SIREN convention of the networks, paper or dws; same default")
    add(
        "--layers",
        metavar="NAMES",
        help="layers from input to output, such as conv1,conv2,fc, if their order is not clear",
    )
    add("--module", metavar="PATH", help="the networks' class, such as my_package.MyNet, built without arguments")


def require_networks(arguments: Any) -> None:
    """Raises unless one source of networks was named."""
    if (arguments.weights is None) == (arguments.data is None):
        raise UserError("Expected networks: either --weights FILE or --data DIR.")


def open_pipeline(arguments: Any, method: str, recipes: str) -> Any:
    """The model, if it is one that can do this."""
    from neuralfunctionals.pipelines import Pipeline
    from neuralfunctionals.runs import open_run

    require_networks(arguments)
    opened = open_run(arguments.run)
    if not hasattr(opened.task, method):
        raise UserError(f"Expected a run of a recipe {recipes}/..., but {arguments.run} is one of {opened.run.recipe}.")
    return Pipeline(opened)


def _read_options(arguments: Any) -> dict[str, Any]:
    from neuralfunctionals.imports import import_object

    made = None
    if arguments.module is not None:
        try:
            made = import_object(arguments.module)()
        except TypeError as error:
            raise UserError(f"Expected {arguments.module} to be a class without arguments, but {error}.") from error
    names = None if arguments.layers is None else [name.strip() for name in arguments.layers.split(",")]
    form = {name: getattr(arguments, name, None) for name in ("omega", "convention")}
    return {"layers": names, "module": made, **form}


def read_networks(arguments: Any) -> tuple[Any, dict[str, Any]]:
    """The networks, and the frequency and convention asked for."""
    from neuralfunctionals.data import WeightDataset
    from neuralfunctionals.data.formats.given import read_given

    options = _read_options(arguments)
    layers, module = options.pop("layers"), options.pop("module")
    networks = arguments.weights if arguments.data is None else WeightDataset(arguments.data)
    return read_given(networks, layers=layers, module=module), options


def say_form(pipeline: Any, given: Any, options: dict[str, Any]) -> None:
    """Says what was assumed of sine networks, where their file does not tell."""
    if pipeline.task.form is None or given.form is not None:
        return
    if None in options.values():
        form = pipeline.task.form
        chosen = [getattr(form, name) if value is None else value for name, value in options.items()]
        say(
            f"{given.where} was taken to hold sine networks with {type(form)(*chosen)}, as the model was trained "
            "on. If they are others, say so with --omega and --convention."
        )


# nf classify


def _classify(arguments: Any) -> dict[str, Any]:
    pipeline = open_pipeline(arguments, "classify", "classify")
    networks, form = read_networks(arguments)
    answers = pipeline(networks, **form)
    answers = answers if isinstance(answers, list) else [answers]
    say_form(pipeline, networks, form)
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
        say(f"{len(rows) - shown} more networks: --json prints all of them.")


# nf edit


OPERATIONS = "blur, contrast, dilate, erode, gradient, invert, mirror"
"""The names of `data.OPERATIONS`, which help must not wait for."""


def _add_edit_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_networks(parser, "an edit/ recipe", optional=True)
    add("--operation", metavar="NAME", help=f"instead of RUN: render, edit the picture, fit again; {OPERATIONS}")
    add("--function", metavar="PATH", help="the same with your own function of byte images (B, H, W, C)")
    add(
        "--image-size",
        metavar="SIZE",
        help="size of the pictures for --operation and --function, such as 28 or 28x32 (28)",
    )
    add("--out", required=True, metavar="FILE", help="output file: a state_dict for one network, an .npz for many")
    add("--force", action="store_true", help="replace an existing file")


def _edit(arguments: Any) -> dict[str, Any]:
    from neuralfunctionals.data.formats.network_files import write_given

    chosen = [x for x in (arguments.run, arguments.operation, arguments.function) if x is not None]
    if len(chosen) != 1:
        raise UserError("Expected one way to edit: a RUN (or a name of nf models), --operation or --function.")
    if os.path.exists(arguments.out) and not arguments.force:
        raise UserError(f"{arguments.out} already exists. Name another file, or replace it with --force.")
    if arguments.run is None:
        return _edit_pictures(arguments)
    pipeline = open_pipeline(arguments, "edit", "edit")
    networks, form = read_networks(arguments)
    edited = pipeline(networks, **form)
    write_given(arguments.out, edited, form=pipeline.choose_form(networks, **form))
    say_form(pipeline, networks, form)
    return {
        "networks": _count(edited),
        "edit": getattr(pipeline.task, "edit_name", pipeline.name),
        "out": os.fspath(arguments.out),
    }


def _edit_pictures(arguments: Any) -> dict[str, Any]:
    """Renders, edits the pictures, and fits again."""
    from neuralfunctionals.data import OPERATIONS
    from neuralfunctionals.data.formats.network_files import write_given
    from neuralfunctionals.imports import import_object
    from neuralfunctionals.inr import SirenForm, refit

    if arguments.operation is not None and arguments.operation not in OPERATIONS:
        raise UserError(f"Expected --operation to be one of {', '.join(OPERATIONS)}, but got '{arguments.operation}'.")
    operation = OPERATIONS[arguments.operation] if arguments.operation else import_object(arguments.function)
    require_networks(arguments)
    networks, form = read_networks(arguments)
    height, width = parse_size(arguments.image_size) or (28, 28)
    chosen = SirenForm.choose(**form, known=networks.form, assumed=SirenForm(), where=networks.where)
    edited = refit(chosen.label(networks.features), operation, height=height, width=width)
    write_given(arguments.out, networks.restore(edited.features), form=chosen)
    return {
        "networks": len(networks.features),
        "edit": arguments.operation or arguments.function,
        "psnr_db_mean": round(float(edited.psnr_db.mean()), 2),
        "out": os.fspath(arguments.out),
    }


def _count(networks: Any) -> int:
    return 1 if isinstance(networks, dict) else len(networks)


# nf predict


def _predict(arguments: Any) -> dict[str, Any]:
    pipeline = open_pipeline(arguments, "predict", "generalization")
    networks, _ = read_networks(arguments)
    accuracies = pipeline(networks)
    accuracies = accuracies if isinstance(accuracies, list) else [accuracies]
    return {"networks": len(accuracies), "accuracies": [round(accuracy, 4) for accuracy in accuracies]}


COMMANDS = {
    "models": Command(
        "List the trained models that come with the package.",
        "nf models",
        lambda parser: None,
        _models,
        show=_show_models,
    ),
    "classify": Command(
        "Classify networks, with probabilities.",
        "nf classify digits-classify --weights siren.pth",
        lambda parser: add_networks(parser, "a classify/ recipe"),
        _classify,
        show=_show_classified,
    ),
    "edit": Command(
        "Edit networks with a trained editor, or by any operation on their pictures.",
        "nf edit digits-dilate --weights siren.pth --out dilated.pth",
        _add_edit_arguments,
        _edit,
    ),
    "predict": Command(
        "Predict the test accuracies of CNNs.",
        "nf predict cnn-accuracy --weights cnn.pth",
        lambda parser: add_networks(parser, "a generalization/ recipe", sine=False),
        _predict,
    ),
}
