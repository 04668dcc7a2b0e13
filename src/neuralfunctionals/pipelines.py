"""Trained models that can be called on networks in any format: `pipeline`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neuralfunctionals.data.formats.given import GivenNetworks, read_given
from neuralfunctionals.errors import UserError
from neuralfunctionals.inr import SirenForm
from neuralfunctionals.runs import TrainedRun, open_run
from neuralfunctionals.shipped import SHIPPED
from neuralfunctionals.tasks import ClassifyTask
from neuralfunctionals.weight_space import WeightSpaceFeatures

# Axes: B input networks, K classes.

_BATCH_SIZE = 256


class Classification(NamedTuple):
    """The prediction of a classifier for one network."""

    label: int
    probability: float
    """Probability of this label."""
    probabilities: list[float]
    """Probabilities of all labels; they sum to 1."""


class Pipeline:
    """A trained model that accepts networks in any format; see `pipeline`."""

    def __init__(self, opened: TrainedRun) -> None:
        self.task: Any = opened.task
        self.name = opened.directory.path.name
        if isinstance(self.task, ClassifyTask) and self.task.source == "latents":
            raise UserError(
                f"The classifier {self.name} reads latents, not networks. Encode the networks with the pipeline of its "
                "Inr2Array first, and pass the latents to open_run(...).task.classify."
            )

    @torch.no_grad()
    def __call__(
        self,
        networks: Any,
        *,
        omega: float | None = None,
        convention: str | None = None,
        layers: str | Sequence[str] | None = None,
        module: nn.Module | None = None,
    ) -> Any:
        """Runs the model.

        Args:
            networks: A module, a `state_dict`, the path of a file (`.pth`, `.pt`, `.ckpt`, `.safetensors`), a list of
                these, features, an `.npz` file, or a store (`WeightDataset` or the path of its folder).
            omega: Frequency of sine networks. Defaults to the frequency that they record (a `Siren`, an `.npz` file, a
                store), or else to that of the networks the model was trained on.
            convention: Their SIREN convention, `"paper"` or `"dws"`, with the same default.
            layers: Names of the layers from input to output, if a `state_dict` allows several orders.
            module: A module with the architecture of the `state_dict`.

        Returns:
            One result for one network, or a list for several: a `Classification`, a predicted accuracy, or the edited
            network, with the type and dtype of the input. Latents are returned as one tensor.
        """
        is_read = isinstance(networks, GivenNetworks)
        given = networks if is_read else read_given(networks, layers=layers, module=module)
        return self._run(given, self.choose_form(given, omega, convention))

    def choose_form(self, given: GivenNetworks, omega: float | None, convention: str | None) -> SirenForm | None:
        """Frequency and convention of sine networks: as requested, else as recorded, else those of the model."""
        assumed = self.task.form
        if assumed is None:
            return None
        return SirenForm.choose(omega, convention, known=given.features.spec, assumed=assumed, where=given.where)

    def _run(self, given: GivenNetworks, form: SirenForm | None) -> Any:
        features = given.features
        batches = [features[start : start + _BATCH_SIZE] for start in range(0, len(features), _BATCH_SIZE)]
        answers = [self._answer(batch, form) for batch in batches]
        if isinstance(answers[0], WeightSpaceFeatures):
            return given.restore(WeightSpaceFeatures.concatenate(answers))
        found = torch.cat(answers).cpu()
        if found.ndim > 2:  # latents
            return found[0] if given.is_single else found
        single: Callable[[Tensor], Any] = _classification if isinstance(self.task, ClassifyTask) else Tensor.item
        made = [single(answer) for answer in found]
        return made[0] if given.is_single else made

    def _answer(self, batch: WeightSpaceFeatures, form: SirenForm | None) -> Any:
        task = self.task
        task.model.eval()
        if hasattr(task, "edit"):
            return task.edit(batch, form=form).to("cpu")
        if hasattr(task, "predict"):
            return task.predict(batch)
        if hasattr(task, "encode"):
            return task.encode(batch, form=form)
        return task(task.read(batch, form)).float().softmax(-1)

    def __repr__(self) -> str:
        return f"Pipeline({self.name}: {type(self.task).__name__})"


def _classification(probabilities: Float[Tensor, "K"]) -> Classification:
    label = int(probabilities.argmax())
    return Classification(label, float(probabilities[label]), probabilities.tolist())


def pipeline(name: str | os.PathLike[str]) -> Pipeline:
    """Opens a shipped model or the model of a run directory, to be called on networks.

    Args:
        name: One of `list_pretrained()`, or the directory of a finished run.

    Example:
        >>> from neuralfunctionals.inr import Siren
        >>> digits = pipeline("digits-classify")
        >>> answer = digits(Siren(seed=0))
        >>> 0 <= answer.label <= 9, round(sum(answer.probabilities), 3)
        (True, 1.0)
    """
    return Pipeline(open_run(name))


def list_pretrained() -> list[str]:
    """The names of the shipped models.

    Example:
        >>> list_pretrained()[0]
        'cnn-accuracy'
    """
    return list(SHIPPED)
