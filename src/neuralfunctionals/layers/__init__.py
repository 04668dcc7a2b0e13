"""Equivariant building blocks: features in, features or a tensor out."""

from neuralfunctionals.layers.attention import WeightSpaceSelfAttention
from neuralfunctionals.layers.block import Block, FeedForward
from neuralfunctionals.layers.cross_attention import WeightSpaceCrossAttention
from neuralfunctionals.layers.encoding import FourierFeatures, InputOutputEncoding, LayerEncoding, SinusoidalEncoding
from neuralfunctionals.layers.image_probes import ImageProbes
from neuralfunctionals.layers.linear import DWSLinear, HNPLinear, NPLinear, Pointwise
from neuralfunctionals.layers.neuron_states import NeuronStates
from neuralfunctionals.layers.norm import LayerNorm, OutputScale, Standardize
from neuralfunctionals.layers.pooling import HNPPool, NPPool, StatFeatures
from neuralfunctionals.layers.probes import Probes
from neuralfunctionals.layers.projection import Project, Unproject

__all__ = [
    "Block",
    "DWSLinear",
    "FeedForward",
    "FourierFeatures",
    "HNPLinear",
    "HNPPool",
    "ImageProbes",
    "InputOutputEncoding",
    "LayerEncoding",
    "LayerNorm",
    "NPLinear",
    "NPPool",
    "NeuronStates",
    "OutputScale",
    "Pointwise",
    "Probes",
    "Project",
    "SinusoidalEncoding",
    "Standardize",
    "StatFeatures",
    "Unproject",
    "WeightSpaceCrossAttention",
    "WeightSpaceSelfAttention",
]
