"""Whether a model only sees weights or also runs the networks: `league`."""

from typing import Literal, TypeAlias

from torch import nn

League: TypeAlias = Literal["weights only", "asks the function"]


def league(model: nn.Module) -> League:
    """`"asks the function"` if any part of the model evaluates the input networks, else `"weights only"`.

    The two are never ranked together: a model that can run a small INR at a few dozen points solves most of the task
    by this alone.

    Example:
        >>> from neuralfunctionals import NetworkSpec, models
        >>> spec = NetworkSpec.mlp([2, 8, 1])
        >>> league(models.NeuronGraphNet(spec, channels=8)), league(models.NeuronGraphNet(spec, channels=8, probes=16))
        ('weights only', 'asks the function')
    """
    asks = any(getattr(part, "asks_function", False) for part in model.modules())
    return "asks the function" if asks else "weights only"
