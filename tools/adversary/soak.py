"""A week in an hour: fit, train, encode and serve in a loop, with something killed every 20 to 60 seconds.

    python tools/adversary/soak.py --minutes 60 --plot soak.png

A server answers visitors all the time. Beside it networks are fitted, an autoencoder is trained on them, and they are
encoded, again and again; whatever is killed is repeated. In the end every round must have given the same bytes as one
that was left alone, every item once; memory must not have grown, and nothing may be left behind. Draws memory and kills
over time. Ends with exit code 1 if anything else happened.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from trials import Tally, command, contents, leftovers, one_line, parser, run_command, workshop

KILL_SECONDS = (20.0, 60.0)
TRAIN = ["--scale", "tiny", "--model", "nfn", "--model.grid_size", "2", "--training.steps", "40"]
TRAIN += ["--training.val_every", "4", "--training.log_every", "4"]


@dataclass
class Record:
    """What is drawn: seconds and megabytes of each kind of process, and when which was killed."""

    started: float = field(default_factory=time.monotonic)
    memory: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    kills: list[tuple[float, str]] = field(default_factory=list)

    @property
    def now(self) -> float:
        return time.monotonic() - self.started


class Process:
    """A command that may be killed."""

    def __init__(self, name: str, words: list[object], log: Path) -> None:
        self.name, self.log = name, log
        with open(log, "wb") as file:
            self.process = subprocess.Popen(command(*words), stdout=file, stderr=file, start_new_session=True)

    @property
    def rss_mb(self) -> float | None:
        try:
            text = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return None
        found = re.search(r"VmRSS:\s+(\d+)", text)
        return None if found is None else int(found[1]) / 1024

    def kill(self) -> bool:
        """Kills it with all that it started; returns whether it was still there."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")


