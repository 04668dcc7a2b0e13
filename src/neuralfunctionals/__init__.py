"""Weight-space learning: models that take the weights of other networks as input."""

from neuralfunctionals.lazy import exports

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = exports(__name__)
