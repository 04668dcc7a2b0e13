"""What we learn from: image sets, editing targets, and stores of fitted networks."""

from neuralfunctionals.data.cnn_settings import CnnSettings, build_cnn
from neuralfunctionals.data.cnn_zoo import ZooPlan, make_zoo
from neuralfunctionals.data.edits import EDITS, OPERATIONS
from neuralfunctionals.data.images import EMBEDDED_SETS, FULL_SETS, SPLITS, ImageSet, open_images
from neuralfunctionals.data.inr_dataset import FitPlan, fit_dataset
from neuralfunctionals.data.latent_dataset import EncodePlan, encode_dataset
from neuralfunctionals.data.run_directory import RunDirectory
from neuralfunctionals.data.store import Store, StoreError, StoreHeader
from neuralfunctionals.data.weight_dataset import WeightDataset, WeightItems

__all__ = [
    "EDITS",
    "EMBEDDED_SETS",
    "FULL_SETS",
    "OPERATIONS",
    "SPLITS",
    "CnnSettings",
    "EncodePlan",
    "FitPlan",
    "ImageSet",
    "RunDirectory",
    "Store",
    "StoreError",
    "StoreHeader",
    "WeightDataset",
    "WeightItems",
    "ZooPlan",
    "build_cnn",
    "encode_dataset",
    "fit_dataset",
    "make_zoo",
    "open_images",
]
