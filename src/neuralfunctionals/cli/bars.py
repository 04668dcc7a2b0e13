"""Progress bars of the commands, for networks that are made, with their quality, and for other work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from neuralfunctionals.progress import Progress


@contextmanager
def _networks_bar(what: str, quality: str) -> Iterator[Callable[[int, int, Sequence[float]], None]]:
    """A bar for the networks of a store, with the mean of their quality.

    Called with the total number of networks, the number finished since the last call, and their qualities, if known.
    """
    with Progress() as progress:
        progress.start(what)
        done = 0
        known: list[float] = []

        def report(total: int, count: int, qualities: Sequence[float]) -> None:
            nonlocal done
            if done >= total and count:  # the next store
                done = 0
                progress.start(what)
            done += count
            known.extend(qualities)
            progress.update(what, done, total, quality.format(sum(known) / len(known)) if known else "")

        yield report


fitting_bar = partial(_networks_bar, "fitting", "{:.1f} dB")
"""A bar for fits, with their mean PSNR."""
zoo_bar = partial(_networks_bar, "training", "{:.1%} accuracy")
"""A bar for CNNs, with their mean test accuracy."""
encoding_bar = partial(_networks_bar, "encoding", "")
"""A bar for latents."""


@contextmanager
def plain_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar for work of known length, called with the number done and the total number."""
    with Progress() as progress:
        yield partial(progress.update, what)
