"""The functions of the first tab, without the page: `Exhibit`, a network and the results of `Models` on it."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from neuralfunctionals.errors import UserError
from neuralfunctionals.inr import SirenForm, convert, fit, initial_weights, render_images
from neuralfunctionals.inr.siren import CONVENTIONS
from neuralfunctionals.tasks import ClassifyTask, EditTask, GeneralizationTask, ReconstructTask
from neuralfunctionals.web.cnns import CNN_SPEC, shipped_predictor
from neuralfunctionals.web.digits import SIZE, read_source
from neuralfunctionals.web.uploads import MAX_NETWORK_BYTES, decode_url, read_network
from neuralfunctionals.weight_space import NetworkSpec, NeuronPermutation, SineSymmetry, WeightSpaceFeatures

# Axes: H rows, W columns, M latents, D latent channels, K classes.

OMEGA = 30.0
FORM = SirenForm(OMEGA)
SPEC = NetworkSpec.mlp([2, 32, 32, 1])
"""The spec of the page's networks."""
FILM_DB = (12.0, 16.0, 22.0, 30.0)
"""PSNR values at which a frame of the fit is recorded."""


@dataclass(frozen=True, eq=False)
class Models:
    """The trained tasks of the page."""

    editors: Mapping[str, EditTask]
    """Editors by the name of their edit."""
    classifier: ClassifyTask
    """Classifier of weights or latents."""
    autoencoder: ReconstructTask
    predictor: GeneralizationTask = field(default_factory=shipped_predictor)
    """Predictor of the accuracy of CNNs. Defaults to the shipped one."""

    def __post_init__(self) -> None:
        readers = [*self.editors.values(), self.autoencoder]
        readers += [self.classifier] if self.classifier.source == "weights" else []
        for task in readers:
            task.require_spec(SPEC, "the page")
        self.predictor.require_spec(CNN_SPEC, "the page")


@dataclass(frozen=True, eq=False)
class Frame:
    """A frame of the fit: the picture of the network after a number of steps."""

    steps: int
    image: Float[Tensor, "H W"]


@dataclass(frozen=True, eq=False)
class Reading:
    """Everything that the models predict from a network's weights."""

    image: Float[Tensor, "H W"]
    probabilities: Float[Tensor, "K"]
    latents: Float[Tensor, "M D"]
    reconstruction: Float[Tensor, "H W"]


@dataclass(frozen=True)
class Changes:
    """The largest changes between two networks: of a weight, a pixel, a probability, a latent.

    Weights and pixels are roughly in [-1, 1]; the change of the latents is relative to their largest value.
    """

    weights: float
    image: float
    probabilities: float
    latents: float

    @property
    def same_answers(self) -> bool:
        """Whether everything but the weights stayed the same, to half a grey level and a thousandth of the others."""
        return self.image < 1 / 255 and self.probabilities < 1e-3 and self.latents < 1e-3


