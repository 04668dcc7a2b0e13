"""Tables and pictures of finished runs: reads run directories, never called by training."""

from neuralfunctionals.report.pictures import draw_curves, draw_edits
from neuralfunctionals.report.tables import edit_table

__all__ = ["draw_curves", "draw_edits", "edit_table"]
