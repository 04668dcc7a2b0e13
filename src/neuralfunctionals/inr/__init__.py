"""The input networks: sine networks, fitting them to images, and rendering them."""

from neuralfunctionals.inr.coordinate_maps import AffineMaps, move_networks, turn_images, turn_networks
from neuralfunctionals.inr.coordinates import image_grid
from neuralfunctionals.inr.engines import choose_engine
from neuralfunctionals.inr.fit import FitResult, fit, fit_values, image_bytes, image_values
from neuralfunctionals.inr.form import SirenForm, convert
from neuralfunctionals.inr.metrics import psnr
from neuralfunctionals.inr.patches import patch_pixels, render_patches
from neuralfunctionals.inr.recipe import RECIPES, FitRecipe, find_recipe
from neuralfunctionals.inr.refit import refit
from neuralfunctionals.inr.render import evaluate_layers, render, render_images
from neuralfunctionals.inr.siren import CONVENTIONS, Siren, convert_convention, initial_limits, initial_weights

__all__ = [
    "CONVENTIONS",
    "RECIPES",
    "AffineMaps",
    "FitRecipe",
    "FitResult",
    "Siren",
    "SirenForm",
    "choose_engine",
    "convert",
    "convert_convention",
    "evaluate_layers",
    "find_recipe",
    "fit",
    "fit_values",
    "image_bytes",
    "image_grid",
    "image_values",
    "initial_limits",
    "initial_weights",
    "move_networks",
    "patch_pixels",
    "psnr",
    "refit",
    "render",
    "render_images",
    "render_patches",
    "turn_images",
    "turn_networks",
]
