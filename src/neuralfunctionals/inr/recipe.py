"""How a sine network is trained: `FitRecipe` and the named `RECIPES`."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from neuralfunctionals.errors import UserError, require_choice

# Axes: S steps.


@dataclass(frozen=True)
class FitRecipe:
    """How to train one sine network; the same for all networks of a dataset."""

    steps: int
    """Steps on the whole image."""
    learning_rate: float
    """Peak learning rate."""
    schedule: str = "cosine"
    """Decay of the rate from its peak: to zero along a cosine or a line, or constant."""
    warmup_steps: int = 0
    """Steps over which the rate rises to its peak."""
    optimizer: str = "adam"
    """Adam, or gradient descent with momentum `beta1`."""
    beta1: float = 0.9
    """Decay of the mean gradient."""
    beta2: float = 0.999
    """Decay of the mean squared gradient (Adam)."""
    epsilon: float = 1e-8
    """Added to the root of the mean squared gradient (Adam)."""
    stop_psnr_db: float | None = None
    """Stop each network once it reaches this PSNR."""

    def __post_init__(self) -> None:
        checks = {
            "steps": (self.steps >= 1, "at least 1"),
            "learning_rate": (0 < self.learning_rate < math.inf, "a positive number"),
            "schedule": (self.schedule in ("cosine", "linear", "constant"), "'cosine', 'linear' or 'constant'"),
            "warmup_steps": (0 <= self.warmup_steps <= self.steps, "from 0 to the number of steps"),
            "optimizer": (self.optimizer in ("adam", "sgd"), "'adam' or 'sgd'"),
            "beta1": (0 <= self.beta1 < 1, "from 0 to below 1"),
            "beta2": (0 <= self.beta2 < 1, "from 0 to below 1"),
            "epsilon": (self.epsilon > 0, "a positive number"),
            "stop_psnr_db": (self.stop_psnr_db is None or math.isfinite(self.stop_psnr_db), "a number of decibels"),
        }
        for name, (is_right, expected) in checks.items():
            if not is_right:
                raise UserError(f"Expected the recipe's {name} to be {expected}, but got {getattr(self, name)!r}.")

    def rates(self) -> Float[Tensor, "S"]:
        """The learning rate of every step."""
        step = torch.arange(self.steps, dtype=torch.float64)
        left = {
            "cosine": 0.5 * (1 + torch.cos(torch.pi * step / self.steps)),
            "linear": 1 - step / self.steps,
            "constant": torch.ones_like(step),
        }[self.schedule]
        rise = ((step + 1) / max(self.warmup_steps, 1)).clamp(max=1)
        return (self.learning_rate * left * rise).float()

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, for JSON."""
        return asdict(self)


RECIPES: dict[str, FitRecipe] = {
    "default": FitRecipe(steps=400, learning_rate=3e-3, stop_psnr_db=40.0),
    "fast": FitRecipe(steps=200, learning_rate=1e-2, stop_psnr_db=40.0),
    "sharp": FitRecipe(steps=150, learning_rate=1e-2),
    "refit": FitRecipe(steps=200, learning_rate=3e-3, stop_psnr_db=40.0),
    "slow": FitRecipe(steps=1000, learning_rate=5e-4, schedule="constant"),
}
"""Named recipes. `docs/benchmarks.md` compares them: speed, quality, and how well models can use the weights."""


def find_recipe(recipe: str | FitRecipe) -> FitRecipe:
    """The recipe with this name; a recipe is returned as it is."""
    if isinstance(recipe, FitRecipe):
        return recipe
    require_choice("a fitting recipe,", recipe, RECIPES)
    return RECIPES[recipe]
