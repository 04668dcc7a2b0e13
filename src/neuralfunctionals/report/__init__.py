"""Tables, pictures and an HTML page about finished runs. Reads run directories and records; training never calls it."""

from neuralfunctionals.report.finished import FinishedRun, read_runs
from neuralfunctionals.report.latent_map import draw_latents, draw_maps
from neuralfunctionals.report.page import write_report
from neuralfunctionals.report.pictures import (
    draw_accuracies,
    draw_classes,
    draw_curves,
    draw_predictions,
    draw_rows,
    draw_task,
)
from neuralfunctionals.report.records import write_records
from neuralfunctionals.report.tables import Table, results_table

__all__ = [
    "FinishedRun",
    "Table",
    "draw_accuracies",
    "draw_classes",
    "draw_curves",
    "draw_latents",
    "draw_maps",
    "draw_predictions",
    "draw_rows",
    "draw_task",
    "read_runs",
    "results_table",
    "write_records",
    "write_report",
]
