"""What we learn from: image sets, editing targets, and stores of fitted networks."""

from neuralfunctionals.data.edits import EDITS
from neuralfunctionals.data.images import EMBEDDED_SETS, FULL_SETS, SPLITS, ImageSet, open_images
from neuralfunctionals.data.inr_dataset import FitPlan, fit_dataset
from neuralfunctionals.data.run_directory import RunDirectory
from neuralfunctionals.data.store import Store, StoreError, StoreHeader
from neuralfunctionals.data.weight_dataset import WeightDataset, WeightItems

__all__ = [
    "EDITS",
    "EMBEDDED_SETS",
    "FULL_SETS",
    "SPLITS",
    "FitPlan",
    "ImageSet",
    "RunDirectory",
    "Store",
    "StoreError",
    "StoreHeader",
    "WeightDataset",
    "WeightItems",
    "fit_dataset",
    "open_images",
]
