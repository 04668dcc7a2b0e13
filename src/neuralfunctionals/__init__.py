"""Weight-space learning: models that take the weights of other networks as input."""

from neuralfunctionals import layers, models, testing
from neuralfunctionals.weight_space import LayerSpec, NetworkSpec, NeuronPermutation, WeightSpaceFeatures

__version__ = "0.1.0"
__all__ = ["LayerSpec", "NetworkSpec", "NeuronPermutation", "WeightSpaceFeatures", "layers", "models", "testing"]
