"""Images: what networks are fitted to and trained on, and how images are edited."""

from neuralfunctionals.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__)
