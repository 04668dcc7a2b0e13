"""Damaged stores, runs and models through every command that reads them, and races of two writers.

    python tools/adversary/stores.py                 500 damaged files, 200 races
    python tools/adversary/stores.py --short         a few of each, in seconds

A damaged file must be refused in one line, or make no difference: neither to what is printed nor to what is written.
`nf data verify` must find every damage to a store. Of two writers with the same plan both must end with one whole
store; of two with different plans one must be refused. Ten trials of each kind use the real command, the others forked
workers. Ends with exit code 1 if anything else happened.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from trials import (
    Outcome,
    Tally,
    Worker,
    command,
    contents,
    damage,
    leftovers,
    one_line,
    parser,
    run_command,
    run_forked,
    slowness,
    warm_up,
    workshop,
)

REAL = 10
"""Trials of each kind by the real command."""
TRAIN = ["--scale", "tiny", "--training.steps", "4", "--training.val_every", "2"]


@dataclass(frozen=True)
class Reading:
    """A command that reads some material."""

    material: str
    """The directory that is damaged."""
    words: tuple[str, ...]
    """`OUT` stands for a place to write to."""
    must_find: bool = False
    """Whether any damage must be refused."""
    before: Callable[[Path], None] = lambda path: None
    """What is done to the material first."""

    @property
    def name(self) -> str:
        return " ".join(word for word in self.words[:3] if "/" not in word and word != "OUT") + f" ({self.material})"


def make_material(path: Path) -> None:
    """Stores of networks, latents and CNNs, and a finished run of each kind."""
    import torch

    import neuralfunctionals as networks
    from neuralfunctionals.data.formats.network_files import write_networks

    def made(*words: object) -> None:
        outcome = run_forked(path, *words, timeout=600)
        if outcome.kind != "done":
            raise SystemExit(f"Cannot make the material: {one_line(outcome)}")

    made("fit", "--images", "mnist-sample", "--limit", 48, "--recipe", "fast", "--out", path / "sirens")
    zoo = ["zoo", "--images", "mnist-sample", "--count", 24, "--epochs", 1, "--limit-images", 200, "--batch-size", 64]
    made(*zoo, "--out", path / "zoo")
    sirens = ["--data", path / "sirens"]
    made("train", "edit/mnist-dilate", *TRAIN, "--model", "nfn-np", *sirens, "--out", path / "editor")
    made("train", "inr2array/mnist", *TRAIN, "--model", "nfn", *sirens, "--out", path / "encoder")
    zoos = ["--data", path / "zoo"]
    made("train", "generalization/cifar10-grey", *TRAIN, "--model", "statnn", *zoos, "--out", path / "judge")
    made("encode", path / "encoder", "--out", path / "latents")
    torch.manual_seed(0)
    siren = networks.WeightSpaceFeatures.from_modules([networks.inr.Siren()])
    write_networks(path / "siren.safetensors", siren)
    cnn = networks.WeightSpaceFeatures.from_modules([networks.data.build_cnn()])
    write_networks(path / "cnn.safetensors", cnn)


def unfinish(path: Path) -> None:
    """As if the run had been killed before its end."""
    (path / "result.json").unlink()


READINGS = (
    Reading("sirens", ("data", "verify", "sirens"), must_find=True),
    Reading("sirens", ("data", "info", "sirens")),
    Reading("sirens", ("data", "export", "npz", "sirens", "--out", "OUT.npz")),
    Reading("sirens", ("data", "export", "state-dicts", "sirens", "--out", "OUT")),
    Reading("sirens", ("data", "export", "nfn-sirens", "sirens", "--out", "OUT")),
    Reading("sirens", ("encode", "encoder", "--data", "sirens", "--out", "OUT")),
    Reading("sirens", ("evaluate", "editor", "--data", "sirens")),
    Reading("sirens", ("train", "edit/mnist-dilate", *TRAIN, "--model", "nfn-np", "--data", "sirens", "--out", "OUT")),
    Reading("latents", ("data", "verify", "latents"), must_find=True),
    Reading("latents", ("data", "info", "latents")),
    Reading("latents", ("report", "latents", "--out", "OUT.html")),
    Reading("latents", ("train", "classify/mnist", *TRAIN, "--data", "latents", "--out", "OUT")),
    Reading("zoo", ("data", "verify", "zoo"), must_find=True),
    Reading("zoo", ("data", "export", "small-cnn-zoo", "zoo", "--out", "OUT")),
    Reading("zoo", ("evaluate", "judge", "--data", "zoo")),
    Reading("editor", ("evaluate", "editor", "--data", "sirens")),
    Reading("editor", ("edit", "editor", "--weights", "siren.safetensors", "--out", "OUT.safetensors")),
    Reading("editor", ("report", "editor", "--out", "OUT.html")),
    Reading(
        "editor",
        (
            *("train", "edit/mnist-dilate", *TRAIN, "--model", "nfn-np", "--data", "sirens"),
            "--resume",
            "--out",
            "editor",
        ),
        before=unfinish,
    ),
    Reading("encoder", ("encode", "encoder", "--data", "sirens", "--out", "OUT")),
    Reading("encoder", ("report", "encoder", "--out", "OUT.html")),
    Reading("judge", ("predict", "judge", "--weights", "cnn.safetensors")),
    Reading("judge", ("evaluate", "judge", "--data", "zoo")),
)
_MADE = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d UTC</p>")
"""The minute in which a report was made, which ends its first paragraph."""
HARMLESS = "README.md"
"""The card of a model: damage to it changes nothing."""


def written(out: Path) -> dict[str, bytes]:
    """What a command wrote and can be compared: weights, latents, tables, reports; not times and dates."""
    found = contents(out) | {file.name: file.read_bytes() for file in out.parent.glob("OUT.*")}
    kept = (".safetensors", ".npy", ".npz", ".pth", ".gz", ".html")
    return {
        name: _MADE.sub(b"", data, count=1) if name.endswith(".html") else data
        for name, data in found.items()
        if name.endswith(kept)
    }


def carry_out(reading: Reading, folder: Path, *, real: bool) -> tuple[Outcome, dict[str, bytes]]:
    """The command in a directory with copies of the material: how it ended, and what it wrote."""
    here = os.getcwd()
    os.chdir(folder)
    try:
        words = (*reading.words, "--json")
        outcome = run_command(*words) if real else run_forked(folder, *words)
    finally:
        os.chdir(here)
    files = written(folder / "OUT")
    if "--resume" in reading.words:
        files = {k: v for k, v in contents(folder / reading.material / "model").items() if k.endswith("safetensors")}
    return outcome, files


def prepare(reading: Reading, path: Path, folder: Path) -> None:
    """Links to all material, and a copy of what is going to be damaged."""
    folder.mkdir()
    for part in path.iterdir():
        if part.name in ("sirens", "latents", "zoo", "editor", "encoder", "judge") or part.suffix == ".safetensors":
            (folder / part.name).symlink_to(part)
    (folder / reading.material).unlink()
    shutil.copytree(path / reading.material, folder / reading.material)
    reading.before(folder / reading.material)


def damaged_files(reading: Reading, folder: Path) -> list[Path]:
    """Files that can be damaged: all but logs."""
    found = sorted(p for p in (folder / reading.material).rglob("*") if p.is_file() and p.stat().st_size)
    return [p for p in found if "tensorboard" not in p.parts]


def flips(path: Path, count: int, real: int, tally: Tally, dice: random.Random) -> None:
    references: dict[Reading, tuple[Outcome, dict[str, bytes]]] = {}
    for number in range(count):
        reading = READINGS[number % len(READINGS)]
        if reading not in references:
            prepare(reading, path, path / "reference")
            references[reading] = carry_out(reading, path / "reference", real=False)
            shutil.rmtree(path / "reference")
            if references[reading][0].kind != "done":
                tally.add("undamaged", "failed", f"{reading.name}: {one_line(references[reading][0])}")
        reference, files = references[reading]
        folder = path / "trial"
        prepare(reading, path, folder)
        file = dice.choice(damaged_files(reading, folder))
        how = damage(file, dice)
        outcome, found = carry_out(reading, folder, real=number < real)
        group = f"{reading.words[0]} {reading.words[1] if reading.words[0] == 'data' else ''}".strip()
        failure = ""
        if outcome.kind not in ("done", "refused"):
            failure = one_line(outcome)
        elif outcome.kind == "done" and reading.must_find:
            failure = "damage was not found"
        elif outcome.kind == "done" and (outcome.result != reference.result or found != files):
            failure = f"silent: {outcome.result} instead of {reference.result}"
        elif outcome.kind == "refused" and file.name == HARMLESS:
            failure = f"refused for a file that changes nothing: {one_line(outcome)}"
        elif outcome.kind == "refused" and left_behind(folder):
            failure = f"left behind: {left_behind(folder)}"
        tally.add(group, "silent" if failure.startswith("silent") else outcome.kind, failure and f"{how}: {failure}")
        shutil.rmtree(folder)


def left_behind(folder: Path) -> list[str]:
    return [name for name in leftovers(folder) if name.startswith((".tmp-", ".OUT"))]


# Races.


def write_store(path: Path, seed: int, start: float) -> int:
    """A writer: begins at a given time, makes all shards that are missing."""
    from neuralfunctionals.data import Store, StoreError, StoreHeader

    time.sleep(max(0.0, start - time.time()))
    try:
        store = Store.create(path, StoreHeader(12, 4, None, {"seed": seed}))
        for shard in range(3):
            if not store.has_shard(shard):
                items = np.array(store.header.items_of(shard))
                store.write_shard(shard, {"item": items, "seed": np.full(4, seed)}, [{"item": int(i)} for i in items])
    except StoreError as error:
        print(f"nf: {error}", file=sys.stderr)
        return 2
    return 0


def races(path: Path, count: int, tally: Tally, dice: random.Random) -> None:
    from neuralfunctionals.data import WeightDataset

    for number in range(count):
        seeds = (1, 1) if number % 2 else (1, 2)
        store, start = path / "race", time.time() + 0.02
        moments = [start + dice.choice([0, 0, dice.uniform(0, 0.002)]) for _ in seeds]
        workers = [Worker(partial(write_store, store, seed, at), path) for seed, at in zip(seeds, moments, strict=True)]
        outcomes = [worker.wait(60 * slowness()) for worker in workers]
        kinds = sorted(outcome.kind for outcome in outcomes)
        expected = ["done", "done"] if seeds[0] == seeds[1] else ["done", "refused"]
        failure = "" if kinds == expected else f"ended {kinds}: {[one_line(o) for o in outcomes]}"
        if not failure:
            dataset = WeightDataset(store)
            won = next(seed for seed, outcome in zip(seeds, outcomes, strict=True) if outcome.kind == "done")
            if list(dataset.store.problems()) or not dataset.is_complete:
                failure = f"problems: {list(dataset.store.problems())}"
            elif dataset.column("item").tolist() != list(range(12)) or set(dataset.column("seed").tolist()) != {won}:
                failure = "a mixed store"
            elif leftovers(store):
                failure = f"left behind: {leftovers(store)}"
        tally.add("race, same plan" if seeds[0] == seeds[1] else "race, different plans", kinds[-1], failure)
        shutil.rmtree(store, ignore_errors=True)


def real_races(path: Path, count: int, tally: Tally) -> None:
    """Two real commands at a time."""
    for number in range(count):
        store = path / "race"
        words = ["fit", "--images", "mnist-sample", "--limit", 20, "--recipe", "fast", "--out", store, "--workers", 1]
        seeds = (0, 0) if number % 2 else (0, 1)
        started = [
            subprocess.Popen(command(*words, "--seed", seed), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for seed in seeds
        ]
        outcomes = [
            Outcome(p.returncode, out, err, 0)
            for p in started
            for out, err in [p.communicate(timeout=300 * slowness())]
        ]
        kinds = sorted(outcome.kind for outcome in outcomes)
        expected = ["done", "done"] if seeds[0] == seeds[1] else ["done", "refused"]
        check = run_forked(path, "data", "verify", store)
        failure = "" if kinds == expected and check.kind == "done" else f"{kinds}: {[one_line(o) for o in outcomes]}"
        tally.add("race, nf fit twice", kinds[-1], failure)
        shutil.rmtree(store, ignore_errors=True)


def main() -> int:
    made = parser(__doc__)
    made.add_argument("--flips", type=int, default=500)
    made.add_argument("--races", type=int, default=200)
    made.add_argument("--real", type=int, default=REAL, help=f"of both, by the real command ({REAL})")
    options = made.parse_args()
    if options.short:
        options.flips, options.races = min(options.flips, len(READINGS)), min(options.races, 10)
    real = 1 if options.short else options.real
    tally, dice = Tally("stores", options.seed), random.Random(options.seed)
    warm_up()
    with tally, workshop(options.keep) as path:
        races(path, options.races, tally, dice)
        real_races(path, 0 if options.short else options.real, tally)
        if options.flips:
            make_material(path)
            flips(path, options.flips, real, tally, dice)
    return tally.finish()


if __name__ == "__main__":
    sys.exit(main())
