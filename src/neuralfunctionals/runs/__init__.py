"""Runs a recipe, or your own model, task and data, from config to result."""

from neuralfunctionals.config import SCALES, DataConfig, Run, ZooConfig
from neuralfunctionals.registry import MODELS, RECIPES, find_run, find_task, read_run
from neuralfunctionals.runs.build import build_model, build_task
from neuralfunctionals.runs.datasets import dataset_for
from neuralfunctionals.runs.encoding import encode
from neuralfunctionals.runs.execute import TrainedRun, execute, measure, open_run
from neuralfunctionals.runs.experiment import experiment
from neuralfunctionals.tasks.classify import ClassifyConfig
from neuralfunctionals.tasks.edit import EditConfig
from neuralfunctionals.tasks.generalization import GeneralizationConfig
from neuralfunctionals.tasks.inr2array import ReconstructConfig

__all__ = [
    "MODELS",
    "RECIPES",
    "SCALES",
    "ClassifyConfig",
    "DataConfig",
    "EditConfig",
    "GeneralizationConfig",
    "ReconstructConfig",
    "Run",
    "TrainedRun",
    "ZooConfig",
    "build_model",
    "build_task",
    "dataset_for",
    "encode",
    "execute",
    "experiment",
    "find_run",
    "find_task",
    "measure",
    "open_run",
    "read_run",
]
