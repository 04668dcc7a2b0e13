"""Full run configs, named after what they reproduce, and what carries them out."""

from neuralfunctionals.recipes.catalog import RECIPES, Recipe, find_run
from neuralfunctionals.recipes.datasets import dataset_for
from neuralfunctionals.recipes.execute import TrainedRun, execute, measure, open_run
from neuralfunctionals.recipes.functionals import FUNCTIONALS, build_model
from neuralfunctionals.recipes.run import SCALES, DataConfig, EditConfig, GeneralizationConfig, Run, ZooConfig
from neuralfunctionals.recipes.tables import TABLES, reproduce

__all__ = [
    "FUNCTIONALS",
    "RECIPES",
    "SCALES",
    "TABLES",
    "DataConfig",
    "EditConfig",
    "GeneralizationConfig",
    "Recipe",
    "Run",
    "TrainedRun",
    "ZooConfig",
    "build_model",
    "dataset_for",
    "execute",
    "find_run",
    "measure",
    "open_run",
    "reproduce",
]
