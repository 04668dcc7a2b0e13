"""Full run configs, named after what they reproduce, and what carries them out."""

from neuralfunctionals.recipes.catalog import RECIPES, Recipe, find_run
from neuralfunctionals.recipes.datasets import dataset_for
from neuralfunctionals.recipes.demo import run_demo
from neuralfunctionals.recipes.encoding import encode, latents_of
from neuralfunctionals.recipes.execute import TrainedRun, execute, measure, open_run
from neuralfunctionals.recipes.functionals import FUNCTIONALS, build_model
from neuralfunctionals.recipes.reproduce import reproduce
from neuralfunctionals.recipes.run import (
    SCALES,
    ClassifyConfig,
    DataConfig,
    EditConfig,
    GeneralizationConfig,
    ReconstructConfig,
    Run,
    ZooConfig,
)
from neuralfunctionals.recipes.sweep import search_space, sweep
from neuralfunctionals.recipes.tables import TABLES

__all__ = [
    "FUNCTIONALS",
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
    "dataset_for",
    "encode",
    "execute",
    "find_run",
    "latents_of",
    "measure",
    "open_run",
    "reproduce",
    "run_demo",
    "search_space",
    "sweep",
]
