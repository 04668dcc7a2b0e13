"""Tasks, one folder each, with loss, recipes and report; and the code that trains them."""

from neuralfunctionals.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__)
