"""Kills commands at random moments, repeats them, and compares the end with a run that was left alone.

    python tools/adversary/kills.py                  30 moments of each of fit, zoo, encode and train
    python tools/adversary/kills.py --short          a few of each, in seconds

Each command is killed (SIGKILL) a few times at moments spread over its whole length, and then repeated until it ends:
the same bytes as without kills, every item once, nothing left behind. Ten kills of each use the real command, the
others forked workers. Ends with exit code 1 if anything else happened.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trials import (
    Outcome,
    Tally,
    Worker,
    command,
    contents,
    leftovers,
    nf,
    one_line,
    parser,
    run_forked,
    slowness,
    warm_up,
    workshop,
)

REAL = 10
KILLS_EACH = 3
"""Kills before a command is let to its end."""
TRAIN = ["--scale", "tiny", "--model", "nfn", "--model.grid_size", 2, "--training.steps", 12, "--training.val_every", 2]
TRAIN += ["--training.log_every", 2]


@dataclass(frozen=True)
class Job:
    """A command that can be killed and repeated."""

    name: str
    words: Callable[[Path, Path], list[object]]
    """From the place of the material and the place to write to."""
    compare: Callable[[Path], dict[str, bytes]]
    """What must be the same in the end."""


def _train(path: Path, out: Path) -> list[object]:
    begun = ["--resume"] if (out / "run.json").is_file() else []
    return ["train", "inr2array/mnist", *TRAIN, "--data", path / "sirens", "--out", out, *begun]


def _run(out: Path) -> dict[str, bytes]:
    """The model and the curve, without its seconds."""
    found = {k: v for k, v in contents(out / "model").items() if k.endswith("safetensors")}
    rows = (out / "metrics.csv").read_text().splitlines()
    place = rows[0].split(",").index("seconds")
    curve = [[cell for n, cell in enumerate(row.split(",")) if n != place] for row in rows]
    return {**found, "curve": str(curve).encode()}


JOBS = (
    Job(
        "fit",
        lambda path, out: [
            "fit",
            "--images",
            "mnist-sample",
            "--limit",
            96,
            "--recipe",
            "fast",
            "--workers",
            2,
            "--out",
            out,
        ],
        contents,
    ),
    Job(
        "zoo",
        lambda path, out: [
            *("zoo", "--images", "mnist-sample", "--count", 24, "--epochs", 1, "--limit-images", 300),
            *("--batch-size", 64, "--workers", 2, "--out", out),
        ],
        contents,
    ),
    Job("encode", lambda path, out: ["encode", path / "encoder", "--data", path / "sirens", "--out", out], contents),
    Job("train", _train, _run),
)


def make_material(path: Path) -> None:
    for words in (
        ["fit", "--images", "mnist-sample", "--limit", 96, "--recipe", "fast", "--out", path / "sirens"],
        ["train", "inr2array/mnist", *TRAIN, "--data", path / "sirens", "--out", path / "encoder"],
    ):
        outcome = run_forked(path, *words, timeout=600)
        if outcome.kind != "done":
            raise SystemExit(f"Cannot make the material: {one_line(outcome)}")


def run_and_kill(path: Path, words: list[object], seconds: float, *, real: bool) -> Outcome:
    """Starts a command and kills it after it has computed for some time, unless it has ended."""
    return Worker(as_process(*words) if real else nf(*words), path).wait(600 * slowness(), kill_after=seconds)


def as_process(*words: object) -> Callable[[], int]:
    """The real command, in the place of the forked worker."""

    def work() -> int:
        call = command(*words)
        os.execv(call[0], call)

    return work


def computing_seconds(path: Path, words: list[object], *, real: bool) -> float:
    """How long a command computes when it is left alone."""
    before = os.times()
    outcome = Worker(as_process(*words) if real else nf(*words), path).wait(600 * slowness())
    after = os.times()
    if outcome.kind != "done":
        raise SystemExit(f"Cannot make the reference: {one_line(outcome)}")
    return after.children_user + after.children_system - before.children_user - before.children_system


def kill_job(job: Job, path: Path, moments: int, real: int, tally: Tally, dice: random.Random) -> None:
    reference = path / f"{job.name}-reference"
    length = {False: computing_seconds(path, job.words(path, reference), real=False)}
    expected = job.compare(reference)
    if real:
        again = path / f"{job.name}-again"
        length[True] = computing_seconds(path, job.words(path, again), real=True)
        shutil.rmtree(again)
    done = 0
    while done < moments:
        out = path / f"{job.name}-killed"
        is_real = done < real
        for _ in range(min(KILLS_EACH, moments - done)):
            # Also just after its start, and just before its end.
            moment = dice.uniform(0, length[is_real])
            outcome = run_and_kill(path, job.words(path, out), moment, real=is_real)
            killed = outcome.code == -signal.SIGKILL
            failure = "" if killed or outcome.kind == "done" else one_line(outcome)
            tally.add(job.name, "killed" if killed else "ended before", failure)
            if not killed:  # what was done before the last kill is not done again: there is nothing left to kill
                break
            done += 1
        last = run_forked(path, *job.words(path, out), timeout=600)
        failure = "" if last.kind == "done" else f"after kills: {one_line(last)}"
        if not failure and (found := job.compare(out)) != expected:
            different = [name for name in {*found, *expected} if found.get(name) != expected.get(name)]
            failure = f"other contents: {different}"
        if not failure and leftovers(out):
            failure = f"left behind: {leftovers(out)}"
        if not failure and job.name != "train":
            failure = doubled_or_lost(path, out)
        tally.add(f"{job.name}, repeated", last.kind, failure)
        shutil.rmtree(out, ignore_errors=True)


def doubled_or_lost(path: Path, out: Path) -> str:
    from neuralfunctionals.data import Store

    check = run_forked(path, "data", "verify", out)
    if check.kind != "done":
        return f"verify: {one_line(check)}"
    store = Store(out)
    items = [item["item"] for shard in store.shards for item in store.read_index(shard)[0]]
    return "" if items == list(range(store.header.num_items)) else f"items {items}"


def main() -> int:
    made = parser(__doc__)
    made.add_argument("--moments", type=int, default=30, help="kills of each command (30)")
    made.add_argument("--real", type=int, default=REAL, help=f"of each, by the real command ({REAL})")
    made.add_argument("--jobs", default=",".join(job.name for job in JOBS), help="which commands")
    options = made.parse_args()
    moments = min(1, options.moments) if options.short else options.moments
    tally, dice = Tally("kills", options.seed), random.Random(options.seed)
    warm_up()
    with tally, workshop(options.keep) as path:
        make_material(path)
        for job in JOBS:
            if job.name in options.jobs.split(","):
                kill_job(job, path, moments, 0 if options.short else min(options.real, moments), tally, dice)
    return tally.finish()


if __name__ == "__main__":
    sys.exit(main())