class Soak:
    """All that runs, and who kills it."""

    def __init__(self, path: Path, options: object, tally: Tally, dice: random.Random) -> None:
        self.path, self.tally, self.dice = path, tally, dice
        self.minutes: float = getattr(options, "minutes", 1.0)
        self.models: str | None = getattr(options, "models", None)
        self.record, self.stop = Record(), threading.Event()
        self.running: dict[str, Process] = {}
        self.answered = self.rounds = self.items = 0
        self.url = ""

    def over(self) -> bool:
        return self.record.now > 60 * self.minutes

    def guarded(self, work: Callable[[], None]) -> None:
        """A thread that ends early would make everything after it look well: that is a failure too."""
        try:
            work()
        except Exception as error:
            self.tally.add("the soak itself", "failed", f"{work.__name__}: {error!r}")

    # Watching and killing.

    def watch(self) -> None:
        """Notes the memory of everything, and kills something from time to time."""
        due = self.record.now + self.dice.uniform(*KILL_SECONDS)
        while not self.stop.wait(0.5):
            running = dict(self.running)  # other threads change it
            for name, process in running.items():
                if (rss := process.rss_mb) is not None:
                    self.record.memory.setdefault(name, []).append((self.record.now, rss))
            if self.record.now > due and not self.over() and running:
                victim = self.dice.choice(sorted(running))
                if running[victim].kill():
                    self.record.kills.append((self.record.now, victim))
                    self.tally.add("kills", victim)
                    due = self.record.now + self.dice.uniform(*KILL_SECONDS)

    # The page.

    def serve(self) -> None:
        """Keeps a server running."""
        words = ["serve", "--port", 0, "--no-browser", *(["--models", self.models] if self.models else [])]
        while not self.stop.is_set():
            process = Process("serve", words, self.path / "serve.log")
            self.running["serve"] = process
            while process.process.poll() is None and not self.stop.wait(0.2):
                if not self.url and (found := re.search(r"http://\S+:\d+", process.said)):
                    self.url = found[0]
            self.url = ""
            process.process.terminate()
            code = process.process.wait(60)
            if code not in (0, -signal.SIGKILL) or "Traceback" in process.said:
                self.tally.add("serve", "failed", f"exit {code}: {process.said[-300:]}")
        self.running.pop("serve", None)

    def visit(self) -> None:
        """A visitor who draws and undoes, and comes back when the server was killed."""
        session = 0
        while not self.stop.wait(0.2):
            url, session = self.url, session + 1
            if not url:
                continue
            try:
                with httpx.Client(timeout=60, trust_env=False) as client:
                    calls = {d["api_name"]: d["id"] for d in client.get(f"{url}/config").json()["dependencies"]}
                    for name, data in (("fit", [f"sample:{session % 10}", None]), ("read", [None]), ("undo", [None])):
                        self.act(client, url, calls[name], f"soak-{session}", data)
            except (httpx.HTTPError, ValueError, KeyError) as error:
                if url == self.url:
                    time.sleep(1)  # it may just have been killed
                    if url == self.url and not self.stop.is_set():
                        self.tally.add("visits", "failed", repr(error))

    def act(self, client: httpx.Client, url: str, call: int, session: str, data: Sequence[object]) -> None:
        body = {"data": list(data), "fn_index": call, "session_hash": session}
        client.post(f"{url}/gradio_api/queue/join", json=body).raise_for_status()
        with client.stream("GET", f"{url}/gradio_api/queue/data", params={"session_hash": session}) as stream:
            for line in stream.iter_lines():
                if '"process_completed"' in line:
                    self.answered += 1
                    if '"success":true' not in line.replace(" ", ""):
                        self.tally.add("visits", "failed", line[:200])
                    return

    # The pipeline.

    def steps(self, out: Path) -> list[tuple[str, Callable[[], list[object]]]]:
        def train() -> list[object]:
            begun = ["--resume"] if (out / "run" / "run.json").is_file() else []
            return ["train", "inr2array/mnist", *TRAIN, "--data", out / "sirens", "--out", out / "run", *begun]

        fit: list[object] = ["fit", "--images", "mnist-sample", "--limit", 200, "--workers", 1, "--out", out / "sirens"]
        encode: list[object] = ["encode", out / "run", "--data", out / "sirens", "--out", out / "latents"]
        return [("fit", lambda: fit), ("train", train), ("encode", lambda: [*encode, "--workers", 1])]

    def carry_out(self, out: Path) -> bool:
        """One round; whatever is killed is repeated. Returns whether it came to its end."""
        for name, words in self.steps(out):
            while True:
                process = Process(name, words(), self.path / f"{name}.log")
                self.running[name] = process
                code = process.process.wait()
                self.running.pop(name, None)
                if code == 0:
                    self.tally.add("commands", "done")
                    break
                if code != -signal.SIGKILL:
                    self.tally.add("commands", "failed", f"{name}, exit {code}: {process.said[-300:]}")
                    return False
                self.tally.add("commands", "killed")
        return True

    def check(self, out: Path, expected: dict[str, bytes]) -> None:
        from neuralfunctionals.data import Store

        found = self.results(out)
        if different := sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name)):
            self.tally.add("rounds", "different", f"other contents: {different[:5]}")
        for name in ("sirens", "latents"):
            if (check := run_command("data", "verify", out / name)).kind != "done":
                self.tally.add("rounds", "not verified", f"{name}: {one_line(check)}")
                continue
            store = Store(out / name)
            items = [item["item"] for shard in store.shards for item in store.read_index(shard)[0]]
            if items != list(range(store.header.num_items)):
                self.tally.add("rounds", "lost or doubled", f"{name}: {items}")
            self.items += len(items)
        if left := leftovers(out):
            self.tally.add("rounds", "left behind", str(left))
        self.tally.add("rounds", "checked")
        self.rounds += 1

    def results(self, out: Path) -> dict[str, bytes]:
        return contents(out / "sirens", out / "latents", out / "run" / "model")

    def run(self) -> None:
        reference = self.path / "round"
        if not self.carry_out(reference):
            return
        expected = self.results(reference)
        undisturbed = {p.name for p in (self.path / "tmp").iterdir()}  # the cache of torch
        shutil.rmtree(reference)
        self.record = Record()
        threads = [threading.Thread(target=self.guarded, args=[work]) for work in (self.watch, self.serve, self.visit)]
        for thread in threads:
            thread.start()
        try:
            while not self.over():
                if not self.carry_out(self.path / "round"):
                    break
                self.check(self.path / "round", expected)
                shutil.rmtree(self.path / "round")
        finally:
            self.stop.set()
            for thread in threads:
                thread.join()
        left = sorted({p.name for p in (self.path / "tmp").iterdir()} - undisturbed)
        self.tally.add("the end", "left behind" if left else "clean", str(left) if left else "")
        self.check_memory()
        self.tally.numbers |= {
            "minutes": round(self.record.now / 60, 1),
            "rounds": self.rounds,
            "items": self.items,
            "answers": self.answered,
            "kills": len(self.record.kills),
        }

    def check_memory(self) -> None:
        """The highest memory must not grow from an early stretch to the last one."""
        growth = {}
        for name, samples in self.record.memory.items():
            end = samples[-1][0]
            early, late = (
                [mb for seconds, mb in samples if low * end <= seconds <= high * end]
                for low, high in ((0.1, 0.4), (0.7, 1.0))
            )
            if min(len(early), len(late)) > 100:  # fewer may all be from the start of a process
                before, after = (statistics.quantiles(part, n=20)[-1] for part in (early, late))
                growth[name] = [round(before), round(after)]
                grown = after > 1.1 * before + 30
                text = f"{name} from {before:.0f} to {after:.0f} MB"
                self.tally.add("memory", "grown" if grown else "flat", text if grown else "")
        self.tally.numbers["memory_mb"] = growth

    def save(self, file: Path) -> None:
        """What is drawn as JSON."""
        file.write_text(json.dumps({"memory": self.record.memory, "kills": self.record.kills}))

    def draw(self, file: str) -> None:
        import matplotlib.pyplot as plt

        names = [name for name in ("serve", "fit", "train", "encode") if name in self.record.memory]
        figure, rows = plt.subplots(
            len(names),
            figsize=(9, 1.1 * len(names) + 1.2),
            sharex=True,
            sharey=True,
            squeeze=False,
            layout="constrained",
        )
        for number, (axes, name) in enumerate(zip(rows[:, 0], names, strict=True)):
            samples = self.record.memory[name]
            killed = [seconds / 60 for seconds, victim in self.record.kills if victim == name]
            axes.plot([s / 60 for s, _ in samples], [mb for _, mb in samples], ".", markersize=2, color=f"C{number}")
            axes.plot(killed, [0.06] * len(killed), "x", color="black", transform=axes.get_xaxis_transform())
            axes.set_title(f"nf {name}: killed {len(killed)} times", loc="left", fontsize=10)
            axes.grid(axis="y", color="0.9")
        rows[0, 0].set_ylim(0, 1.15 * max(mb for name in names for _, mb in self.record.memory[name]))
        rows[-1, 0].set(xlabel="minutes", xlim=(0, self.record.now / 60))
        figure.supylabel("resident memory (MB)", fontsize=10)
        figure.suptitle(
            f"{len(self.record.kills)} kills (crosses), {self.rounds} rounds, failures: {len(self.tally.failures)}",
            fontsize=11,
        )
        figure.savefig(file, dpi=150)
        plt.close(figure)


def main() -> int:
    made = parser(__doc__)
    made.add_argument("--minutes", type=float, default=60.0)
    made.add_argument("--plot", default="soak.png", metavar="FILE", help="memory and kills over time (soak.png)")
    made.add_argument("--models", help="run directories for the page (defaults to the shipped models)")
    options = made.parse_args()
    if options.short:
        options.minutes = min(options.minutes, 3.0)
    tally = Tally("soak", options.seed)
    with workshop(options.keep) as path:
        soak = Soak(path, options, tally, random.Random(options.seed))
        soak.run()
        soak.save(path / "record.json")
        soak.draw(options.plot)
    return tally.finish()


if __name__ == "__main__":
    sys.exit(main())
