"""Frequency and convention of sine networks, and the exact conversion between them: `SirenForm`, `convert`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from neuralfunctionals.errors import UserError
from neuralfunctionals.inr.siren import convert_convention, known_form, require_convention, require_siren
from neuralfunctionals.weight_space import Activation, WeightSpaceFeatures


@dataclass(frozen=True)
class SirenForm:
    """The frequency and convention of sine networks: the same weights show something else in another form."""

    omega: float = 30.0
    """Frequency of the sines."""
    convention: str = "paper"
    """`"paper"` or `"dws"`; see `convert_convention`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "omega", float(self.omega))
        if not 0 < self.omega < math.inf:
            raise UserError(
                f"Expected omega, the frequency of the sines, to be positive and finite, but got {self.omega:g}."
            )
        require_convention(self.convention)

    @classmethod
    def from_provenance(cls, made: Mapping[str, Any]) -> SirenForm | None:
        """What a store's provenance, or the data part of a run's config, says; None where it does not say."""
        told = {name: made[name] for name in ("omega", "convention") if name in made}
        if isinstance(told.get("omega"), int):
            told["omega"] = float(told["omega"])
        return cls(**told) if told else None

    @classmethod
    def choose(
        cls, omega: float | None, convention: str | None, *, known: SirenForm | None, assumed: SirenForm, where: object
    ) -> SirenForm:
        """The form that was asked for, where nothing was asked for the known one, and else the assumed one.

        Args:
            omega: The frequency asked for.
            convention: The convention asked for.
            known: What the networks' file says itself; asking for something else is refused.
            assumed: Used where neither says.
            where: The file, for the message.
        """
        rest = known or assumed
        chosen = cls(rest.omega if omega is None else omega, rest.convention if convention is None else convention)
        if known is not None and chosen != known:
            raise UserError(f"{where} says that its networks have {known}, but {chosen} was asked for. Leave it out.")
        return chosen

    def __str__(self) -> str:
        return f"omega {self.omega:g} and convention {self.convention}"


def convert(features: WeightSpaceFeatures, source: SirenForm, target: SirenForm) -> WeightSpaceFeatures:
    r"""Networks that show the same pictures in another form; exact up to rounding.

    Besides `convert_convention`, weights and biases of all layers but the last are scaled:

    $$ \sin(\omega_1 (W x + b)) = \sin(\omega_2 (\tfrac{\omega_1}{\omega_2} W x + \tfrac{\omega_1}{\omega_2} b)) $$

    Args:
        features: Sine networks, one channel or several.
        source: The form they have.
        target: The form to give them.

    Example:
        >>> import torch
        >>> from neuralfunctionals.inr import Siren, image_grid, render
        >>> siren = Siren(omega=20.0, seed=0)
        >>> networks = WeightSpaceFeatures.from_modules([siren])
        >>> converted = convert(networks, SirenForm(omega=20.0), SirenForm(omega=30.0))
        >>> grid = image_grid(4, 4)
        >>> torch.allclose(render(converted, grid, omega=30.0)[0], siren(grid), atol=1e-5)
        True
    """
    if source == target and features.spec.omega is None:
        return features
    require_siren(features.spec)
    known_form(features.spec, source.omega, source.convention)
    if source == target:
        return features
    features = convert_convention(features, source.convention, target.convention)
    if source.omega == target.omega:
        return features
    spec = features.spec
    if spec.omega is not None:
        spec = spec.with_activation(Activation("sine", target.omega), convention=spec.convention)
    ratio, last = source.omega / target.omega, features.spec.num_layers
    scale = features.tensor.new_full((features.spec.num_entries, 1), ratio)
    for group in features.spec.groups:
        if group.layer == last:
            scale[group.start : group.stop] = 1
    return WeightSpaceFeatures(spec, features.tensor * scale)
