"""Classifying networks by their weights or latents: `ClassifyTask`."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from neuralfunctionals.config import Augment, OptimizerConfig
from neuralfunctionals.data import WeightDataset, WeightItems
from neuralfunctionals.errors import UserError
from neuralfunctionals.inr import SirenForm, image_values, render_images
from neuralfunctionals.tasks.augment import Augmentation
from neuralfunctionals.tasks.classify import TASK
from neuralfunctionals.tasks.task import Task, form_of_model
from neuralfunctionals.weight_space import WeightSpaceFeatures

# Axes: B input networks, M latents, D latent channels, K classes.

Source = Literal["weights", "latents"]


class ClassifyBatch(NamedTuple):
    """Weights or latents of networks, and their classes."""

    inputs: WeightSpaceFeatures | Float[Tensor, "B M D"]
    label: Int[Tensor, "B"]


class ClassifyTask(Task):
    r"""Learns to classify networks by what they show, with the cross-entropy loss.

    With mixup, a training batch is mixed with a shuffled copy of itself, and so are its losses:
    $\lambda x + (1 - \lambda) x'$ with $\lambda \sim \mathrm{Beta}(\alpha, \alpha)$. This makes sense for latents, but
    hardly for weights, because each network has its own order of neurons.

    Symmetry: the predictions are invariant if the model is.
    References: Zhou et al., 2023, https://arxiv.org/abs/2305.13546; Zhang et al., 2018 (mixup),
    https://arxiv.org/abs/1710.09412.

    Args:
        model: Maps features or latent arrays to one logit per class.
        source: The input of the model: `"weights"` or `"latents"`.
        num_classes: Number of classes.
        mixup_alpha: The $\alpha$ of mixup; 0 for none.
        label_smoothing: Share of each label that is spread over all classes.
        decode_size: Side length of a small picture that the model also learns to predict, in the outputs after those of
            the classes: the picture that the network shows, at this size. It is only used in the loss. 0 for none.
        decode_weight: Weight of the picture's mean squared error in the loss.
        augment: How training networks are transformed: `"none"`, `"affine"` or `"turns"`; see `Augmentation`.
        mirror: Whether to also mirror half of the training networks.
        optimizer: How to train.
        seed: Random seed.
    """

    metric: ClassVar[str] = TASK.metric
    higher_is_better: ClassVar[bool] = TASK.higher_is_better

    def __init__(
        self,
        model: nn.Module,
        *,
        source: Source = "weights",
        num_classes: int = 10,
        mixup_alpha: float = 0.0,
        label_smoothing: float = 0.0,
        decode_size: int = 0,
        decode_weight: float = 1.0,
        augment: Augment = "none",
        mirror: bool = False,
        optimizer: OptimizerConfig | None = None,
        seed: int = 0,
    ) -> None:
        form = form_of_model(model) if source == "weights" else None
        super().__init__(model, optimizer=optimizer, seed=seed, form=form)
        if source not in ("weights", "latents"):
            raise UserError(f"Expected to classify 'weights' or 'latents', but got {source!r}.")
        if num_classes < 2 or not 0 <= mixup_alpha < float("inf"):
            raise UserError(
                "Expected at least two classes and a mixup_alpha of 0 or more, but got "
                f"{num_classes} and {mixup_alpha}."
            )
        self.source: Source = source
        self.augmentation = Augmentation(augment, mirror)
        if self.augmentation and source != "weights":
            raise UserError(f"Expected augment 'none' for latents, but got {augment!r}: only networks can be moved.")
        if not 0 <= label_smoothing < 1:
            raise UserError(f"Expected label smoothing from 0 to below 1, but got {label_smoothing}.")
        self.num_classes, self.mixup_alpha = num_classes, mixup_alpha
        self.label_smoothing = label_smoothing
        if decode_size < 0 or (decode_size and (source != "weights" or mixup_alpha)):
            raise UserError(
                "Expected decode_size to be 0, or positive with source 'weights' and without mixup, but got "
                f"decode_size {decode_size}, source '{source}' and mixup_alpha {mixup_alpha}."
            )
        if not 0 <= decode_weight < float("inf"):
            raise UserError(f"Expected decode_weight to be 0 or more, but got {decode_weight}.")
        drawn = max(getattr(part, "picture_size", 0) for part in model.modules())
        if drawn not in (0, decode_size):
            raise UserError(
                f"Expected decode_size {drawn}, the side of the picture that the model predicts, but got "
                f"{decode_size}. Set the task's decode_size and the model's picture_size to the same value."
            )
        self.decode_size, self.decode_weight = decode_size, decode_weight

    def require_data(self, dataset: WeightDataset) -> None:
        """Raises an error unless the dataset has the inputs of the model and valid classes."""
        wanted = "label" if self.source in dataset.tensor_names else self.source
        if wanted not in dataset.tensor_names:
            fix = {
                "latents": "Make them with nf encode, or choose a model for weights.",
                "weights": "To classify latents, use --model latent.",
                "label": "Make it from labelled images.",
            }
            raise UserError(
                f"Expected {wanted} in {dataset.path}, but it holds {', '.join(dataset.tensor_names)}. {fix[wanted]}"
            )
        if self.source == "weights":
            super().require_data(dataset)
        labels = dataset.column("label")
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < self.num_classes:
            raise UserError(
                f"Expected classes from 0 to {self.num_classes - 1}, but {dataset.path} has {int(labels.min())} to "
                f"{int(labels.max())}. Set num_classes."
            )

    def prepare(self, items: WeightItems) -> ClassifyBatch:
        inputs = items.features if self.source == "weights" else items.latents
        if inputs is None or items.label is None:
            raise UserError(f"Expected items with {self.source} and classes, but they hold {sorted(items.tensors)}.")
        return ClassifyBatch(inputs, items.label)

    def forward(self, inputs: WeightSpaceFeatures | Float[Tensor, "B M D"]) -> Float[Tensor, "B K"]:
        """The logits of the classes."""
        return self.model(inputs)[:, : self.num_classes]

    def loss(self, batch: ClassifyBatch) -> Float[Tensor, ""]:
        if self.augmentation and isinstance(batch.inputs, WeightSpaceFeatures):
            batch = batch._replace(inputs=self.augmentation.move(batch.inputs))
        if self.decode_size and isinstance(batch.inputs, WeightSpaceFeatures):
            return self._loss_with_decoding(batch.inputs, batch.label)
        if not self.mixup_alpha:
            return cross_entropy(self(batch.inputs), batch.label, label_smoothing=self.label_smoothing)
        part = torch.distributions.Beta(self.mixup_alpha, self.mixup_alpha).sample().item()
        order = torch.randperm(len(batch.label)).to(batch.label.device)
        inputs: Any = batch.inputs
        logits = self(inputs * part + inputs[order] * (1 - part))
        losses = [
            cross_entropy(logits, y, label_smoothing=self.label_smoothing) for y in (batch.label, batch.label[order])
        ]
        return part * losses[0] + (1 - part) * losses[1]

    def _loss_with_decoding(self, networks: WeightSpaceFeatures, label: Int[Tensor, "B"]) -> Float[Tensor, ""]:
        logits, pictures = self.model(networks).tensor_split([self.num_classes], dim=1)
        side = self.decode_size
        with torch.no_grad():
            shown = render_images(self.describe(networks), side, side)
        error = mse_loss(pictures, shown.flatten(1))
        return cross_entropy(logits, label, label_smoothing=self.label_smoothing) + self.decode_weight * error

    def score(self, batch: ClassifyBatch) -> dict[str, Float[Tensor, "B"]]:
        logits = self(batch.inputs)
        return {
            "accuracy": (logits.argmax(-1) == batch.label).float(),
            "cross_entropy": cross_entropy(logits, batch.label, reduction="none").float(),
        }

    @torch.inference_mode()
    def samples(self, items: WeightItems) -> dict[str, Tensor]:
        """True and predicted classes, and the images if the dataset has them."""
        batch = self.prepare(items)
        self.model.eval()
        images = {} if items.image is None else {"image": image_values(items.image)}
        return {**images, "label": batch.label, "predicted": self(batch.inputs).argmax(-1)}

    @torch.no_grad()
    def classify(self, inputs: Any, *, form: SirenForm | None = None) -> Int[Tensor, "B"]:
        """Predicts the classes of a module, a list of modules or features; or of latent arrays, for a model of latents.

        Args:
            inputs: The networks or latents.
            form: Frequency and convention of the networks. Defaults to those that the model was trained on, with the
                networks' own frequency if they are `Siren`s.
        """
        self.model.eval()
        if self.source != "weights":
            return self(inputs.to(self.device)).argmax(-1)
        networks = self.read(inputs, form)
        logits = self(networks)
        networks.require_finite_answers(logits)
        return logits.argmax(-1)