@dataclass(frozen=True, eq=False)
class Exhibit:
    """A network that shows a digit, fitted here or given by a visitor, and the changes made to it.

    Example:
        >>> import numpy as np
        >>> exhibit = Exhibit.fit(np.zeros((28, 28), dtype=np.uint8))
        >>> shuffled = exhibit.shuffled(seed=1)
        >>> torch.allclose(shuffled.image, exhibit.image, atol=1e-4), shuffled.steps
        (True, ('shuffle',))
    """

    fitted: WeightSpaceFeatures
    """The original network, as fitted or as given by the visitor."""
    network: WeightSpaceFeatures
    """The current network."""
    digit: UInt8[np.ndarray, "H W"] | None = None
    """The digit it was fitted to; None for a visitor's network."""
    psnr_db: float | None = None
    """PSNR of the fitted network."""
    film: tuple[Frame, ...] = ()
    """Frames of the fit."""
    steps: tuple[str, ...] = ()
    """The changes since then: names of edits, `shuffle`, `flip`."""
    reading: Reading | None = None
    """The predictions for the current network, after `read`."""

    @classmethod
    def fit(cls, digit: UInt8[np.ndarray, "H W"]) -> Exhibit:
        """Fits a network to a digit; its initial weights depend only on the digit."""
        seed = zlib.crc32(digit.tobytes())
        images = digit[None]
        start = WeightSpaceFeatures.from_vectors(
            SPEC, initial_weights(SPEC, torch.zeros(1, 2, dtype=torch.int64), seed=seed)
        )
        # Training does not depend on where it stops, so each of these is an earlier state of the last one.
        fits = [fit(images, psnr_db=quality, seed=seed, omega=OMEGA, num_threads=1) for quality in (*FILM_DB, None)]
        film = [Frame(0, _render(start)), *(Frame(int(part.steps[0]), _render(part.features)) for part in fits)]
        result = fits[-1]
        return cls(result.features, result.features, digit, float(result.psnr_db[0]), tuple(film))

    @classmethod
    def from_source(cls, source: str) -> Exhibit:
        """Opens what the page sends: a digit (see `read_source`), or `network:OMEGA:CONVENTION:` and a data URL."""
        kind, _, rest = source.partition(":")
        if kind != "network":
            return cls.fit(read_source(source))
        omega, convention, url = [*rest.split(":", 2), "", ""][:3]
        try:
            form = SirenForm(float(omega), convention)
        except ValueError as error:
            known = " or ".join(CONVENTIONS)
            raise UserError(
                f"Expected a positive frequency and a convention, {known}, but got '{omega[:20]}' and "
                f"'{convention[:20]}'."
            ) from error
        content = decode_url(url, "network", max_bytes=MAX_NETWORK_BYTES)
        return cls.open(read_network(content, SPEC, "SIREN"), form)

    @classmethod
    def open(cls, network: WeightSpaceFeatures, form: SirenForm) -> Exhibit:
        """Opens a visitor's network.

        Args:
            network: One sine network of the page's spec.
            form: Its frequency and convention; it is converted to those of the page.
        """
        network = convert(form.label(network), FORM)
        if not bool(_render(network).isfinite().all()):
            raise UserError("The numbers of this network are too large: its picture is not finite. Try another one.")
        return cls(network, network)

    @property
    def image(self) -> Float[Tensor, "H W"]:
        """The picture of the network, roughly in [-1, 1]."""
        return _render(self.network) if self.reading is None else self.reading.image

    def edited(self, models: Models, name: str) -> Exhibit:
        """Returns a copy with weights changed by a trained editor."""
        if name not in models.editors:
            raise UserError(f"Expected an edit, one of {sorted(models.editors)}, but got '{name[:20]}'.")
        return self._with(models.editors[name].edit(self.network, form=FORM).to("cpu"), name)

    def shuffled(self, *, seed: int) -> Exhibit:
        """Returns a copy with its hidden neurons in another order."""
        generator = torch.Generator().manual_seed(seed)
        return self._with(NeuronPermutation.random(SPEC, "HNP", generator)(self.network), "shuffle")

    def flipped(self, *, seed: int) -> Exhibit:
        """Returns a copy with other signs and phases of its hidden neurons."""
        generator = torch.Generator().manual_seed(seed)
        return self._with(SineSymmetry.random(SPEC, OMEGA, max_turns=1, generator=generator)(self.network), "flip")

    def restored(self) -> Exhibit:
        """Returns a copy with the original network."""
        return replace(self, network=self.fitted, steps=(), reading=None)

    def read(self, models: Models) -> Exhibit:
        """Returns a copy with the predictions of the models."""
        if self.reading is not None:
            return self
        with torch.inference_mode():
            latents, classifier = models.autoencoder.encode(self.network, form=FORM), models.classifier
            classifier.model.eval()
            logits = classifier(latents if classifier.source == "latents" else classifier.read(self.network, FORM))
            reconstruction = models.autoencoder.show(latents, SIZE, SIZE)[0, ..., 0]
        self.network.require_finite_answers(logits)
        self.network.require_finite_answers(latents)
        probabilities = logits[0].float().softmax(-1)
        return replace(self, reading=Reading(self.image, probabilities.cpu(), latents[0].cpu(), reconstruction.cpu()))

    def changes(self, before: Exhibit) -> Changes:
        """The changes since an earlier exhibit; both must have predictions."""
        if self.reading is None or before.reading is None:
            raise UserError("Expected two exhibits with predictions. Call read(models) first.")
        new, old = self.reading, before.reading
        return Changes(
            weights=_largest(self.network.tensor, before.network.tensor),
            image=_largest(new.image, old.image),
            probabilities=_largest(new.probabilities, old.probabilities),
            latents=_largest(new.latents, old.latents) / max(float(old.latents.abs().max()), 1e-9),
        )

    def _with(self, network: WeightSpaceFeatures, step: str) -> Exhibit:
        return replace(self, network=network, steps=(*self.steps, step), reading=None)


def _largest(new: Tensor, old: Tensor) -> float:
    return float((new - old).abs().max())


@torch.no_grad()
def _render(network: WeightSpaceFeatures) -> Float[Tensor, "H W"]:
    return render_images(network, SIZE, SIZE)[0, ..., 0]
