"""Whether two commits give the same numbers: tiny runs of every recipe, compared bit for bit.

    python tools/same_numbers.py main HEAD
    python tools/same_numbers.py main --record before.json    # once, then after each change:
    python tools/same_numbers.py before.json .

Each side is a checkout, a commit, or a file that `--record` wrote. Every recipe is trained with its default model, and
the first recipe of each task with all of its models, on networks that each side makes itself. Runs are started through
`nf`, whose words stay the same wherever the code behind them moves.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

STEPS = ["--scale", "tiny", "--training.steps", "6", "--training.val_every", "3", "--training.threads", "1", "--force"]


def collect(out: str, only: str) -> None:
    """Runs in a process of their own, with one checkout's package; prints their results."""
    from neuralfunctionals.cli import main

    def call(*words: str) -> dict[str, Any]:
        pipe_end, pipe = os.pipe()
        kept = os.dup(1)
        os.dup2(pipe, 1)
        try:
            code = main([*words, "--json"])
        finally:
            sys.stdout.flush()
            os.dup2(kept, 1)
            os.close(pipe)
        if code:
            raise SystemExit(code)
        with os.fdopen(pipe_end) as lines:
            return json.loads(lines.read().splitlines()[-1])

    recipes = call("recipes")
    chosen, seen = [], set()
    for recipe, facts in recipes.items():
        family = recipe.partition("/")[0]
        models = [name for name in facts["models"] if name != "latent"]
        chosen += [(recipe, model) for model in (models if family not in seen else models[:1])]
        seen.add(family)
    for recipe, model in sorted(pair for pair in chosen if only in pair[0]):
        path = f"{out}/{recipe.replace('/', '-')}-{model}"
        show(f"{recipe} {model}", call("train", recipe, "--model", model, "--out", path, *STEPS))
        if (recipe, model) == ("inr2array/mnist", "nft"):
            call("encode", path, "--out", f"{out}/latents", "--workers", "1")
            words = ["classify/mnist", "--data", f"{out}/latents", "--out", f"{out}/latent", *STEPS]
            show("classify/mnist latent", call("train", *words))


def show(name: str, result: dict[str, Any]) -> None:
    facts = {key: result[key] for key in ("parameters", "best_step", "train", "val", "test")}
    print(json.dumps({name: facts}), flush=True)


def record(side: str, only: str) -> dict[str, Any]:
    """The results of a checkout, a commit or a file."""
    path = Path(side)
    if path.is_file():
        return json.loads(path.read_text())
    with tempfile.TemporaryDirectory() as folder:
        checkout = path.resolve()
        if not path.is_dir():
            checkout = Path(folder) / "checkout"
            subprocess.run(["git", "worktree", "add", "--detach", "-q", checkout, side], check=True)
        try:
            environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
            environment["NF_CACHE"] = os.environ.get("NF_SAME_NUMBERS_CACHE", f"{folder}/cache")
            words = [sys.executable, __file__, "--collect", f"{folder}/runs", "--only", only]
            with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                results: dict[str, Any] = {}
                for line in process.stdout:
                    results |= json.loads(line)
                    print(f"{side}: {len(results)} runs", end="\r", file=sys.stderr)
            if process.returncode:
                raise SystemExit(f"The runs of {side} failed.")
        finally:
            if not path.is_dir():
                subprocess.run(["git", "worktree", "remove", "--force", checkout], check=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sides", nargs="*", help="one to record, or two to compare")
    parser.add_argument("--record", metavar="FILE", help="keep the results of one side")
    parser.add_argument("--only", default="", help="recipes whose name contains this")
    parser.add_argument("--collect", metavar="DIR", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.collect:
        return collect(options.collect, options.only)
    results = [record(side, options.only) for side in options.sides]
    if options.record:
        Path(options.record).write_text(json.dumps(results[0], indent=1) + "\n")
        print(f"{len(results[0])} runs of {options.sides[0]}")
        return None
    before, after = results
    names = [name for name in before | after if options.only in name]
    different = [name for name in names if before.get(name) != after.get(name)]
    for name in different:
        print(f"{name}\n  {options.sides[0]}: {before.get(name)}\n  {options.sides[1]}: {after.get(name)}")
    print(f"{len(names) - len(different)} of {len(names)} runs have the same numbers")
    raise SystemExit(1 if different else 0)


if __name__ == "__main__":
    main()
