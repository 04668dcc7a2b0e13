"""The functions of the second tab, without the page: `Cnn`, an image classifier and its predicted accuracy."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file

from neuralfunctionals.cnn.settings import cnn_spec
from neuralfunctionals.errors import UserError
from neuralfunctionals.models import from_pretrained
from neuralfunctionals.tasks import GeneralizationTask
from neuralfunctionals.web.uploads import MAX_NETWORK_BYTES, decode_url, read_network
from neuralfunctionals.weight_space import NeuronPermutation, WeightSpaceFeatures

CNN_SPEC = cnn_spec()
"""The CNNs of the page: those of the zoo, for grey images of ten classes."""
SAMPLES_FILE = Path(__file__).with_name("cnn_samples.safetensors")
"""Written by `tools/sample_cnns.py`: `weights` (networks, entries) and their measured `test_accuracy`."""


@dataclass(frozen=True, eq=False)
class Cnn:
    """An image classifier and its predicted accuracy.

    Example:
        >>> cnn = samples()[0].read(shipped_predictor())
        >>> cnn.predicted is not None and 0 < cnn.predicted < 1
        True
    """

    network: WeightSpaceFeatures
    name: str
    measured: float | None = None
    """Its measured test accuracy; None for a visitor's network."""
    predicted: float | None = None
    """Its predicted accuracy, after `read`."""

    @classmethod
    def from_source(cls, source: str) -> Cnn:
        """Opens what the page sends: `sample:3`, or a file as a data URL."""
        kind, _, rest = source.partition(":")
        if kind != "sample":
            content = decode_url(source, "network", max_bytes=MAX_NETWORK_BYTES)
            return cls(read_network(content, CNN_SPEC, "CNN"), "your network")
        if rest not in {str(number) for number in range(len(samples()))}:
            raise UserError(f"Expected a sample from 0 to {len(samples()) - 1}, but got '{rest[:20]}'.")
        return samples()[int(rest)]

    def read(self, predictor: GeneralizationTask) -> Cnn:
        """Returns a copy with its predicted accuracy."""
        return self if self.predicted is not None else replace(self, predicted=float(predictor.predict(self.network)))

    def shuffled(self, *, seed: int) -> Cnn:
        """Returns a copy with its hidden neurons in another order: the same function, without a prediction yet."""
        permutation = NeuronPermutation.random(CNN_SPEC, "HNP", torch.Generator().manual_seed(seed))
        return replace(self, network=permutation(self.network), predicted=None)


@functools.cache
def samples() -> tuple[Cnn, ...]:
    """The embedded CNNs, named by letters."""
    tensors = load_file(SAMPLES_FILE)
    networks = WeightSpaceFeatures.from_vectors(CNN_SPEC, tensors["weights"])
    return tuple(
        Cnn(networks[k : k + 1], f"network {chr(ord('A') + k)}", float(accuracy))
        for k, accuracy in enumerate(tensors["test_accuracy"])
    )


def shipped_predictor() -> GeneralizationTask:
    """The shipped model that predicts the accuracy of CNNs."""
    return GeneralizationTask(from_pretrained("cnn-accuracy"))
