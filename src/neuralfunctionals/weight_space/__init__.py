"""The mathematics of weight spaces: specs, packed features and their symmetries."""

from neuralfunctionals.weight_space.axes import Activation, Axis, Group, LayerSpec, Role, Symmetry
from neuralfunctionals.weight_space.convert import spec_from_module, spec_from_state_dict
from neuralfunctionals.weight_space.features import WeightSpaceFeatures, cat, join_groups, pack, stack
from neuralfunctionals.weight_space.function import evaluate_layers, functional_call
from neuralfunctionals.weight_space.permutation import NeuronPermutation
from neuralfunctionals.weight_space.scale_symmetry import ScaleSymmetry
from neuralfunctionals.weight_space.sine_symmetry import SineSymmetry
from neuralfunctionals.weight_space.spec import CONVENTIONS, NetworkSpec
from neuralfunctionals.weight_space.symmetry import NetworkSymmetry, SymmetryElement, canonicalize

__all__ = [
    "CONVENTIONS",
    "Activation",
    "Axis",
    "Group",
    "LayerSpec",
    "NetworkSpec",
    "NetworkSymmetry",
    "NeuronPermutation",
    "Role",
    "ScaleSymmetry",
    "SineSymmetry",
    "Symmetry",
    "SymmetryElement",
    "WeightSpaceFeatures",
    "canonicalize",
    "cat",
    "evaluate_layers",
    "functional_call",
    "join_groups",
    "pack",
    "spec_from_module",
    "spec_from_state_dict",
    "stack",
]
