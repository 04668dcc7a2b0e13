"""What to do with latent arrays: `nearest`, `interpolate`, `project`."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from neuralfunctionals.errors import UserError

# Axes: N known arrays, Q asked arrays, K neighbours, S steps, M latents, D latent channels,
# B arrays of F numbers.


def nearest(
    latents: Float[Tensor, "N M D"], query: Float[Tensor, "Q M D"], k: int = 5
) -> tuple[Int[Tensor, "Q K"], Float[Tensor, "Q K"]]:
    """The known arrays nearest to each query, and their Euclidean distances.

    Args:
        latents: The known arrays.
        query: What to find neighbours of; one that is among the known is its own nearest.
        k: How many neighbours.

    Example:
        >>> known = torch.tensor([0.0, 1.0, 5.0]).view(3, 1, 1)
        >>> nearest(known, torch.tensor([[[4.0]]]), k=2)[0].tolist()
        [[2, 1]]
    """
    if not 1 <= k <= len(latents):
        raise UserError(f"Expected 1 to {len(latents)} neighbours of {len(latents)} known arrays, but got {k}.")
    distances, indices = torch.cdist(query.flatten(1), latents.flatten(1)).topk(k, largest=False)
    return indices, distances


def interpolate(start: Float[Tensor, "M D"], end: Float[Tensor, "M D"], steps: int) -> Float[Tensor, "S M D"]:
    """Arrays on the straight line from one to another, both ends among them."""
    parts = torch.linspace(0, 1, steps, device=start.device, dtype=start.dtype)
    return torch.lerp(start, end, parts[:, None, None])


def project(values: Float[Tensor, "B F"]) -> Float[Tensor, "B 2"]:
    """The two directions of largest variance, from an exact decomposition; signs chosen by the largest coordinate."""
    centred = (values - values.mean(0)).double()
    _, _, directions = torch.linalg.svd(centred, full_matrices=False)
    points = centred @ directions[:2].T
    largest = points.gather(0, points.abs().argmax(0, keepdim=True))
    return (points * largest.sign()).to(values.dtype)
