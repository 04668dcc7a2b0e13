"""The input networks: sine networks, how they are fitted to images and rendered."""

from neuralfunctionals.inr.coordinates import image_grid
from neuralfunctionals.inr.fit import FitResult, choose_engine, fit, fit_values, image_bytes, image_values
from neuralfunctionals.inr.form import SirenForm, convert
from neuralfunctionals.inr.metrics import psnr
from neuralfunctionals.inr.patches import patch_pixels, render_patches
from neuralfunctionals.inr.recipe import RECIPES, FitRecipe, find_recipe
from neuralfunctionals.inr.render import render, render_images
from neuralfunctionals.inr.siren import CONVENTIONS, Siren, convert_convention, initial_limits, initial_weights
from neuralfunctionals.inr.turns import turn_images, turn_networks

__all__ = [
    "CONVENTIONS",
    "RECIPES",
    "FitRecipe",
    "FitResult",
    "Siren",
    "SirenForm",
    "choose_engine",
    "convert",
    "convert_convention",
    "find_recipe",
    "fit",
    "fit_values",
    "image_bytes",
    "image_grid",
    "image_values",
    "initial_limits",
    "initial_weights",
    "patch_pixels",
    "psnr",
    "render",
    "render_images",
    "render_patches",
    "turn_images",
    "turn_networks",
]
