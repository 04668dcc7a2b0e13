"""Carries out runs in parallel, each in its own process: `Job`, `carry_out`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from neuralfunctionals.config import Run
from neuralfunctionals.errors import UserError
from neuralfunctionals.registry import read_run
from neuralfunctionals.run_directory import RunDirectory
from neuralfunctionals.runs.encoding import encode
from neuralfunctionals.runs.execute import execute

Progress = Callable[[str, int, int], None]
"""Called with the name of a run, and its steps done and in total."""


@dataclass(frozen=True)
class Job:
    """A run to start or resume in its directory."""

    run: Run
    out: Path
    data: Path | None = None
    """The store to train on. Defaults to the networks of the run config."""
    encoder: Path | None = None
    """The run of an autoencoder, whose latents are written to `data` first."""

    def carry_out(self, progress: Callable[[int, int], None]) -> None:
        """Carries out the job in this process."""
        if self.encoder is not None:
            assert self.data is not None
            encode(self.encoder, None, self.data, workers=self.run.training.threads)
        execute(self.run, self.out, data=self.data, resume=RunDirectory(self.out).is_run, progress=progress)


def carry_out(groups: Sequence[Sequence[Job]], *, processes: int, threads: int, progress: Progress) -> None:
    """Carries out groups of jobs, `processes` groups at a time; the jobs of a group share a process.

    If one fails or this process is interrupted, all are stopped; runs can be resumed from their last validation.
    """
    running: list[subprocess.Popen[str]] = []
    stopped, lock = threading.Event(), threading.Lock()
    pool = ThreadPoolExecutor(max(1, processes))

    def work_off(jobs: Sequence[Job]) -> None:
        if stopped.is_set():
            return
        words = [sys.executable, "-c", f"from {__name__} import work; work()"]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        with tempfile.TemporaryFile("w+") as complaints, tempfile.TemporaryFile("w+") as orders:
            json.dump([{**vars(job), "run": job.run.to_dict()} for job in jobs], orders, default=os.fspath)
            orders.seek(0)
            pipes: dict[str, Any] = {"stdin": orders, "stdout": subprocess.PIPE, "stderr": complaints, "text": True}
            # In its own session, so that Ctrl-C stops this process, which then stops the others.
            with subprocess.Popen(words, env=environment, start_new_session=True, **pipes) as process:
                running.append(process)
                if stopped.is_set():
                    process.kill()
                assert process.stdout is not None
                for line in process.stdout:
                    name, done, total = line.rsplit(maxsplit=2)
                    with lock:
                        progress(name, int(done), int(total))
            if process.returncode and not stopped.is_set():
                complaints.seek(0)
                said = complaints.read().strip() or f"exit code {process.returncode}"
                names = ", ".join(job.out.name for job in jobs)
                failure = UserError if process.returncode == 2 else RuntimeError
                raise failure(f"The run {names} failed: {said.splitlines()[-1] if failure is UserError else said}")

    try:
        futures = [pool.submit(work_off, jobs) for jobs in groups]
        for future in wait(futures, return_when=FIRST_EXCEPTION).done:
            future.result()
    finally:
        stopped.set()
        for process in running:
            process.kill()
        pool.shutdown(cancel_futures=True)


def work() -> None:
    """Reads jobs from standard input and carries them out in this process; prints the steps done and in total."""

    def report(name: str, done: int, total: int) -> None:
        if done % 5 == 0 or done == total:
            print(name, done, total, flush=True)

    try:
        for order in json.load(sys.stdin):
            run = read_run(order.pop("run"))
            job = Job(run, **{name: path and Path(path) for name, path in order.items()})
            report(job.out.name, 0, run.training.steps)
            job.carry_out(partial(report, job.out.name))
    except (UserError, OSError) as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from error
