"""Equivariant building blocks: features in, features or a tensor out."""

from neuralfunctionals.layers.attention import WeightSpaceSelfAttention
from neuralfunctionals.layers.block import Block, FeedForward
from neuralfunctionals.layers.cross_attention import WeightSpaceCrossAttention
from neuralfunctionals.layers.encoding import FourierFeatures, InputOutputEncoding, LayerEncoding, SinusoidalEncoding
from neuralfunctionals.layers.linear import DWSLinear, HNPLinear, NPLinear, Pointwise
from neuralfunctionals.layers.message_passing import MessagePassing
from neuralfunctionals.layers.norm import LayerNorm, OutputScale, Standardize
from neuralfunctionals.layers.pooling import HNPPool, NPPool, StatFeatures
from neuralfunctionals.layers.projection import Project, Unproject

__all__ = [
    "Block",
    "DWSLinear",
    "FeedForward",
    "FourierFeatures",
    "HNPLinear",
    "HNPPool",
    "InputOutputEncoding",
    "LayerEncoding",
    "LayerNorm",
    "MessagePassing",
    "NPLinear",
    "NPPool",
    "OutputScale",
    "Pointwise",
    "Project",
    "SinusoidalEncoding",
    "Standardize",
    "StatFeatures",
    "Unproject",
    "WeightSpaceCrossAttention",
    "WeightSpaceSelfAttention",
]
