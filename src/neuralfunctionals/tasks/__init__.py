"""Losses and metrics: one Lightning module for each task, and the engine that trains it."""

from neuralfunctionals.tasks.batches import EvalBatches, TrainBatches
from neuralfunctionals.tasks.edit import EditTask
from neuralfunctionals.tasks.generalization import GeneralizationTask
from neuralfunctionals.tasks.task import OptimizerConfig, Task, TrainingDivergedError, evaluate
from neuralfunctionals.tasks.training import TrainingConfig, train

__all__ = [
    "EditTask",
    "EvalBatches",
    "GeneralizationTask",
    "OptimizerConfig",
    "Task",
    "TrainBatches",
    "TrainingConfig",
    "TrainingDivergedError",
    "evaluate",
    "train",
]
