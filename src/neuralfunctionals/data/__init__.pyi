from neuralfunctionals.cnn import (
    CnnSettings as CnnSettings,
    build_cnn as build_cnn,
)
from neuralfunctionals.data.cnn_dataset import (
    ZooPlan as ZooPlan,
    make_zoo as make_zoo,
)
from neuralfunctionals.data.inr_dataset import (
    FitPlan as FitPlan,
    fit_dataset as fit_dataset,
)
from neuralfunctionals.data.latent_dataset import (
    EncodePlan as EncodePlan,
    encode_dataset as encode_dataset,
)
from neuralfunctionals.data.store import (
    Store as Store,
    StoreError as StoreError,
    StoreHeader as StoreHeader,
)
from neuralfunctionals.data.weight_dataset import (
    WeightDataset as WeightDataset,
    WeightItems as WeightItems,
)
from neuralfunctionals.images import (
    EDITS as EDITS,
    EMBEDDED_SETS as EMBEDDED_SETS,
    FULL_SETS as FULL_SETS,
    OPERATIONS as OPERATIONS,
    SPLITS as SPLITS,
    ImageSet as ImageSet,
    open_images as open_images,
)
