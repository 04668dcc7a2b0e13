"""Operations in two forms, plain PyTorch and C++ compiled for this machine: how they are chosen and built."""

from neuralfunctionals.kernels.block import residual_attention, residual_feed_forward
from neuralfunctionals.kernels.choice import KERNELS, build, call, choose_engine, library, prepare, use
from neuralfunctionals.kernels.neuron_update import neuron_update
from neuralfunctionals.kernels.stock import is_stock, stock_parameters

__all__ = [
    "KERNELS",
    "build",
    "call",
    "choose_engine",
    "is_stock",
    "library",
    "neuron_update",
    "prepare",
    "residual_attention",
    "residual_feed_forward",
    "stock_parameters",
    "use",
]
