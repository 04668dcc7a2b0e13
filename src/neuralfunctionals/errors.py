"""Mistakes that the user can correct: `UserError`; and suggestions for misspelt words: `nearest`."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """A mistake that the user can correct: says what was expected, what was given, and what to do.

    Commands print it as one line; other exceptions keep their traceback.
    """


def require_choice(what: str, value: object, known: Iterable[str]) -> None:
    """Raises unless the value is one of the known names, with the closest one.

    Example:
        >>> require_choice("a split,", "tset", ["train", "test"])
        Traceback (most recent call last):
        neuralfunctionals.errors.UserError: Expected a split, one of train, test, but got 'tset'. Did you mean test?
    """
    known = list(known)
    if value not in known:
        raise UserError(
            f"Expected {what} one of {', '.join(known)}, but got '{value}'.{nearest(str(value), known, cutoff=0.5)}"
        )


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """A sentence that suggests the known word closest to this one; empty if none is close.

    Example:
        >>> nearest("--limt", ["--limit", "--out"])
        ' Did you mean --limit?'
    """
    close = get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f" Did you mean {close[0]}?" if close else ""
