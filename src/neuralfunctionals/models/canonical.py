"""Any model, made to see networks without their signs, phases and scales: `Canonical`."""

from collections.abc import Mapping
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from neuralfunctionals.errors import UserError
from neuralfunctionals.imports import path_of
from neuralfunctionals.models.pretrained import Pretrained, construct, model_class
from neuralfunctionals.weight_space import NetworkSpec, Symmetry, SymmetryElement, WeightSpaceFeatures, canonicalize
from neuralfunctionals.weight_space.sine_symmetry import require_sine


def _to_config(model: Any) -> dict[str, Any]:
    return {"class": path_of(type(model)), "config": model._hub_mixin_config}


class Canonical(nn.Module, Pretrained, coders={Pretrained: (_to_config, lambda config: config)}):
    r"""Gives a model the canonical form of its input, and carries its answer back.

    With $c = g x$ the canonical form of the networks $x$ (see `canonicalize`), it returns $f(c)$ if that is a tensor.
    If it is features of the same networks, they are taken for an edit: $c + f(c)$ becomes $x + g^{-1} f(c)$, where
    $g^{-1}$ acts on differences.

    Symmetry: that of the model, joined with `spec.symmetry`: for sine networks signs and half turns. An editor's answer
    follows them,
    `model(g(x)) == g.on_differences(model(x))`; a classifier's stays the same.

    Args:
        model: Takes features and returns features or a tensor: `NFT`, `NFN`, `DWSNet`, `NeuronGraphNet`, `SpatialNFN`.
            `Inr2Array` has it built in: `Inr2Array(canonical="sine")`.
        omega: Frequency of sine networks whose spec does not know it. Defaults to 30. Networks with another known
            activation have the symmetries of that one.

    Example:
        >>> from neuralfunctionals.models import NeuronGraphNet
        >>> reader = Canonical(NeuronGraphNet.classification(NetworkSpec.mlp([2, 32, 32, 1])), omega=30.0)
    """

    def __init__(self, model: nn.Module, *, omega: float | None = None) -> None:
        super().__init__()
        described: Any = model
        if hasattr(model, "decode"):
            raise UserError(
                f"Expected a model whose features are an edit of its input, but {type(model).__name__} decodes other "
                f"networks. Its encoder alone needs the canonical form: {type(model).__name__}(canonical='sine')."
            )
        self.spec: NetworkSpec = described.spec
        if self.spec.activation is None:
            omega = 30.0 if omega is None else omega
            require_sine(self.spec, omega)
        elif omega is not None and omega != self.spec.omega:
            raise UserError(f"Expected networks of frequency {omega:g}, but theirs have {self.spec.activation}.")
        self.in_channels, self.out_channels = getattr(model, "in_channels", 1), getattr(model, "out_channels", None)
        self.symmetry: Symmetry = getattr(model, "symmetry", "HNP")
        self.model = model
        self.omega = omega

    def forward(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures | Float[Tensor, "B *out"]:
        features.require_spec(self.spec, "Canonical")
        canonical, element = self._canonicalize(features)
        output = self.model(canonical)
        return element.inverse().on_differences(output) if isinstance(output, WeightSpaceFeatures) else output

    def arrange(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures:
        """The canonical form, which the model then finds done: training asks for that of many networks at once."""
        return self._canonicalize(features)[0]

    def _canonicalize(self, features: WeightSpaceFeatures) -> tuple[WeightSpaceFeatures, SymmetryElement]:
        if self.spec.activation is not None:
            return self.spec.symmetry.canonicalize(features)
        return canonicalize(features, self.omega)

    @classmethod
    def decode_config(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        inner = model_class(config.get("model", {}).get("class"))
        return {**config, "model": construct(inner, inner.decode_config(config["model"]["config"]))}
