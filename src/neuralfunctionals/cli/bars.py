"""Progress of the commands' work: of networks that are made, with their quality, and of other work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from neuralfunctionals.progress import Progress


@contextmanager
def _networks_bar(what: str, quality: str) -> Iterator[Callable[[int, int, Sequence[float]], None]]:
    """For networks of a store, with the mean of their quality.

    Called with the number of networks in all, those finished since the last call, and the qualities of some of them.
    """
    with Progress() as progress:
        progress.start(what)
        done = 0
        known: list[float] = []

        def report(total: int, count: int, qualities: Sequence[float]) -> None:
            nonlocal done
            if done >= total and count:  # the next of several stores
                done = 0
                progress.start(what)
            done += count
            known.extend(qualities)
            progress.update(what, done, total, quality.format(sum(known) / len(known)) if known else "")

        yield report


fitting_bar = partial(_networks_bar, "fitting", "{:.1f} dB")
"""For fits, with their PSNR."""
zoo_bar = partial(_networks_bar, "training", "{:.1%} right")
"""For CNNs, with their test accuracies."""
encoding_bar = partial(_networks_bar, "encoding", "")
"""For latents."""


@contextmanager
def plain_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """For work of known length: called with the number done and the number in all."""
    with Progress() as progress:
        yield partial(progress.update, what)
