"""What we learn from: image sets, editing targets, and stores of fitted networks."""

from neuralfunctionals.cnn import CnnSettings, build_cnn
from neuralfunctionals.data.cnn_dataset import ZooPlan, make_zoo
from neuralfunctionals.data.inr_dataset import FitPlan, fit_dataset
from neuralfunctionals.data.latent_dataset import EncodePlan, encode_dataset
from neuralfunctionals.data.store import Store, StoreError, StoreHeader
from neuralfunctionals.data.weight_dataset import WeightDataset, WeightItems
from neuralfunctionals.images import EDITS, EMBEDDED_SETS, FULL_SETS, OPERATIONS, SPLITS, ImageSet, open_images

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
