"""Tables, pictures and the page about finished runs: reads run directories, never called by training."""

from neuralfunctionals.report.families import FAMILIES, Family, Picture
from neuralfunctionals.report.finished import FinishedRun, read_runs
from neuralfunctionals.report.latent_map import draw_latents, draw_points
from neuralfunctionals.report.page import write_report
from neuralfunctionals.report.pictures import (
    draw_accuracies,
    draw_classes,
    draw_curves,
    draw_edits,
    draw_predictions,
    draw_reconstructions,
    draw_sizes,
)
from neuralfunctionals.report.tables import classification_table, edit_table, generalization_table, reconstruction_table

__all__ = [
    "FAMILIES",
    "Family",
    "FinishedRun",
    "Picture",
    "classification_table",
    "draw_accuracies",
    "draw_classes",
    "draw_curves",
    "draw_edits",
    "draw_latents",
    "draw_points",
    "draw_predictions",
    "draw_reconstructions",
    "draw_sizes",
    "edit_table",
    "generalization_table",
    "read_runs",
    "reconstruction_table",
    "write_report",
]
