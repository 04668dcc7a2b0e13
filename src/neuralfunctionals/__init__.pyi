from neuralfunctionals import (
    data as data,
    inr as inr,
    layers as layers,
    models as models,
    report as report,
    runs as runs,
    studies as studies,
    tasks as tasks,
    testing as testing,
)
from neuralfunctionals.errors import (
    UserError as UserError,
)
from neuralfunctionals.models import (
    from_pretrained as from_pretrained,
)
from neuralfunctionals.pipelines import (
    list_pretrained as list_pretrained,
    pipeline as pipeline,
)
from neuralfunctionals.runs import (
    experiment as experiment,
)
from neuralfunctionals.weight_space import (
    LayerSpec as LayerSpec,
    NetworkSpec as NetworkSpec,
    NeuronPermutation as NeuronPermutation,
    SineSymmetry as SineSymmetry,
    WeightSpaceFeatures as WeightSpaceFeatures,
    canonicalize as canonicalize,
    cat as cat,
    functional_call as functional_call,
    stack as stack,
)

__version__: str
