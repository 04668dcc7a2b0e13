"""The models that recipes name, and which of their arguments a recipe leaves open: `FUNCTIONALS`, `build_model`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from neuralfunctionals.layers import Block
from neuralfunctionals.models import NFN, NFT, NeuronGraphNet, StatNN
from neuralfunctionals.weight_space import NetworkSpec


@dataclass(frozen=True)
class Functional:
    """A model's class, and the arguments that its name stands for."""

    make: Callable[..., nn.Module]
    fixed: Mapping[str, Any] = field(default_factory=dict)


FUNCTIONALS: dict[str, Functional] = {
    "nft": Functional(NFT, {"symmetry": "NP"}),
    "nft-hnp": Functional(NFT, {"symmetry": "HNP", "io_encoding": False}),
    "nfn-np": Functional(NFN, {"symmetry": "NP"}),
    "nfn-hnp": Functional(NFN, {"symmetry": "HNP"}),
    "statnn": Functional(StatNN),
    "neuron-graph": Functional(NeuronGraphNet),
}
"""Models by name."""


def build_model(name: str, spec: NetworkSpec, options: Mapping[str, Any], *, seed: int, compiled: bool) -> nn.Module:
    """A model with its first parameters, which follow from the seed.

    Args:
        name: One of `FUNCTIONALS`.
        spec: The input networks.
        options: Further arguments of its constructor.
        seed: Seed of the first parameters; the random numbers outside are left alone.
        compiled: Whether to compile its blocks, or the whole where there are none.
    """
    functional = FUNCTIONALS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = functional.make(spec, **functional.fixed, **options)
    if compiled:
        # Blocks share their code: compiled once, used by all.
        for part in [m for m in model.modules() if isinstance(m, Block)] or [model]:
            part.compile()
    return model
