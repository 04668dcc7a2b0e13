"""Weight-space learning: models that take the weights of other networks as input."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neuralfunctionals import data, inr, layers, models, report, runs, studies, tasks, testing
    from neuralfunctionals.errors import UserError
    from neuralfunctionals.models import from_pretrained
    from neuralfunctionals.pipelines import list_pretrained, pipeline
    from neuralfunctionals.runs import experiment
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
_PLACES = {
    "LayerSpec": "weight_space",
    "NetworkSpec": "weight_space",
    "NeuronPermutation": "weight_space",
    "SineSymmetry": "weight_space",
    "UserError": "errors",
    "WeightSpaceFeatures": "weight_space",
    "canonicalize": "weight_space",
    "cat": "weight_space",
    "experiment": "runs",
    "from_pretrained": "models",
    "functional_call": "weight_space",
    "list_pretrained": "pipelines",
    "pipeline": "pipelines",
    "stack": "weight_space",
}
_PARTS = ("data", "inr", "layers", "models", "report", "runs", "studies", "tasks", "testing")
__all__ = [
    "LayerSpec",
    "NetworkSpec",
    "NeuronPermutation",
    "SineSymmetry",
    "UserError",
    "WeightSpaceFeatures",
    "canonicalize",
    "cat",
    "data",
    "experiment",
    "from_pretrained",
    "functional_call",
    "inr",
    "layers",
    "list_pretrained",
    "models",
    "pipeline",
    "report",
    "runs",
    "stack",
    "studies",
    "tasks",
    "testing",
]


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(importlib.import_module(f"neuralfunctionals.{_PLACES[name]}"), name)
    if name in _PARTS:
        return importlib.import_module(f"neuralfunctionals.{name}")
    raise AttributeError(f"module 'neuralfunctionals' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
