"""Image sets that networks are fitted to or trained on, and image edits."""

from neuralfunctionals.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__)
