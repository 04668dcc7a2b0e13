"""Frequency and convention of sine networks, and the exact conversion between them: `SirenForm`, `convert`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from neuralfunctionals.errors import UserError
from neuralfunctionals.inr.siren import (
    can_be_siren,
    convert_convention,
    known_form,
    layer_omegas,
    require_convention,
)
from neuralfunctionals.weight_space import Activation, NetworkSpec, WeightSpaceFeatures
from neuralfunctionals.weight_space.axes import DEFAULT_OMEGA

# Axes: N packed entries.


@dataclass(frozen=True)
class SirenForm:
    """The frequency and convention of sine networks; the same weights show a different picture in another form."""

    omega: float = DEFAULT_OMEGA
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
        """The form recorded in a store's provenance or in the data part of a run's config; None if there is none."""
        told = {name: made[name] for name in ("omega", "convention") if name in made}
        if isinstance(told.get("omega"), int):
            told["omega"] = float(told["omega"])
        return cls(**told) if told else None

    @classmethod
    def of(cls, spec: NetworkSpec, assumed: SirenForm | None = None) -> SirenForm:
        """The form that a spec records; missing parts come from `assumed`, by default 30 and `"paper"`.

        Raises:
            ValueError: If these cannot be sine networks.
        """
        own = cls(*known_form(spec))
        rest = assumed or own
        return cls(
            rest.omega if spec.omega is None else own.omega,
            rest.convention if spec.convention is None else own.convention,
        )

    def complete(self, spec: NetworkSpec) -> NetworkSpec:
        """The spec with this form, if it does not record one; raises if it records another."""
        own = SirenForm.of(spec, assumed=self)
        if own != self:
            raise UserError(f"Expected networks with {self}, but these have {own}. Convert them with nf.inr.convert.")
        if (spec.omega, spec.convention) == (self.omega, self.convention):
            return spec
        return spec.with_activation(Activation("sine", self.omega), convention=self.convention)

    def label(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures:
        """The same networks with a spec that records this form; see `complete`."""
        spec = self.complete(features.spec)
        return features if spec is features.spec else WeightSpaceFeatures.unchecked(spec, features.tensor)

    @classmethod
    def choose(
        cls,
        omega: float | None,
        convention: str | None,
        *,
        known: SirenForm | NetworkSpec | None,
        assumed: SirenForm,
        where: object,
    ) -> SirenForm:
        """The requested form, or else the known one, or else the assumed one.

        Args:
            omega: The requested frequency.
            convention: The requested convention.
            known: What the networks record, such as their spec; requesting something else is an error.
            assumed: Used for parts that are neither requested nor known.
            where: The networks, for the message.
        """
        chosen: dict[str, Any] = {}
        for name, value in (("omega", omega), ("convention", convention)):
            recorded = getattr(known, name, None)
            if None not in (value, recorded) and value != recorded:
                raise UserError(f"{where} records {name} {recorded}, but {value} was requested. Leave it out.")
            chosen[name] = next(x for x in (value, recorded, getattr(assumed, name)) if x is not None)
        return cls(**chosen)

    def __str__(self) -> str:
        return f"omega {self.omega:g} and convention {self.convention}"


def convert(features: WeightSpaceFeatures, target: SirenForm | NetworkSpec) -> WeightSpaceFeatures:
    r"""Networks that show the same pictures in another form; exact up to rounding.

    Besides `convert_convention`, weights and biases of all layers but the last are scaled:

    $$ \sin(\omega_1 (W x + b)) = \sin(\omega_2 (\tfrac{\omega_1}{\omega_2} W x + \tfrac{\omega_1}{\omega_2} b)) $$

    Args:
        features: Sine networks, one channel or several. Their spec records their form; see `SirenForm.of`.
        target: The form to convert to, or a spec that records it.

    Example:
        >>> import torch
        >>> from neuralfunctionals.inr import Siren, image_grid, render
        >>> siren = Siren(omega=20.0, seed=0)
        >>> converted = convert(WeightSpaceFeatures.from_modules([siren]), SirenForm(omega=30.0))
        >>> converted.spec.omega
        30.0
        >>> grid = image_grid(4, 4)
        >>> torch.allclose(render(converted, grid)[0], siren(grid), atol=1e-5)
        True
    """
    features, _ = with_one_frequency(features)
    source = SirenForm.of(features.spec)
    if isinstance(target, NetworkSpec):
        target = SirenForm.of(target, assumed=source)
    if source == target:
        return features
    features = convert_convention(features, target.convention)
    if source.omega == target.omega:
        return features
    return _with_omega(features, [source.omega] * (features.spec.num_layers - 1), target.omega)[0]


def with_one_frequency(features: WeightSpaceFeatures) -> tuple[WeightSpaceFeatures, Float[Tensor, "N 1"]]:
    """Sine networks whose layers have different frequencies, converted to that of the first layer; exact.

    Returns:
        The networks, and the factor that each entry was multiplied by. Other networks are returned unchanged.
    """
    omegas = layer_omegas(features.spec) if can_be_siren(features.spec) else []
    if len(set(omegas)) < 2:
        return features, features.tensor.new_ones(features.spec.num_entries, 1)
    return _with_omega(features, omegas, omegas[0])


def _with_omega(
    features: WeightSpaceFeatures, omegas: Sequence[float], omega: float
) -> tuple[WeightSpaceFeatures, Float[Tensor, "N 1"]]:
    """Networks with one frequency instead of these of their hidden layers, and the factors of the entries."""
    spec = features.spec.with_activation(Activation("sine", omega), convention=features.spec.convention)
    factors = features.tensor.new_ones(spec.num_entries, 1)
    for group in spec.groups:
        if group.layer < spec.num_layers:
            factors[group.start : group.stop] = omegas[group.layer - 1] / omega
    return WeightSpaceFeatures(spec, features.tensor * factors), factors
