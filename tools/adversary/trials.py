"""What the harnesses share: commands as processes or forked workers, how their ends are judged, and the tally."""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int | None
    """Its exit code, negative for a signal; none if it had to be stopped."""
    out: str
    err: str
    seconds: float
    cpu_seconds: float = 0.0
    """What a worker and its children computed."""
    peak_mb: float = 0.0
    """The most memory that a worker held, with what it shares with the process that it was forked from."""

    @property
    def kind(self) -> str:
        """`done`, `refused` in one line, or what must never happen: `hang`, `signal`, `traceback`, `untidy`."""
        if self.code is None:
            return "hang"
        if self.code < 0:
            return "signal"
        if any(sign in self.err + self.out for sign in ("Traceback", "frame #")):  # of Python, of torch's C++
            return "traceback"
        if self.code == 0:
            return "done"
        said = [line for line in self.err.splitlines() if line.strip()]
        return "refused" if self.code == 2 and said and said[-1].startswith("nf: ") else "untidy"

    @property
    def result(self) -> dict[str, Any]:
        """The line of JSON, without what differs from time to time."""
        try:
            found = json.loads(self.out.strip().splitlines()[-1])
        except (IndexError, ValueError):
            return {}
        return {k: v for k, v in found.items() if "second" not in k and k not in ("out", "run", "bytes")}


@dataclass
class Tally:
    """Counts of what happened, and every case that must not happen."""

    name: str
    seed: int
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    def add(self, group: str, kind: str, failure: str = "") -> None:
        self.counts[group, kind] += 1
        if failure:
            self.failures.append(f"{group}: {failure}")
            print(f"FAILED {group}: {failure}", file=sys.stderr, flush=True)

    def __enter__(self) -> Tally:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> bool:
        """Who stops a harness early, by Ctrl+C or SIGTERM, gets what was counted until then."""
        if kind is not KeyboardInterrupt:
            return False
        self.numbers["stopped_early"] = True
        return True

    def finish(self) -> int:
        """Prints a table for people and one line of JSON; returns the exit code."""
        groups = sorted({group for group, _ in self.counts})
        kinds = sorted({kind for _, kind in self.counts})
        table = Table("trials", *kinds)
        for group in groups:
            table.add_row(group, *(str(self.counts[group, kind] or "") for kind in kinds))
        Console(width=max(120, Console().width)).print(table)
        result = {
            "adversary": self.name,
            "seed": self.seed,
            "trials": sum(self.counts.values()),
            "counts": {g: {k: self.counts[g, k] for k in kinds if self.counts[g, k]} for g in groups},
            **self.numbers,
            "failures": self.failures[:20],
            "failed": len(self.failures),
            "seconds": round(time.monotonic() - self.started, 1),
        }
        print(json.dumps(result), flush=True)
        return 1 if self.failures else 0


