"""Makes a store shard by shard, in threads or on a Ray cluster, and continues where it was interrupted."""

from __future__ import annotations

import logging
import os
import socket
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from neuralfunctionals.data.store import Store, StoreHeader
from neuralfunctionals.errors import UserError
from neuralfunctionals.images.splits import SPLITS
from neuralfunctionals.machine import num_cores


@dataclass(frozen=True, eq=False)
class Shard:
    """The result of a task."""

    tensors: dict[str, np.ndarray]
    metadata: list[dict[str, Any]]


Task = Callable[[Any, Callable[[int], None] | None], Shard]
"""Makes one shard on one thread, from the plan's `shared`; reports the number of items finished since the last call."""


class ShardPlan(ABC):
    """Everything that determines the bytes of a store."""

    header: StoreHeader
    shared: Any = None
    """Data that all shards need; sent to each worker once."""
    quality: ClassVar[str | None] = None
    """The tensor with the quality of each item, for progress reports."""

    @abstractmethod
    def task(self, shard: int) -> Task:
        """The task that makes a shard: small enough to send to another machine, with the same result on any machine."""


def describe_items(items: range, **columns: np.ndarray | Sequence[Any]) -> list[dict[str, Any]]:
    """Plain JSON for each item of a shard, from named columns; splits are written by name."""
    lists = {name: column.tolist() if isinstance(column, np.ndarray) else column for name, column in columns.items()}
    lists["split"] = [SPLITS[code] for code in lists["split"]]
    rows = zip(*lists.values(), strict=True)
    return [{"item": item, **dict(zip(lists, row, strict=True))} for item, row in zip(items, rows, strict=True)]


def make_shards(
    plan: ShardPlan,
    out: str | os.PathLike[str],
    *,
    workers: int | None = None,
    share: tuple[int, int] = (0, 1),
    ray_address: str | None = None,
    progress: Callable[[int, Sequence[float]], None] | None = None,
) -> Store:
    """Makes the missing shards of a store, by fitting (`fit_dataset`) or training (`make_zoo`); others are kept.

    Args:
        plan: The plan of the store.
        out: The store's directory: new, or started with the same plan.
        workers: Shards made at the same time, one thread each. Defaults to all cores.
        share: `(i, n)` makes only the shards whose number is `i` modulo `n`, to divide the work among `n` machines.
        ray_address: Address of a Ray cluster to run on; `"local"` starts one on this machine.
        progress: Called with the number of items finished since the last call and, when a shard is finished, with the
            PSNR of its fitted networks or the test accuracies of its CNNs. One thread calls it at a time.
    """
    store = Store.create(out, plan.header)
    mine = range(share[0], plan.header.num_shards, share[1])
    finished = [shard for shard in mine if store.has_shard(shard)]
    store.require_intact(finished)
    left = [shard for shard in mine if not store.has_shard(shard)]
    workers, lock = workers or num_cores(), threading.Lock()

    def report(count: int, qualities: Sequence[float]) -> None:
        if progress is not None:
            with lock:
                progress(count, qualities)

    run = (
        _run_here(plan, left, workers, lambda count: report(count, ()))
        if ray_address is None
        else _run_on_ray(plan, left, workers, ray_address)
    )
    with closing(run):
        for number, shard in run:
            store.write_shard(number, shard.tensors, shard.metadata)
            qualities = () if plan.quality is None else shard.tensors[plan.quality].tolist()
            report(0 if ray_address is None else len(shard.metadata), qualities)
    return store


def _run_here(
    plan: ShardPlan, shards: Iterable[int], workers: int, report: Callable[[int], None]
) -> Generator[tuple[int, Shard]]:
    """Runs shards in threads: the engines release the interpreter's lock while they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    pool = ThreadPoolExecutor(workers)
    stopped = threading.Event()

    def report_or_stop(count: int) -> None:
        if stopped.is_set():
            raise CancelledError
        report(count)

    try:
        waiting = deque(shards)
        running: dict[Future[Shard], int] = {}
        while waiting or running:
            # Only one shard is prepared ahead, so that memory does not grow with the number of images.
            while waiting and len(running) < workers + 1:
                shard = waiting.popleft()
                running[pool.submit(plan.task(shard), plan.shared, report_or_stop)] = shard
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in sorted(done, key=lambda f: running[f]):
                yield running.pop(future), future.result()
    finally:
        stopped.set()
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)


def _run_on_ray(plan: ShardPlan, shards: Iterable[int], workers: int, address: str) -> Generator[tuple[int, Shard]]:
    """Runs shards as tasks of a Ray cluster; if a worker dies, another takes over its shards."""
    try:
        import ray
    except ImportError as error:
        raise UserError("A Ray cluster needs ray: pip install 'neuralfunctionals[cluster]'.") from error
    waiting = deque(shards)
    if not waiting:
        return
    was_running = ray.is_initialized()
    if not was_running:
        try:
            _require_answer(address)
            if address == "local":
                ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
            else:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, ValueError, RuntimeError) as error:
            raise UserError(
                f"No Ray cluster answers at '{address}': {error}. Start one with 'ray start --head'."
            ) from error
    try:
        run = ray.remote(num_cpus=1, max_retries=-1)(_run_task)
        shared = ray.put(plan.shared)
        capacity = max(1, int(ray.cluster_resources().get("CPU", 1)))
        running: dict[Any, int] = {}
        while waiting or running:
            while waiting and len(running) < 2 * capacity:
                shard = waiting.popleft()
                running[run.remote(plan.task(shard), shared)] = shard
            done, _ = ray.wait(list(running), num_returns=1)
            for reference in done:
                yield running.pop(reference), ray.get(reference)
    finally:
        if not was_running:
            ray.shutdown()


def _require_answer(address: str) -> None:
    """Raises at once if nothing listens at the address; Ray itself would try for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=10).close()


def _run_task(task: Task, shared: Any) -> Shard:
    torch.set_num_threads(1)
    return task(shared, None)
