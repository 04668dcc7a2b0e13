"""The input networks: sine networks, how they are fitted to images and rendered."""

from neuralfunctionals.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__)