def parser(description: str | None) -> argparse.ArgumentParser:
    """With the options that all harnesses have."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--seed", type=int, default=0, help="start of the random choices (0)")
    made.add_argument("--short", action="store_true", help="a few trials of each kind, in seconds")
    made.add_argument("--keep", metavar="DIR", help="work here and leave everything for a look")
    return made


@contextmanager
def workshop(keep: str | None) -> Iterator[Path]:
    """A directory to work in, with temporary files of its own; removed in the end."""
    if keep is None:
        path = Path(tempfile.mkdtemp(prefix="nf-adversary-"))
    else:
        path = Path(keep)
        path.mkdir(parents=True, exist_ok=True)
    before = {name: os.environ.get(name) for name in ("TMPDIR", "OMP_NUM_THREADS")}
    (path / "tmp").mkdir(exist_ok=True)
    os.environ |= {"TMPDIR": str(path / "tmp"), "OMP_NUM_THREADS": "1"}
    tempfile.tempdir = None
    try:
        yield path
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        tempfile.tempdir = None
        if keep is None:
            shutil.rmtree(path, ignore_errors=True)


# Commands.


def command(*words: object) -> list[str]:
    """The words that start `nf` as a process."""
    return [sys.executable, "-m", "neuralfunctionals.cli", *map(str, words)]


def run_command(*words: object, timeout: float = 120) -> Outcome:
    """A command as a process of its own, as people call it."""
    started = time.monotonic()
    process = subprocess.Popen(command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = process.communicate(timeout=timeout * slowness())
        code: int | None = process.returncode
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        code = None
    return Outcome(code, out, err, time.monotonic() - started)


def warm_up() -> None:
    """Imports what the commands and their parsers import, so that forked workers start at once."""
    import lightning.pytorch
    import matplotlib
    import torch

    import neuralfunctionals.cli
    import neuralfunctionals.report
    import neuralfunctionals.studies

    matplotlib.use("Agg")
    warnings.simplefilter("ignore")  # of torch, about what the harnesses make on purpose
    torch.set_num_threads(1)
    for name in neuralfunctionals.cli.COMMANDS:
        neuralfunctionals.cli.build_parser(name)
    gc.collect()
    gc.freeze()  # a worker that collected garbage would copy all this memory
    _ = lightning.pytorch, neuralfunctionals.studies, neuralfunctionals.report


class Worker:
    """A forked process that does something, with its output in files."""

    def __init__(self, work: Callable[[], int], folder: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="worker-", dir=folder))
        self.started = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            self._work(work)
        self.end = os.pidfd_open(self.pid)

    def _work(self, work: Callable[[], int]) -> None:
        code = 70
        try:
            os.setsid()
            for number, name in ((1, "out"), (2, "err")):
                file = os.open(self.folder / name, os.O_WRONLY | os.O_CREAT)
                os.dup2(file, number)
            sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
            code = work()
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 0 if leaving.code is None else 1
        except BaseException:
            traceback.print_exc()
            code = 1
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def wait(self, timeout: float, *, kill_after: float | None = None) -> Outcome:
        """How it ended; after the timeout it is killed, which counts as a hang.

        Args:
            timeout: Seconds to wait.
            kill_after: Kill it after so many seconds of computing, which is no hang.
        """
        ended = wait_or_spend(self.pid, self.end, timeout, kill_after)
        if not ended:
            os.killpg(self.pid, signal.SIGKILL)
        _, status, usage = os.wait4(self.pid, 0)
        status = os.waitstatus_to_exitcode(status)
        os.close(self.end)
        out, err = (
            (self.folder / name).read_text(errors="replace") if (self.folder / name).exists() else ""
            for name in ("out", "err")
        )
        shutil.rmtree(self.folder, ignore_errors=True)
        code = status if ended or kill_after is not None else None
        spent = usage.ru_utime + usage.ru_stime
        return Outcome(code, out, err, time.monotonic() - self.started, spent, usage.ru_maxrss / 1024)


def spent_seconds(session: int) -> float:
    """Seconds that a process and all that it started have computed: unlike the clock, they do not depend on what else
    the machine does."""
    ticks = 0
    for entry in os.scandir("/proc"):
        try:
            fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split() if entry.name.isdigit() else []
        except OSError:  # it has just ended
            continue
        if fields and int(fields[3]) == session:
            ticks += sum(int(field) for field in fields[11:15])  # its own, and those of children that have ended
    return ticks / os.sysconf("SC_CLK_TCK")


def wait_or_spend(session: int, end: int, timeout: float, spend: float | None) -> bool:
    """Waits until a process has ended, the time is over, or its session has computed for so long; returns whether it
    ended."""
    if spend is None:
        return bool(select.select([end], [], [], timeout)[0])
    limit = time.monotonic() + timeout
    while time.monotonic() < limit and spent_seconds(session) < spend:
        if select.select([end], [], [], 0.01)[0]:
            return True
    return False


def slowness() -> float:
    """Others may use the processor too: limits in seconds are those of a machine that does nothing else."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def nf(*words: object) -> Callable[[], int]:
    """A command as work for a forked worker."""

    def work() -> int:
        from neuralfunctionals.cli import main

        return main([str(word) for word in words])

    return work


def run_forked(folder: Path, *words: object, timeout: float = 120) -> Outcome:
    """A command in a forked worker."""
    return Worker(nf(*words), folder).wait(timeout * slowness())


# Files.


def contents(*paths: Path) -> dict[str, bytes]:
    """All files below some paths, by their names relative to each."""
    found: dict[str, bytes] = {}
    for number, path in enumerate(paths):
        files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file()) if path.exists() else []
        found |= {f"{number}/{file.relative_to(path)}": file.read_bytes() for file in files}
    return found


def leftovers(*paths: Path) -> list[str]:
    """Temporary files and directories that should not be there."""
    hidden = [p for path in paths for p in path.rglob(".*")]
    return sorted(p.name for p in hidden)


def damage(file: Path, dice: random.Random) -> str:
    """Damages a file in place; says how."""
    good = file.read_bytes()
    while True:
        data = bytearray(good)
        kind = dice.choices(["bit", "bits", "cut", "zeros", "more"], [70, 10, 10, 5, 5])[0]
        place = dice.randrange(len(data))
        if kind in ("bit", "bits"):
            for spot in [place, *(dice.randrange(len(data)) for _ in range(0 if kind == "bit" else 7))]:
                data[spot] ^= 1 << dice.randrange(8)
        elif kind == "cut":
            del data[place:]
        elif kind == "zeros":
            data[place : place + 64] = bytes(len(data[place : place + 64]))
        else:
            data += b"\0"
        if data != good:  # zeros may fall on zeros
            file.write_bytes(data)
            return f"{kind} at {place} of {file.name}"


def one_line(outcome: Outcome) -> str:
    """What to say about a failure."""
    lines: Sequence[str] = (outcome.err or outcome.out).strip().splitlines() or [""]
    return f"{outcome.kind} (exit {outcome.code}): {lines[-1][:300]}"
