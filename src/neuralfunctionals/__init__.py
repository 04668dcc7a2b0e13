"""Weight-space learning: models that take the weights of other networks as input."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neuralfunctionals import data, inr, layers, models, recipes, report, tasks, testing
    from neuralfunctionals.models import from_pretrained
    from neuralfunctionals.pipelines import list_pretrained, pipeline
    from neuralfunctionals.weight_space import (
        LayerSpec,
        NetworkSpec,
        NeuronPermutation,
        SineSymmetry,
        WeightSpaceFeatures,
        canonicalize,
        cat,
        functional_call,
        stack,
    )

__version__ = "0.1.0"

# Loaded when first used, so that commands can print their help without waiting for torch.
_WEIGHT_SPACE = (
    "LayerSpec",
    "NetworkSpec",
    "NeuronPermutation",
    "SineSymmetry",
    "WeightSpaceFeatures",
    "canonicalize",
    "cat",
    "functional_call",
    "stack",
)
_PARTS = ("data", "inr", "layers", "models", "recipes", "report", "tasks", "testing")
__all__ = [
    "LayerSpec",
    "NetworkSpec",
    "NeuronPermutation",
    "SineSymmetry",
    "WeightSpaceFeatures",
    "canonicalize",
    "cat",
    "data",
    "from_pretrained",
    "functional_call",
    "inr",
    "layers",
    "list_pretrained",
    "models",
    "pipeline",
    "recipes",
    "report",
    "stack",
    "tasks",
    "testing",
]


def __getattr__(name: str) -> Any:
    if name in _WEIGHT_SPACE:
        return getattr(importlib.import_module("neuralfunctionals.weight_space"), name)
    if name in _PARTS:
        return importlib.import_module(f"neuralfunctionals.{name}")
    if name in ("pipeline", "list_pretrained"):
        return getattr(importlib.import_module("neuralfunctionals.pipelines"), name)
    if name == "from_pretrained":
        return importlib.import_module("neuralfunctionals.models").from_pretrained
    raise AttributeError(f"module 'neuralfunctionals' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
