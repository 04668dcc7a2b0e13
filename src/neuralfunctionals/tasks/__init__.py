"""Losses and metrics: one Lightning module for each task, and the engine that trains it."""

from neuralfunctionals.tasks.batches import EvalBatches, TrainBatches
from neuralfunctionals.tasks.classify import ClassifyTask
from neuralfunctionals.tasks.edit import EditTask
from neuralfunctionals.tasks.generalization import GeneralizationTask
from neuralfunctionals.tasks.latents import interpolate, nearest
from neuralfunctionals.tasks.reconstruct import ReconstructTask
from neuralfunctionals.tasks.task import OptimizerConfig, Task, TrainingDivergedError, evaluate
from neuralfunctionals.tasks.training import TrainingConfig, train

__all__ = [
    "ClassifyTask",
    "EditTask",
    "EvalBatches",
    "GeneralizationTask",
    "OptimizerConfig",
    "ReconstructTask",
    "Task",
    "TrainBatches",
    "TrainingConfig",
    "TrainingDivergedError",
    "evaluate",
    "interpolate",
    "nearest",
    "train",
]
