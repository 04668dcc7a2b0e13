"""`nf recipes`, `nf train`, `nf evaluate`, `nf reproduce`: train and evaluate models."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

from neuralfunctionals.cli.bars import fitting_bar, plain_bar, zoo_bar
from neuralfunctionals.cli.command import Add, Command, Run, print_table
from neuralfunctionals.cli.mistakes import plain_message
from neuralfunctionals.errors import UserError, nearest

# Torch and everything that needs it is imported inside the functions, so that --help is fast.


# nf recipes


def _recipes() -> dict[str, Any]:
    from neuralfunctionals.registry import RECIPES

    return {
        name: {
            "summary": recipe.summary,
            "reproduces": recipe.reproduces,
            "models": [*recipe.models, *recipe.latent_models],
            "cost": dict(recipe.of.cost),
        }
        for name, recipe in RECIPES.items()
    }


def _making_bar(recipe: str) -> Any:
    """A bar for the networks that a recipe trains on."""
    from neuralfunctionals.config import ZooConfig
    from neuralfunctionals.registry import find_task

    return zoo_bar() if recipe and find_task(recipe).data is ZooConfig else fitting_bar()


# nf train

_PARTS = ("task", "data", "optimizer", "training")
"""Fields of a run that have fields themselves."""


def _add_train_arguments(add: Add) -> None:
    add("recipe", help="what to train, such as edit/mnist-dilate (see nf recipes)")
    add("--out", metavar="RUN", help="run directory (runs/NAME); an unfinished run is resumed")
    add("--images", metavar="NAME|PATH", help="train on networks fitted to these images, made once and cached")
    add("--devices", type=int, metavar="N", help="train on N devices of each machine in parallel")
    add("--nodes", type=int, metavar="M", help="train on M machines in parallel")
    add("--resume", action="store_true", help="require a run to resume; if it is finished, show its result")
    add("--force", action="store_true", help="delete an earlier run in that directory first")


def _bind_train(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[list[str], Run]:
    """Adds an option for each field of the chosen recipe, and removes the words that chose it."""
    chooser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for option in ("--scale", "--model", "--data"):  # fields also start with --model and --data
        chooser.add_argument(option)
    try:
        chosen, rest = chooser.parse_known_args(list(words))
    except argparse.ArgumentError as error:
        raise UserError(plain_message(str(error), parser)) from error
    parser.description = (
        f"{parser.description}\n\n"
        "  --scale NAME     tiny, small, long or paper (small)\n"
        "  --model NAME     model (see nf recipes), or your own class, such as my_package.MyModel\n"
        "  --data DIR       a store of networks; by default they are made once and cached\n"
        "  --FIELD VALUE    any field of the recipe: nf train RECIPE --help lists them"
    )
    recipe = next((word for word in rest if not word.startswith("-")), None)
    if recipe is None:
        return rest, dict  # the parser reports that the recipe is missing
    from neuralfunctionals.registry import find_run

    run = find_run(recipe, scale=chosen.scale or "small", model=chosen.model, data=chosen.data)
    usual = _add_fields(parser, run)
    _require_known(parser, rest)
    return rest, partial(_train, run, usual, chosen.data)


def _add_fields(parser: Any, run: Any) -> dict[str, Any]:
    """Adds an option for each field of a run, with its value as default and its docstring as help.

    Returns:
        The default options of the model.
    """
    import jsonargparse

    from neuralfunctionals.config import Canonical, DataConfig
    from neuralfunctionals.registry import find_task, model_class

    jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)
    for name in _PARTS:
        parser.add_argument(f"--{name}", type=type(getattr(run, name)), default=getattr(run, name))
    parser.add_argument("--seed", type=int, default=run.seed, help="random seed")
    task = find_task(run.recipe)
    if run.model_name not in task.latent_models and task.data is DataConfig:
        text = "none: train on raw sine networks; sine: remove signs and phases first"
        parser.add_argument("--canonical", type=Canonical, default=run.canonical, help=text)
    kind, fixed = model_class(run.model_name, task.output)
    chosen_already = {"spec", "canonical", "omega", "image_size", "in_channels", "out_channels", "pooling", *fixed}
    if run.model_name in task.latent_models:
        chosen_already |= {"num_latents", "latent_channels", "num_classes"}
    chosen_already -= run.model.keys()
    parser.add_class_arguments(kind, "model", skip=chosen_already, instantiate=False)
    parser.set_defaults({f"model.{name}": value for name, value in run.model.items()})
    return vars(getattr(parser.get_defaults(), "model", jsonargparse.Namespace()))


def _require_known(parser: Any, words: Sequence[str]) -> None:
    """Raises an error for an unknown field, with the name of the closest one."""
    known = [option for action in parser._actions for option in action.option_strings]
    for word in words:
        option = word.partition("=")[0]
        if option.startswith("--") and option not in known:
            hint = nearest(option, known, cutoff=0.7) or " nf train RECIPE --help lists them all."
            raise UserError(f"Expected a field of the recipe, but got {option}.{hint}")


def _train(
    run: Any, usual: dict[str, Any], store: str | None, *, out: str | None, resume: bool, force: bool, **fields: Any
) -> dict[str, Any]:
    from neuralfunctionals.config import with_values
    from neuralfunctionals.runs import execute

    values = {name: type(getattr(run, name))(**vars(fields[name])) for name in _PARTS}
    values |= {name: fields[name] for name in ("seed", "canonical") if name in fields}
    options = vars(fields["model"]) if usual else {}
    values |= {f"model.{name}": value for name, value in options.items() if value != usual[name]}
    short = {"data.images": fields["images"], "training.devices": fields["devices"], "training.nodes": fields["nodes"]}
    run = with_values(run, values | {name: value for name, value in short.items() if value is not None})
    out = out or os.path.join("runs", run.name)
    with _making_bar(run.recipe) as fitting:
        result = execute(run, out, data=store, resume=resume, force=force, fitting=fitting)
    return {**result, "out": out}


# nf evaluate


def _add_evaluate_arguments(add: Add) -> None:
    add("run", metavar="RUN", help="the directory of a finished run, or a name of nf models")
    add("--split", default="test", metavar="NAME", help="train, val or test (test)")
    add("--data", metavar="DIR", help="another store of networks; defaults to the store of the run")


def _evaluate(run: str, split: str, data: str | None) -> dict[str, Any]:
    from neuralfunctionals.data import WeightDataset
    from neuralfunctionals.runs import measure, open_run

    opened = open_run(run)
    metrics = measure(opened.task, WeightDataset(opened.find_data(data)), split)
    return {"split": split, **metrics, "run": run}


# nf reproduce


def _add_reproduce_arguments(add: Add) -> None:
    text = "table1, table6 (classes), table2, table4, figure4 (edits), table3 (CNNs), table5, figure3, or best"
    add("table", help=text)
    add("--scale", default="small", metavar="NAME", help="tiny, small, long or paper (small)")
    add(
        "--out",
        metavar="DIR",
        help="directory of its runs, table and pictures (runs/NAME); an unfinished table is resumed",
    )
    add("--samples", action="store_true", help="train on the embedded samples instead of the full image sets")
    add("--limit", type=int, metavar="N", help="use N images of each set")
    add("--data", action="append", metavar="RECIPE=DIR", help="a store of networks for a recipe; may be repeated")
    text = "records.jsonl of runs carried out elsewhere, which are not repeated; may be repeated"
    add("--records", action="append", default=[], metavar="FILE", help=text)
    add("--jobs", type=int, default=1, metavar="N", help="number of runs in parallel (1)")


def _reproduce(table: str, *, out: str | None, data: list[str] | None, **options: Any) -> dict[str, Any]:
    from neuralfunctionals.studies import TABLES, reproduce

    stores = [str(store).partition("=") for store in data or ()]
    for recipe, _, path in stores:
        if not path:
            raise UserError(f"Expected --data RECIPE=DIR, such as edit/mnist-dilate=sirens, but got '{recipe}'.")
    recipe = TABLES[table].runs[0].recipe if table in TABLES else ""
    options["stores"] = {recipe: path for recipe, _, path in stores}
    out = out or os.path.join("runs", f"{table}-{options['scale']}")
    with _making_bar(recipe) as fitting, plain_bar("runs") as progress:
        return reproduce(table, out, **options, fitting=fitting, progress=progress)


def _show_reproduced(result: dict[str, Any]) -> None:
    for table in result["tables"]:
        print_table(table["names"], table["rows"])
    print(f"The pictures and runs are in {result['out']}.")


def _show_recipes(result: dict[str, Any]) -> None:
    facts = [(name, r["summary"], r["reproduces"], ", ".join(r["models"])) for name, r in result.items()]
    print_table(("recipe", "what it trains", "reproduces", "models"), facts)
    for family, costs in {name.partition("/")[0]: recipe["cost"] for name, recipe in result.items()}.items():
        for scale, cost in costs.items():
            print(f"  {family} --scale {scale}: {cost}")


COMMANDS = {
    "recipes": Command(
        "List the recipes, what they reproduce, and how long they take.",
        "nf recipes",
        lambda add: None,
        _recipes,
        show=_show_recipes,
    ),
    "train": Command(
        "Train a model on a task, or resume a run.",
        "nf train edit/mnist-dilate --scale tiny --model nft --out /tmp/run --optimizer.lr 1e-3",
        _add_train_arguments,
        _train,
        bind=_bind_train,
    ),
    "reproduce": Command(
        "Reproduce one of the paper's tables: run its experiments and show them next to the paper's numbers.",
        "nf reproduce table2 --scale tiny --out /tmp/table2",
        _add_reproduce_arguments,
        _reproduce,
        show=_show_reproduced,
    ),
    "evaluate": Command(
        "Evaluate a trained model on a split.",
        "nf evaluate /tmp/run --split test --json",
        _add_evaluate_arguments,
        _evaluate,
    ),
}
