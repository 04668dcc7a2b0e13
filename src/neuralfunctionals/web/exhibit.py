"""What the first tab of the page can do, without the page: `Exhibit`, a network, and what `Models` make of it."""

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
"""The networks of the page."""
FILM_DB = (12.0, 16.0, 22.0, 30.0)
"""Qualities at which the film of a fit has a picture."""


@dataclass(frozen=True, eq=False)
class Models:
    """Trained tasks of the page."""

    editors: Mapping[str, EditTask]
    """By the name of their edit."""
    classifier: ClassifyTask
    """Of weights or latents."""
    autoencoder: ReconstructTask
    predictor: GeneralizationTask = field(default_factory=shipped_predictor)
    """Of the accuracy of CNNs; defaults to the shipped one."""

    def __post_init__(self) -> None:
        readers = [*self.editors.values(), self.autoencoder]
        readers += [self.classifier] if self.classifier.source == "weights" else []
        for task in readers:
            task.require_spec(SPEC, "the page")
        self.predictor.require_spec(CNN_SPEC, "the page")


@dataclass(frozen=True, eq=False)
class Frame:
    """A picture of the film: what the network showed after so many steps."""

    steps: int
    image: Float[Tensor, "H W"]


@dataclass(frozen=True, eq=False)
class Reading:
    """All that can be read from a network's weights."""

    image: Float[Tensor, "H W"]
    probabilities: Float[Tensor, "K"]
    latents: Float[Tensor, "M D"]
    reconstruction: Float[Tensor, "H W"]


@dataclass(frozen=True)
class Changes:
    """The largest changes between two networks: of a weight, a pixel, a probability, a latent.

    Weights and pixels lie about in [-1, 1]; the change of the latents is relative to their largest value.
    """

    weights: float
    image: float
    probabilities: float
    latents: float

    @property
    def same_answers(self) -> bool:
        """Whether all but the weights stayed the same: less than half a grey level, and a thousandth of the others."""
        return self.image < 1 / 255 and self.probabilities < 1e-3 and self.latents < 1e-3


@dataclass(frozen=True, eq=False)
class Exhibit:
    """A network that shows a digit, fitted here or a visitor's own, and what became of it.

    Example:
        >>> import numpy as np
        >>> exhibit = Exhibit.fit(np.zeros((28, 28), dtype=np.uint8))
        >>> shuffled = exhibit.shuffled(seed=1)
        >>> torch.allclose(shuffled.image, exhibit.image, atol=1e-4), shuffled.steps
        (True, ('shuffle',))
    """

    fitted: WeightSpaceFeatures
    """The network as it was fitted, or as the visitor gave it."""
    network: WeightSpaceFeatures
    """The network as it is."""
    digit: UInt8[np.ndarray, "H W"] | None = None
    """What it was fitted to; not known of a visitor's own network."""
    psnr_db: float | None = None
    """How well the fitted network shows the digit."""
    film: tuple[Frame, ...] = ()
    """Its training."""
    steps: tuple[str, ...] = ()
    """What was done since: names of edits, `shuffle`, `flip`."""
    reading: Reading | None = None
    """What the models read from the network as it is, once they were asked."""

    @classmethod
    def fit(cls, digit: UInt8[np.ndarray, "H W"]) -> Exhibit:
        """Fits a network to a digit; its first weights follow from the digit alone."""
        seed = zlib.crc32(digit.tobytes())
        images = digit[None]
        start = WeightSpaceFeatures.from_vectors(
            SPEC, initial_weights(SPEC, torch.zeros(1, 2, dtype=torch.int64), seed=seed)
        )
        # Training is the same up to where it stops: each of these is the last one at an earlier time.
        fits = [fit(images, psnr_db=quality, seed=seed, omega=OMEGA, num_threads=1) for quality in (*FILM_DB, None)]
        film = [Frame(0, _render(start)), *(Frame(int(part.steps[0]), _render(part.features)) for part in fits)]
        result = fits[-1]
        return cls(result.features, result.features, digit, float(result.psnr_db[0]), tuple(film))

    @classmethod
    def from_source(cls, source: str) -> Exhibit:
        """What the page sends: a digit (see `read_source`), or `network:OMEGA:CONVENTION:` and a data URL."""
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
        """A visitor's own network.

        Args:
            network: One sine network of the page's spec.
            form: Its frequency and convention; it is converted to those of the page.
        """
        network = convert(form.label(network), FORM)
        if not bool(_render(network).isfinite().all()):
            raise UserError("The numbers of this network are too large: what it shows is not finite. Try another one.")
        return cls(network, network)

    @property
    def image(self) -> Float[Tensor, "H W"]:
        """What the network shows, in [-1, 1] up to the quality of the fit."""
        return _render(self.network) if self.reading is None else self.reading.image

    def edited(self, models: Models, name: str) -> Exhibit:
        """Its weights changed by a trained editor."""
        if name not in models.editors:
            raise UserError(f"Expected an edit, one of {sorted(models.editors)}, but got '{name[:20]}'.")
        return self._with(models.editors[name].edit(self.network, form=FORM).to("cpu"), name)

    def shuffled(self, *, seed: int) -> Exhibit:
        """Its hidden neurons in another order."""
        generator = torch.Generator().manual_seed(seed)
        return self._with(NeuronPermutation.random(SPEC, "HNP", generator)(self.network), "shuffle")

    def flipped(self, *, seed: int) -> Exhibit:
        """Its hidden neurons with other signs and half turns of their sines."""
        generator = torch.Generator().manual_seed(seed)
        return self._with(SineSymmetry.random(SPEC, OMEGA, max_turns=1, generator=generator)(self.network), "flip")

    def restored(self) -> Exhibit:
        """The network as it was fitted."""
        return replace(self, network=self.fitted, steps=(), reading=None)

    def read(self, models: Models) -> Exhibit:
        """The same, with what the models read from it."""
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
        """How far it is from an earlier one, both read."""
        if self.reading is None or before.reading is None:
            raise UserError("Expected two exhibits that were read. Call read(models) first.")
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
