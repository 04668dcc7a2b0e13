"""Tables and pictures of finished runs: reads run directories, never called by training."""

from neuralfunctionals.report.finished import FinishedRun, read_runs
from neuralfunctionals.report.latent_map import draw_latents
from neuralfunctionals.report.pictures import (
    draw_accuracies,
    draw_curves,
    draw_edits,
    draw_predictions,
    draw_reconstructions,
    draw_sizes,
)
from neuralfunctionals.report.tables import classification_table, edit_table, generalization_table, reconstruction_table

__all__ = [
    "FinishedRun",
    "classification_table",
    "draw_accuracies",
    "draw_curves",
    "draw_edits",
    "draw_latents",
    "draw_predictions",
    "draw_reconstructions",
    "draw_sizes",
    "edit_table",
    "generalization_table",
    "read_runs",
    "reconstruction_table",
]
