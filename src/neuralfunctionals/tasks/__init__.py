"""What is learned: a folder for each task, with its loss, recipes and report; and the engine that trains them."""

from neuralfunctionals.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__)
