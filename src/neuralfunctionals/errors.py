"""Mistakes that a user can put right: `UserError`."""


class UserError(ValueError):
    """What was expected, what came, and what to do. Commands print it as one line; all else keeps its traceback."""
