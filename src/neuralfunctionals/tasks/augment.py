"""Exact augmentation of sine networks by transforming their coordinates: `Augmentation`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from neuralfunctionals.config import Augment
from neuralfunctionals.errors import UserError
from neuralfunctionals.inr import AffineMaps, move_networks, turn_images, turn_networks
from neuralfunctionals.weight_space import WeightSpaceFeatures

# Axes: B input networks, H rows, W columns, C colours.


@dataclass(frozen=True)
class Augmentation:
    """Transforms each training network at random; the new weights show the transformed picture exactly.

    Args:
        kind: See `Augment`.
        mirror: Whether affine maps also mirror half of the networks, left to right.
    """

    kind: Augment = "none"
    mirror: bool = False

    def __post_init__(self) -> None:
        if self.kind not in ("none", "affine", "turns"):
            raise UserError(f"Expected augment to be 'none', 'affine' or 'turns', but got {self.kind!r}.")
        if self.mirror and self.kind != "affine":
            raise UserError(
                f"Expected mirror with augment 'affine', but augment is '{self.kind}'. 'turns' already contains "
                "reflections; without augmentation nothing is mirrored."
            )

    def __bool__(self) -> bool:
        return self.kind != "none"

    def move(self, networks: WeightSpaceFeatures) -> WeightSpaceFeatures:
        """Transforms each network by its own random map."""
        if self.kind == "turns":
            return turn_networks(networks, torch.randint(8, (len(networks),)))
        if self.kind == "affine":
            matrix, shift = AffineMaps(mirror=self.mirror).sample(len(networks))
            device = networks.tensor.device
            return move_networks(networks, matrix.to(device), shift.to(device))
        return networks

    def turn_with(
        self, networks: WeightSpaceFeatures, images: Float[Tensor, "B H W C"]
    ) -> tuple[WeightSpaceFeatures, Float[Tensor, "B H W C"]]:
        """Rotates or reflects networks and their pictures the same way; only reflects pictures that are not square."""
        kinds = 8 if images.shape[1] == images.shape[2] else 4
        turns = torch.randint(kinds, (len(networks),)).to(images.device)
        return turn_networks(networks, turns), turn_images(images, turns)
