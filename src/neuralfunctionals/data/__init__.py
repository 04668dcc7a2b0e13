"""Datasets: image sets, editing targets, and stores of fitted networks."""

from neuralfunctionals.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__)
