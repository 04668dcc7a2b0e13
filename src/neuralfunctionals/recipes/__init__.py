"""Full run configs, named after what they reproduce, and what carries them out."""

from neuralfunctionals.config import SCALES, DataConfig, Run, ZooConfig
from neuralfunctionals.recipes.build import build_model, build_task
from neuralfunctionals.recipes.datasets import dataset_for
from neuralfunctionals.recipes.demo import run_demo
from neuralfunctionals.recipes.encoding import encode
from neuralfunctionals.recipes.execute import TrainedRun, execute, measure, open_run
from neuralfunctionals.recipes.experiment import experiment
from neuralfunctionals.recipes.reproduce import reproduce
from neuralfunctionals.recipes.sweep import search_space, sweep
from neuralfunctionals.recipes.tables import TABLES
from neuralfunctionals.registry import MODELS, RECIPES, find_run, find_task, read_run
from neuralfunctionals.tasks.classify import ClassifyConfig
from neuralfunctionals.tasks.definition import Recipe
from neuralfunctionals.tasks.edit import EditConfig
from neuralfunctionals.tasks.generalization import GeneralizationConfig
from neuralfunctionals.tasks.inr2array import ReconstructConfig

__all__ = [
    "MODELS",
    "RECIPES",
    "SCALES",
    "TABLES",
    "ClassifyConfig",
    "DataConfig",
    "EditConfig",
    "GeneralizationConfig",
    "Recipe",
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
    "reproduce",
    "run_demo",
    "search_space",
    "sweep",
]
