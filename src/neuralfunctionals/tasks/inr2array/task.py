"""Learning invariant latent arrays of sine networks by reconstructing their pictures: `ReconstructTask`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from einops import reduce
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from neuralfunctionals.config import Augment, OptimizerConfig
from neuralfunctionals.data import WeightDataset, WeightItems
from neuralfunctionals.errors import UserError
from neuralfunctionals.inr import SirenForm, image_values, render_images, render_patches
from neuralfunctionals.tasks.augment import Augmentation
from neuralfunctionals.tasks.inr2array import TASK
from neuralfunctionals.tasks.latents import project
from neuralfunctionals.tasks.task import Task, form_of_model
from neuralfunctionals.weight_space import WeightSpaceFeatures

# Axes: B input networks, M latents, D latent channels, H rows, W columns, C colours.

Target = Literal["inr", "image"]
_MAP_LIMIT = 1000
"""Maximum number of networks on the map of latents."""


class ReconstructBatch(NamedTuple):
    """Networks and the images they were fitted to, in [-1, 1]."""

    features: WeightSpaceFeatures
    image: Float[Tensor, "B H W C"]


class ReconstructTask(Task):
    r"""Learns an encoder and a decoder, so that the decoded patch networks show the same picture as the network.

    $$ \min \; \frac{1}{n} \sum_{m=1}^{M} \sum_{x \in P_m} \big( \mathrm{INR}(x; \hat W_m) - t(x) \big)^2,
    \qquad \hat W_m = \mathrm{Dec}(z_m), \quad z = \mathrm{Enc}(W) $$

    The target $t$ is the picture of the network, $\mathrm{INR}(x; W)$, or the image that it was fitted to. The paper's
    loss is the sum over the $n$ values of a picture; the mean differs by a factor, and is the error that it reports.
    A model that paints (see `Inr2Array.paint`) also learns to paint the target: the loss is the sum of both errors,
    but the metric is that of the decoded networks.

    Symmetry: the latents are invariant if the encoder is.
    Reference: Zhou et al., 2023, https://arxiv.org/abs/2305.13546, Section 4.

    Args:
        model: An autoencoder with `encode`, `decode` and `grid_size`, such as `nf.models.Inr2Array`.
        target: Reconstruction target: `"inr"` or `"image"`.
        augment: How training networks and their targets are transformed at random: `"none"`, `"affine"` or `"turns"`;
            see `Augmentation`. With target `"image"`, only `"turns"` is possible.
        optimizer: How to train.
        seed: Random seed.
    """

    metric: ClassVar[str] = TASK.metric
    needs_images: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        *,
        target: Target = "inr",
        augment: Augment = "none",
        optimizer: OptimizerConfig | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(model, optimizer=optimizer, seed=seed, form=form_of_model(model))
        missing = [name for name in ("encode", "decode", "grid_size") if not hasattr(model, name)]
        if missing:
            raise UserError(
                f"Expected an autoencoder such as Inr2Array, but {type(model).__name__} has no {', '.join(missing)}."
            )
        if target not in ("inr", "image"):
            raise UserError(f"Expected the target to be 'inr' or 'image', but got {target!r}.")
        self.target: Target = target
        if augment == "affine" and target == "image":
            raise UserError("Expected augment 'none' or 'turns' with target 'image': affine maps only move networks.")
        self.augmentation = Augmentation(augment)

    def prepare(self, items: WeightItems) -> ReconstructBatch:
        if items.features is None or items.image is None:
            raise UserError(
                "Reconstruction needs networks and the images they were fitted to, but the dataset lacks them. "
                "Make it with nf fit."
            )
        return ReconstructBatch(items.features, image_values(items.image))

    def forward(self, features: WeightSpaceFeatures, size: tuple[int, int]) -> Float[Tensor, "B H W C"]:
        """Renders the decoded patch networks at this height and width."""
        return self._show(self.model(features), size)

    def loss(self, batch: ReconstructBatch) -> Float[Tensor, ""]:
        if self.target == "image" and self.augmentation:
            batch = ReconstructBatch(*self.augmentation.turn_with(batch.features, batch.image))
        else:
            batch = batch._replace(features=self.augmentation.move(batch.features))
        latents, size = self._autoencoder.encode(batch.features), _size(batch.image)
        target = self._target(batch, size)
        loss = mse_loss(self._show(self._autoencoder.decode(latents), size), target)
        if getattr(self.model, "paint_size", 0):
            painted = self._autoencoder.paint(latents)
            same = _size(painted) == size
            loss = loss + mse_loss(painted, target if same else self._target(batch, _size(painted)))
        return loss

    def score(self, batch: ReconstructBatch) -> dict[str, Float[Tensor, "B"]]:
        size = _size(batch.image)
        errors = (self(batch.features, size) - self._target(batch, size)).square()
        return {"mse": reduce(errors, "B H W C -> B", "mean")}

    def _target(self, batch: ReconstructBatch, size: tuple[int, int]) -> Float[Tensor, "B H W C"]:
        """The target: the images at their own size, or the rendered networks at any size."""
        if self.target == "image" and size == _size(batch.image):
            return batch.image
        with torch.no_grad():
            return self._render(batch.features, size)

    def _render(self, features: WeightSpaceFeatures, size: tuple[int, int]) -> Float[Tensor, "B H W C"]:
        return render_images(self.describe(features), *size)

    def _show(self, networks: WeightSpaceFeatures, size: tuple[int, int]) -> Float[Tensor, "B H W C"]:
        return render_patches(self.describe(networks), *size, grid_size=self._autoencoder.grid_size)

    @property
    def _autoencoder(self) -> Any:
        return self.model

    @torch.inference_mode()
    def samples(self, items: WeightItems) -> dict[str, Float[Tensor, "B H W C"]]:
        """Pictures: the images, the rendered networks, and the rendered decoded networks."""
        batch = self.prepare(items)
        self.model.eval()
        size = _size(batch.image)
        return {
            "image": batch.image,
            "original": self._render(batch.features, size),
            "reconstruction": self(batch.features, size),
        }

    @torch.inference_mode()
    def map(self, dataset: WeightDataset) -> dict[str, Tensor]:
        """Latents projected to two dimensions, and their classes; empty for networks without classes."""
        chosen = dataset.spread(_MAP_LIMIT)
        if len(chosen) < 3 or "label" not in chosen.tensor_names:
            return {}
        parts = [chosen[part] for part in torch.arange(len(chosen)).split(64)]
        latents = torch.cat([self.encode(part.features).cpu() for part in parts if part.features is not None])
        return {"map": project(latents.flatten(1)), "map_label": torch.cat([part.label for part in parts])}

    # Using a trained model.

    @torch.no_grad()
    def encode(
        self, networks: nn.Module | Sequence[nn.Module] | WeightSpaceFeatures, *, form: SirenForm | None = None
    ) -> Float[Tensor, "B M D"]:
        """The latent arrays of a module, a list of modules, or features.

        Args:
            networks: The networks.
            form: Their frequency and convention. Defaults to those that the model was trained on, with the networks'
                own frequency if they are `Siren`s.
        """
        self.model.eval()
        read = self.read(networks, form)
        latents = self._autoencoder.encode(read).detach()
        read.require_finite_answers(latents)
        return latents

    @torch.no_grad()
    def decode(self, latents: Float[Tensor, "B M D"]) -> WeightSpaceFeatures:
        """The weights of the patch networks: network `b * M + m` shows patch `m` of latent array `b`."""
        self.model.eval()
        return self._autoencoder.decode(latents.to(self.device)).detach()

    def show(self, latents: Float[Tensor, "B M D"], height: int, width: int) -> Float[Tensor, "B H W C"]:
        """Draws the pictures of latent arrays, at any size."""
        return self._show(self.decode(latents), (height, width))


def _size(image: Float[Tensor, "B H W C"]) -> tuple[int, int]:
    return image.shape[1], image.shape[2]
