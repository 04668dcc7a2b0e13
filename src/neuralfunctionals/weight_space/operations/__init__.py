"""What each operation of a traced module does to the axes of neurons: `RULES`."""

from neuralfunctionals.weight_space.operations import parts, products, reductions, views
from neuralfunctionals.weight_space.propagation import RULES

__all__ = ["RULES", "parts", "products", "reductions", "views"]
