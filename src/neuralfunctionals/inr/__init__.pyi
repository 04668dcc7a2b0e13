from neuralfunctionals.inr.coordinate_maps import (
    AffineMaps as AffineMaps,
    move_networks as move_networks,
    turn_images as turn_images,
    turn_networks as turn_networks,
)
from neuralfunctionals.inr.coordinates import (
    image_grid as image_grid,
)
from neuralfunctionals.inr.fit import (
    FitResult as FitResult,
    choose_engine as choose_engine,
    fit as fit,
    fit_values as fit_values,
    image_bytes as image_bytes,
    image_values as image_values,
)
from neuralfunctionals.inr.form import (
    SirenForm as SirenForm,
    convert as convert,
)
from neuralfunctionals.inr.metrics import (
    psnr as psnr,
)
from neuralfunctionals.inr.patches import (
    patch_pixels as patch_pixels,
    render_patches as render_patches,
)
from neuralfunctionals.inr.recipe import (
    RECIPES as RECIPES,
    FitRecipe as FitRecipe,
    find_recipe as find_recipe,
)
from neuralfunctionals.inr.refit import (
    refit as refit,
)
from neuralfunctionals.inr.render import (
    evaluate_layers as evaluate_layers,
    render as render,
    render_images as render_images,
)
from neuralfunctionals.inr.siren import (
    CONVENTIONS as CONVENTIONS,
    Siren as Siren,
    convert_convention as convert_convention,
    initial_limits as initial_limits,
    initial_weights as initial_weights,
)
