"""Telling what networks show from their weights or from their latents: `ClassifyTask`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from neuralfunctionals.data import WeightDataset, WeightItems
from neuralfunctionals.inr import SirenForm, image_values
from neuralfunctionals.tasks.task import OptimizerConfig, Task
from neuralfunctionals.weight_space import SineSymmetry, WeightSpaceFeatures

# Axes: B input networks, M latents, D latent channels, K classes.

Source = Literal["weights", "latents"]


class ClassifyBatch(NamedTuple):
    """Weights or latents of networks, and their classes."""

    inputs: WeightSpaceFeatures | Float[Tensor, "B M D"]
    label: Int[Tensor, "B"]


class ClassifyTask(Task):
    r"""Learns the class of what networks show, by cross-entropy.

    With mixup, a training batch is mixed with itself in another order, and so are its losses:
    $\lambda x + (1 - \lambda) x'$ with $\lambda \sim \mathrm{Beta}(\alpha, \alpha)$. Between latents the line means
    something; between the weights of networks with their own order of neurons it hardly does.

    Symmetry: the classes are as invariant as the model.
    References: Zhou et al., 2023, https://arxiv.org/abs/2305.13546; Zhang et al., 2018 (mixup),
    https://arxiv.org/abs/1710.09412.

    Args:
        model: From features, or from latent arrays, to one number for each class.
        source: What it reads: `"weights"` or `"latents"`.
        num_classes: Number of classes.
        mixup_alpha: The $\alpha$ of mixup; 0 for none.
        augment: Whether each training network gets signs and half turns of its own at random, see `SineSymmetry`.
        omega: Frequency of the networks' sines.
        convention: Their SIREN convention; see `nf.inr.convert_convention`.
        optimizer: How to train.
        seed: Start of the random numbers.
    """

    metric: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        *,
        source: Source = "weights",
        num_classes: int = 10,
        mixup_alpha: float = 0.0,
        augment: bool = False,
        omega: float = 30.0,
        convention: str = "paper",
        optimizer: OptimizerConfig | None = None,
        seed: int = 0,
    ) -> None:
        form = SirenForm(omega, convention) if source == "weights" else None
        super().__init__(model, optimizer=optimizer, seed=seed, form=form)
        if source not in ("weights", "latents"):
            raise ValueError(f"Expected to classify 'weights' or 'latents', but got {source!r}.")
        if num_classes < 2 or not 0 <= mixup_alpha < float("inf"):
            raise ValueError(
                "Expected at least two classes and an alpha of mixup of 0 or more, but got "
                f"{num_classes} and {mixup_alpha}."
            )
        self.source: Source = source
        if augment and source != "weights":
            raise ValueError("Expected weights to augment, but latents have no signs and half turns. Leave it out.")
        self.num_classes, self.mixup_alpha = num_classes, mixup_alpha
        self.augment, self.omega = augment, omega

    def require_data(self, dataset: WeightDataset) -> None:
        """Raises unless the dataset holds what the model reads, with classes that it knows."""
        wanted = "label" if self.source in dataset.tensor_names else self.source
        if wanted not in dataset.tensor_names:
            fix = {
                "latents": "Make them with nf encode, or choose a model that reads weights.",
                "weights": "Latents are read by --model latent.",
                "label": "Make it from labelled images.",
            }
            raise ValueError(
                f"Expected {wanted} in {dataset.path}, but it holds {', '.join(dataset.tensor_names)}. {fix[wanted]}"
            )
        if self.source == "weights":
            super().require_data(dataset)
        labels = dataset.column("label")
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < self.num_classes:
            raise ValueError(
                f"Expected classes from 0 to {self.num_classes - 1}, but {dataset.path} has {int(labels.min())} to "
                f"{int(labels.max())}. Set num_classes."
            )

    def prepare(self, items: WeightItems) -> ClassifyBatch:
        inputs = items.features if self.source == "weights" else items.latents
        if inputs is None or items.label is None:
            raise ValueError(f"Expected items with {self.source} and classes, but they hold {sorted(items.tensors)}.")
        return ClassifyBatch(inputs, items.label)

    def forward(self, inputs: WeightSpaceFeatures | Float[Tensor, "B M D"]) -> Float[Tensor, "B K"]:
        """One number for each class, the largest for the most probable one."""
        return self.model(inputs)

    def loss(self, batch: ClassifyBatch) -> Float[Tensor, ""]:
        if self.augment and isinstance(batch.inputs, WeightSpaceFeatures):
            batch = batch._replace(inputs=self._twist(batch.inputs))
        if not self.mixup_alpha:
            return cross_entropy(self(batch.inputs), batch.label)
        part = torch.distributions.Beta(self.mixup_alpha, self.mixup_alpha).sample().item()
        order = torch.randperm(len(batch.label)).to(batch.label.device)
        inputs: Any = batch.inputs
        logits = self(inputs * part + inputs[order] * (1 - part))
        return part * cross_entropy(logits, batch.label) + (1 - part) * cross_entropy(logits, batch.label[order])

    def _twist(self, networks: WeightSpaceFeatures) -> WeightSpaceFeatures:
        element = SineSymmetry.random(networks.spec, self.omega, batch=len(networks))
        device = networks.tensor.device
        return replace(element, flips=element.flips.to(device), turns=element.turns.to(device))(networks)

    def score(self, batch: ClassifyBatch) -> dict[str, Float[Tensor, "B"]]:
        logits = self(batch.inputs)
        return {
            "accuracy": (logits.argmax(-1) == batch.label).float(),
            "cross_entropy": cross_entropy(logits, batch.label, reduction="none").float(),
        }

    @torch.inference_mode()
    def samples(self, items: WeightItems) -> dict[str, Tensor]:
        """True classes and those that the model reads, with the images if the dataset has them."""
        batch = self.prepare(items)
        self.model.eval()
        images = {} if items.image is None else {"image": image_values(items.image)}
        return {**images, "label": batch.label, "predicted": self(batch.inputs).argmax(-1)}

    @torch.no_grad()
    def classify(self, inputs: Any, *, form: SirenForm | None = None) -> Int[Tensor, "B"]:
        """The classes of a module, a list of modules or features; of a model on latents, those of latent arrays.

        Args:
            inputs: The networks or latents.
            form: The networks' frequency and convention; defaults to those that the model was trained on, with the
                frequency of a `Siren` that has another.
        """
        self.model.eval()
        inputs = self.read(inputs, form) if self.source == "weights" else inputs.to(self.device)
        return self(inputs).argmax(-1)
