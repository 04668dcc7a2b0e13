"""The models that recipes name, and which of their arguments a recipe leaves open: `FUNCTIONALS`, `build_model`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from neuralfunctionals.layers import Block
from neuralfunctionals.models import NFN, NFT, Canonical, DWSNet, NeuronGraphNet, SpatialNFN, StatNN
from neuralfunctionals.weight_space import NetworkSpec


@dataclass(frozen=True)
class Functional:
    """A model's class, and the arguments that its name stands for."""

    make: Callable[..., nn.Module]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    set_by_data: tuple[str, ...] = ()
    """Arguments that follow from the data."""
    has_canonical: bool = False
    """Whether its argument `canonical` does what otherwise a `Canonical` around it does."""


FUNCTIONALS: dict[str, Functional] = {
    "nft-states": Functional(NFT, {"symmetry": "NP"}),
    "nft": Functional(NFT, {"symmetry": "NP"}),
    "nft-hnp": Functional(NFT, {"symmetry": "HNP", "io_encoding": False}),
    "nfn-np": Functional(NFN, {"symmetry": "NP"}),
    "nfn-hnp": Functional(NFN, {"symmetry": "HNP"}),
    "spatial-nfn": Functional(SpatialNFN),
    "dws": Functional(DWSNet),
    "statnn": Functional(StatNN),
    "neuron-graph": Functional(NeuronGraphNet),
}
"""Models by name."""


def build_model(
    name: str,
    spec: NetworkSpec | None,
    options: Mapping[str, Any],
    *,
    seed: int,
    compiled: bool,
    functionals: Mapping[str, Functional] = FUNCTIONALS,
    canonical: str = "none",
    omega: float = 30.0,
) -> nn.Module:
    """A model with its first parameters, which follow from the seed.

    Args:
        name: One of the functionals.
        spec: The input networks; none for a model of latents.
        options: Further arguments of its constructor.
        seed: Seed of the first parameters; the random numbers outside are left alone.
        compiled: Whether to compile its blocks, or the whole where there are none.
        functionals: Models by name.
        canonical: `"sine"` gives it sine networks without their signs and phases.
        omega: Their frequency.
    """
    functional = functionals[name]
    inside = {"canonical": canonical, "omega": omega} if functional.has_canonical else {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        first = () if spec is None else (spec,)
        model = functional.make(*first, **functional.fixed, **{**inside, **options})
    if canonical == "sine" and not functional.has_canonical:
        model = Canonical(model, omega=omega)
    if compiled:
        # Blocks share their code: compiled once, used by all.
        for part in [m for m in model.modules() if isinstance(m, Block)] or [model]:
            part.compile()
    return model


def load_model(functional: Functional, path: str | os.PathLike[str], *, canonical: str = "none") -> nn.Module:
    """A model that `build_model` made and `save_pretrained` wrote."""
    make: Any = Canonical if canonical == "sine" and not functional.has_canonical else functional.make
    return make.from_pretrained(path)
