"""`nf sweep`: searches hyperparameters by validation."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from neuralfunctionals.cli.bars import fitting_bar, plain_bar
from neuralfunctionals.cli.command import Add, Command
from neuralfunctionals.errors import UserError

# Torch and everything that needs it is imported inside the functions, so that --help is fast.


def _add_sweep_arguments(add: Add) -> None:
    add("recipe", help="what to train: an inr2array/, classify/ or generalization/ recipe, or your own task")
    add(
        "--trials",
        type=int,
        required=True,
        metavar="N",
        help="total number of trials, including earlier ones of the study",
    )
    add("--study", metavar="FILE|URL", help="a journal file (study.journal in --out), or the URL of a shared database")
    add(
        "--steps",
        type=int,
        metavar="N",
        help="steps per trial, with warm-up in proportion (the recipe's)",
    )
    add("--scale", default="small", metavar="NAME", help="tiny, small, long or paper (small)")
    add("--model", metavar="NAME", help="which model (see nf recipes)")
    add("--data", metavar="DIR", help="a store of networks or latents; by default networks are made once and cached")
    add("--out", metavar="DIR", help="directory of the trials' runs (runs/sweep-NAME); an unfinished sweep is resumed")
    add("--seed", type=int, default=0, help="random seed, the same for all trials (0)")


def _sweep(
    recipe: str, *, scale: str, model: str | None, steps: int | None, seed: int, out: str | None, **options: Any
) -> dict[str, Any]:
    from neuralfunctionals.config import with_steps
    from neuralfunctionals.registry import find_run
    from neuralfunctionals.studies import sweep

    run = replace(find_run(recipe, scale=scale, model=model, data=options["data"]), seed=seed)
    if steps is not None:
        if steps < 1:
            raise UserError(f"Expected --steps of at least 1, but got {steps}.")
        run = with_steps(run, steps)
    out = out or os.path.join("runs", f"sweep-{run.name}")
    with fitting_bar() as fitting, plain_bar("trials") as progress:
        return sweep(run, out, **options, fitting=fitting, progress=progress)


COMMANDS = {
    "sweep": Command(
        "Search the hyperparameters that the paper searched; validation chooses the best.",
        "nf sweep classify/mnist --data /tmp/latents --trials 6 --scale tiny --out /tmp/sweep",
        _add_sweep_arguments,
        _sweep,
    ),
}
