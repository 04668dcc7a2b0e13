"""Progress bars: on standard error, and not before there is something to report, so that a mistake is one line.

Where standard error is no terminal, plain lines take the place of bars.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any


@contextmanager
def _bar(*columns: Any) -> Iterator[Any]:
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(*(columns or Progress.get_default_columns()), console=Console(stderr=True))
    try:
        yield bar
    finally:
        if bar.tasks:
            bar.stop()


def _shows_bars() -> bool:
    """Whether standard error can show a bar that moves."""
    from rich.console import Console

    console = Console(stderr=True)
    return console.is_terminal or console.is_jupyter


@contextmanager
def _networks_bar(what: str, quality: str) -> Iterator[Callable[[int, int, Sequence[float]], None]]:
    """For networks of a store: with networks a second, the mean of their quality and the time left.

    Called with the number of networks in all, those finished since the last call, and the qualities of some of them.
    """
    if not _shows_bars():
        yield _networks_lines(what, quality)
        return
    import time

    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    texts = (TextColumn("{task.fields[rate]}"), TextColumn("{task.fields[quality]}"))
    with _bar(TextColumn(what), BarColumn(), MofNCompleteColumn(), *texts, TimeRemainingColumn()) as bar:
        started, done = time.perf_counter(), 0
        known: list[float] = []

        def report(total: int, count: int, qualities: Sequence[float]) -> None:
            nonlocal started, done
            if not bar.tasks:
                bar.add_task(what, total=total, rate="", quality="")
                bar.start()
            elif bar.tasks[0].finished and count:  # the next of several stores
                bar.reset(bar.task_ids[0], total=total)
                started, done = time.perf_counter(), 0
            done += count
            known.extend(qualities)
            rate = f"{done / max(time.perf_counter() - started, 1e-9):.3g} items/s"
            mean = quality.format(sum(known) / len(known)) if known else ""
            bar.update(bar.task_ids[0], total=total, advance=count, rate=rate, quality=mean)

        yield report


def _networks_lines(what: str, quality: str) -> Callable[[int, int, Sequence[float]], None]:
    """The same in plain lines."""
    from neuralfunctionals.progress_lines import ProgressLines

    lines, done = ProgressLines(what, "items"), 0
    lines.start()
    known: list[float] = []

    def report(total: int, count: int, qualities: Sequence[float]) -> None:
        nonlocal done
        if done >= total and count:  # the next of several stores
            done = 0
            lines.start()
        done += count
        known.extend(qualities)
        lines.update(done, total, quality.format(sum(known) / len(known)) if known else "")

    return report


fitting_bar = partial(_networks_bar, "fitting", "{:.1f} dB")
"""For fits, with their PSNR."""
zoo_bar = partial(_networks_bar, "training", "{:.1%} right")
"""For CNNs, with their test accuracies."""
encoding_bar = partial(_networks_bar, "encoding", "")
"""For latents."""


@contextmanager
def plain_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """For work of known length: called with the number done and the number in all."""
    if not _shows_bars():
        from neuralfunctionals.progress_lines import ProgressLines

        yield ProgressLines(what, "items").update
        return
    with _bar() as bar:

        def report(done: int, total: int) -> None:
            if not bar.tasks:
                bar.add_task(what)
                bar.start()
            bar.update(bar.task_ids[0], completed=done, total=total)

        yield report


@contextmanager
def _named_bars(unit: str, *columns: str) -> Iterator[Callable[[str, int, int], None]]:
    """For several works at the same time: called with the name of one, the number done and the number in all."""
    if not _shows_bars():
        from neuralfunctionals.progress_lines import ProgressLines

        lines: dict[str, ProgressLines] = {}

        def tell(name: str, done: int, total: int) -> None:
            if name not in lines:
                lines[name] = ProgressLines(name, unit)
                lines[name].start()
            lines[name].update(done, total)

        yield tell
        return
    from rich import progress

    with _bar(
        progress.TextColumn("{task.description}"), progress.BarColumn(), *(getattr(progress, c)() for c in columns)
    ) as bar:
        tasks: dict[str, Any] = {}

        def report(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name)
                bar.start()
            bar.update(tasks[name], completed=done, total=total or None)

        yield report


several_bars = partial(_named_bars, "items", "MofNCompleteColumn", "TimeRemainingColumn")
"""For fits and trainings side by side."""
download_bar = partial(_named_bars, "bytes", "DownloadColumn", "TransferSpeedColumn")
"""For files."""
