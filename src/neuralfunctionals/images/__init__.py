"""Images: what networks are fitted to and trained on, and how images are edited."""

from neuralfunctionals.images.edits import EDITS, OPERATIONS
from neuralfunctionals.images.image_set import EMBEDDED_SETS, FULL_SETS, SPLITS, ImageSet, open_images

__all__ = ["EDITS", "EMBEDDED_SETS", "FULL_SETS", "OPERATIONS", "SPLITS", "ImageSet", "open_images"]
