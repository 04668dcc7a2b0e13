"""The rules for how each operation of a traced module changes the axes of neurons: `RULES`."""

from neuralfunctionals.weight_space.operations import parts, products, reductions, views
from neuralfunctionals.weight_space.propagation import RULES

__all__ = ["RULES", "parts", "products", "reductions", "views"]
