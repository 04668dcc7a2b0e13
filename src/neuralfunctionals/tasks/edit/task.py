"""Editing sine networks so that they show an edited image: `EditTask`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, overload

import torch
from einops import reduce
from jaxtyping import Float
from torch import Tensor, nn

from neuralfunctionals.config import Augment, OptimizerConfig
from neuralfunctionals.data import EDITS, WeightItems
from neuralfunctionals.data.formats.given import read_given, require_one_frequency
from neuralfunctionals.errors import UserError
from neuralfunctionals.inr import SirenForm, convert, image_values, render_images
from neuralfunctionals.tasks.augment import Augmentation
from neuralfunctionals.tasks.edit import TASK, TURNABLE
from neuralfunctionals.tasks.task import Task, form_of_model, holds_state_dicts
from neuralfunctionals.weight_space import WeightSpaceFeatures

# Axes: B input networks, H rows, W columns, C colours.


class EditBatch(NamedTuple):
    """Networks and their target images."""

    features: WeightSpaceFeatures
    target: Float[Tensor, "B H W C"]


class EditTask(Task):
    r"""Learns $\Delta$ so that the network $W + \Delta(W)$ shows the edited image.

    $$ \min_\Delta \; \lVert \mathrm{render}(W + \Delta(W)) - \mathrm{edit}(\mathrm{image}) \rVert^2 $$

    The target is the edit of the image that the network was fitted to, or of the picture that it shows if the dataset
    has no images; values are in [-1, 1].
    Symmetry: the edit is equivariant if the model is.
    Reference: Zhou et al., 2023, https://arxiv.org/abs/2302.14040.

    Args:
        model: Maps features to features with one channel, the change of the weights.
        edit: One of `nf.data.EDITS`.
        augment: `"turns"` rotates and reflects training networks and their targets at random; only for edits that
            commute with this; see `TURNABLE`.
        optimizer: How to train.
        seed: Random seed.
    """

    metric: ClassVar[str] = TASK.metric
    needs_images: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        *,
        edit: str,
        augment: Augment = "none",
        optimizer: OptimizerConfig | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(model, optimizer=optimizer, seed=seed, form=form_of_model(model))
        if edit not in EDITS:
            raise UserError(f"Expected an edit, one of {sorted(EDITS)}, but got {edit!r}.")
        self.augmentation = Augmentation(augment)
        if augment == "affine" or (augment == "turns" and edit not in TURNABLE):
            raise UserError(
                f"Expected augment 'none', or 'turns' for {', '.join(TURNABLE)}, but got '{augment}' for {edit}: other "
                "edits do not commute with rotations and reflections."
            )
        self.edit_name = edit

    def prepare(self, items: WeightItems) -> EditBatch:
        if items.features is None or items.image is None:
            raise UserError(
                "Editing needs networks and the images they were fitted to, but the dataset lacks them. "
                "Make it with nf fit."
            )
        return EditBatch(items.features, image_values(EDITS[self.edit_name](items.image.numpy())))

    def render(self, features: WeightSpaceFeatures, like: Float[Tensor, "B H W C"]) -> Float[Tensor, "B H W C"]:
        """Renders networks at the size of the given images."""
        return render_images(self.describe(features), *like.shape[1:3])

    def forward(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures:
        """The edited networks."""
        return features + self.model(features)

    def _errors(self, features: WeightSpaceFeatures, target: Float[Tensor, "B H W C"]) -> Float[Tensor, "B"]:
        return reduce((self.render(features, target) - target).square(), "B H W C -> B", "mean")

    def loss(self, batch: EditBatch) -> Float[Tensor, ""]:
        if self.augmentation:
            batch = EditBatch(*self.augmentation.turn_with(batch.features, batch.target))
        return self._errors(self(batch.features), batch.target).mean()

    def score(self, batch: EditBatch) -> dict[str, Float[Tensor, "B"]]:
        return {
            "mse": self._errors(self(batch.features), batch.target),
            "mse_no_edit": self._errors(batch.features, batch.target),
        }

    @torch.inference_mode()
    def samples(self, items: WeightItems) -> dict[str, Float[Tensor, "B H W C"]]:
        """Pictures: the images, the rendered networks, the targets, and the rendered edited networks."""
        batch = self.prepare(items)
        self.model.eval()
        assert items.image is not None
        return {
            "image": image_values(items.image),
            "original": self.render(batch.features, batch.target),
            "target": batch.target,
            "edited": self.render(self(batch.features), batch.target),
        }

    @overload
    def edit(self, networks: nn.Module, *, form: SirenForm | None = None) -> nn.Module: ...
    @overload
    def edit(self, networks: Sequence[nn.Module], *, form: SirenForm | None = None) -> list[nn.Module]: ...
    @overload
    def edit(self, networks: Mapping[str, Tensor], *, form: SirenForm | None = None) -> dict[str, Tensor]: ...
    @overload
    def edit(
        self, networks: Sequence[Mapping[str, Tensor]], *, form: SirenForm | None = None
    ) -> list[dict[str, Tensor]]: ...
    @overload
    def edit(self, networks: WeightSpaceFeatures, *, form: SirenForm | None = None) -> WeightSpaceFeatures: ...

    @torch.no_grad()
    def edit(self, networks: Any, *, form: SirenForm | None = None) -> Any:
        """Edits a module, a `state_dict`, a list of either, or features; modules are returned as edited copies.

        Args:
            networks: The networks.
            form: Their frequency and convention, which the edited networks keep. Defaults to those that the model was
                trained on, with the networks' own frequency if they are `Siren`s.
        """
        if isinstance(networks, WeightSpaceFeatures):
            self.model.eval()
            edited = self(self.read(networks, form)).detach()
            if self.form is not None:
                own = form or SirenForm.of(networks.spec, assumed=self.form)
                edited = convert(self.describe(edited), own)
            networks.require_finite_answers(edited.tensor)
            return edited
        if holds_state_dicts(networks):
            given = read_given(networks)
            return given.restore(self.edit(given.features, form=form).to("cpu"))
        modules = [networks] if isinstance(networks, nn.Module) else list(networks)
        require_one_frequency(modules)
        features = WeightSpaceFeatures.from_modules(modules)
        edited = self.edit(features, form=form).to(features.tensor.device)
        copies = [edited[[i]].to_modules(module)[0] for i, module in enumerate(modules)]
        return copies[0] if isinstance(networks, nn.Module) else copies
