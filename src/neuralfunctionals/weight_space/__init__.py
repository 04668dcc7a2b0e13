"""The mathematics of weight spaces: specs, packed features and their symmetries."""

from neuralfunctionals.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__)
