from neuralfunctionals.weight_space.axes import (
    Activation as Activation,
    Axis as Axis,
    Group as Group,
    LayerSpec as LayerSpec,
    Role as Role,
    Symmetry as Symmetry,
)
from neuralfunctionals.weight_space.convert import (
    spec_from_module as spec_from_module,
    spec_from_state_dict as spec_from_state_dict,
)
from neuralfunctionals.weight_space.features import (
    WeightSpaceFeatures as WeightSpaceFeatures,
    cat as cat,
    join_groups as join_groups,
    pack as pack,
    stack as stack,
)
from neuralfunctionals.weight_space.function import (
    evaluate_layers as evaluate_layers,
    functional_call as functional_call,
    output_slopes as output_slopes,
)
from neuralfunctionals.weight_space.permutation import (
    NeuronPermutation as NeuronPermutation,
)
from neuralfunctionals.weight_space.scale_symmetry import (
    ScaleSymmetry as ScaleSymmetry,
)
from neuralfunctionals.weight_space.sine_symmetry import (
    SineSymmetry as SineSymmetry,
)
from neuralfunctionals.weight_space.spec import (
    CONVENTIONS as CONVENTIONS,
    NetworkSpec as NetworkSpec,
)
from neuralfunctionals.weight_space.symmetry import (
    NetworkSymmetry as NetworkSymmetry,
    SymmetryElement as SymmetryElement,
    canonicalize as canonicalize,
)
