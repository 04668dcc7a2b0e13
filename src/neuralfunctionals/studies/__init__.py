"""Studies of several runs: the paper's tables, sweeps, the demo."""

from neuralfunctionals.studies.demo import run_demo
from neuralfunctionals.studies.reproduce import reproduce
from neuralfunctionals.studies.sweep import search_space, sweep
from neuralfunctionals.studies.tables import TABLES

__all__ = ["TABLES", "reproduce", "run_demo", "search_space", "sweep"]
