from neuralfunctionals.images.edits import (
    EDITS as EDITS,
    OPERATIONS as OPERATIONS,
)
from neuralfunctionals.images.image_set import (
    EMBEDDED_SETS as EMBEDDED_SETS,
    FULL_SETS as FULL_SETS,
    ImageSet as ImageSet,
    open_images as open_images,
)
from neuralfunctionals.images.splits import SPLITS as SPLITS
