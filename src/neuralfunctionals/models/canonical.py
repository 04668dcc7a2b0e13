"""Wraps a model to see networks without their signs, phases and scales: `Canonical`."""

from collections.abc import Mapping
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from neuralfunctionals.errors import UserError
from neuralfunctionals.imports import path_of
from neuralfunctionals.models.pretrained import Pretrained, construct, decode_symmetry, model_class
from neuralfunctionals.weight_space import NetworkSpec, NetworkSymmetry, Symmetry, WeightSpaceFeatures
from neuralfunctionals.weight_space.symmetry import default_symmetry


def _to_config(model: Any) -> dict[str, Any]:
    return {"class": path_of(type(model)), "config": model._hub_mixin_config}


class Canonical(nn.Module, Pretrained, coders={Pretrained: (_to_config, lambda config: config)}):
    r"""Wraps a model: canonicalizes its input and maps its output back.

    With $c = g x$ the canonical form of the networks $x$ (see `canonicalize`), it returns $f(c)$ if that is a tensor.
    If it is features of the same networks, they are taken as an edit: $c + f(c)$ becomes $x + g^{-1} f(c)$, where
    $g^{-1}$ acts on differences.

    Symmetry: that of the model and `spec.symmetry` (for sine networks, signs and half turns). Editors are equivariant,
    `model(g(x)) == g.on_differences(model(x))`; classifiers are invariant.

    Args:
        model: Takes features and returns features or a tensor: `NFT`, `NFN`, `DWSNet`, `NeuronGraphNet`, `SpatialNFN`.
            `Inr2Array` has it built in: `Inr2Array(canonical=spec.symmetry)`.
        symmetry: The symmetry to remove. Defaults to `model.spec.symmetry`; for a spec of unknown activation, to that
            of sine networks of frequency 30.

    Example:
        >>> from neuralfunctionals.models import NeuronGraphNet
        >>> spec = NetworkSpec.siren([2, 32, 32, 1])
        >>> model = Canonical(NeuronGraphNet.classification(spec), symmetry=spec.symmetry)
    """

    def __init__(self, model: nn.Module, *, symmetry: NetworkSymmetry | None = None) -> None:
        super().__init__()
        described: Any = model
        if hasattr(model, "decode"):
            raise UserError(
                f"Expected a model whose features are an edit of its input, but {type(model).__name__} decodes other "
                "networks. Its encoder alone needs the canonical form: "
                f"{type(model).__name__}(canonical=spec.symmetry)."
            )
        self.spec: NetworkSpec = described.spec
        self.canonical = symmetry or default_symmetry(self.spec)
        """The symmetry that is removed from the model's input."""
        if not self.canonical.spec.matches(self.spec):
            raise UserError(
                f"Expected the symmetry of networks {self.spec}, which the model takes, but got {self.canonical}."
            )
        self.in_channels, self.out_channels = getattr(model, "in_channels", 1), getattr(model, "out_channels", None)
        self.symmetry: Symmetry = getattr(model, "symmetry", "HNP")
        self.model = model

    def forward(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures | Float[Tensor, "B *out"]:
        features.require_spec(self.spec, "Canonical")
        canonical, element = self.canonical.canonicalize(features)
        output = self.model(canonical)
        return element.inverse().on_differences(output) if isinstance(output, WeightSpaceFeatures) else output

    @classmethod
    def decode_config(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        inner = model_class(config.get("model", {}).get("class"))
        model = construct(inner, inner.decode_config(config["model"]["config"]))
        return {**config, "model": model, "symmetry": decode_symmetry(config.get("symmetry"))}
