"""What is learned: a folder for each task, with its loss, recipes and report; and the engine that trains them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neuralfunctionals.config import OptimizerConfig, TrainingConfig
    from neuralfunctionals.tasks.batches import EvalBatches, TrainBatches
    from neuralfunctionals.tasks.classify.task import ClassifyTask
    from neuralfunctionals.tasks.definition import Column, ModelSettings, Picture, Published, Recipe, TaskDefinition
    from neuralfunctionals.tasks.edit.task import EditTask
    from neuralfunctionals.tasks.generalization.task import GeneralizationTask
    from neuralfunctionals.tasks.inr2array.task import ReconstructTask
    from neuralfunctionals.tasks.latents import interpolate, nearest
    from neuralfunctionals.tasks.task import Task, TrainingDivergedError, evaluate
    from neuralfunctionals.tasks.training import train

# Loaded when first used: the definitions of tasks are read without torch and Lightning.
_PLACES = {
    "Column": "tasks.definition",
    "ClassifyTask": "tasks.classify.task",
    "EditTask": "tasks.edit.task",
    "EvalBatches": "tasks.batches",
    "GeneralizationTask": "tasks.generalization.task",
    "ModelSettings": "tasks.definition",
    "OptimizerConfig": "config",
    "Picture": "tasks.definition",
    "Published": "tasks.definition",
    "Recipe": "tasks.definition",
    "ReconstructTask": "tasks.inr2array.task",
    "Task": "tasks.task",
    "TaskDefinition": "tasks.definition",
    "TrainBatches": "tasks.batches",
    "TrainingConfig": "config",
    "TrainingDivergedError": "tasks.task",
    "evaluate": "tasks.task",
    "interpolate": "tasks.latents",
    "nearest": "tasks.latents",
    "train": "tasks.training",
}
__all__ = [
    "ClassifyTask",
    "Column",
    "EditTask",
    "EvalBatches",
    "GeneralizationTask",
    "ModelSettings",
    "OptimizerConfig",
    "Picture",
    "Published",
    "Recipe",
    "ReconstructTask",
    "Task",
    "TaskDefinition",
    "TrainBatches",
    "TrainingConfig",
    "TrainingDivergedError",
    "evaluate",
    "interpolate",
    "nearest",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(importlib.import_module(f"neuralfunctionals.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'neuralfunctionals.tasks' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
