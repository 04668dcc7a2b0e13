"""The mathematics of weight spaces: specs, packed features and their symmetries."""

from neuralfunctionals.weight_space.axes import Activation, Axis, Group, LayerSpec, Symmetry
from neuralfunctionals.weight_space.convert import spec_from_module, spec_from_state_dict
from neuralfunctionals.weight_space.features import WeightSpaceFeatures, join_groups, pack
from neuralfunctionals.weight_space.permutation import NeuronPermutation
from neuralfunctionals.weight_space.sine_symmetry import SineSymmetry, canonicalize
from neuralfunctionals.weight_space.spec import NetworkSpec

__all__ = [
    "Activation",
    "Axis",
    "Group",
    "LayerSpec",
    "NetworkSpec",
    "NeuronPermutation",
    "SineSymmetry",
    "Symmetry",
    "WeightSpaceFeatures",
    "canonicalize",
    "join_groups",
    "pack",
    "spec_from_module",
    "spec_from_state_dict",
]
