"""Operations on latent arrays: `nearest`, `interpolate`, `project`."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from neuralfunctionals.errors import UserError

# Axes: N known arrays, Q query arrays, K neighbours, S steps, M latents, D latent channels,
# B arrays of F numbers.


def nearest(
    latents: Float[Tensor, "N M D"], query: Float[Tensor, "Q M D"], k: int = 5
) -> tuple[Int[Tensor, "Q K"], Float[Tensor, "Q K"]]:
    """Finds the `k` nearest arrays of `latents` for each query; returns their indices and Euclidean distances.

    Args:
        latents: The arrays to search.
        query: The arrays to find neighbours of; an array that is also in `latents` is its own nearest neighbour.
        k: Number of neighbours.

    Example:
        >>> known = torch.tensor([0.0, 1.0, 5.0]).view(3, 1, 1)
        >>> nearest(known, torch.tensor([[[4.0]]]), k=2)[0].tolist()
        [[2, 1]]
    """
    if not 1 <= k <= len(latents):
        raise UserError(f"Expected k from 1 to {len(latents)}, the number of arrays, but got {k}.")
    distances, indices = torch.cdist(query.flatten(1), latents.flatten(1)).topk(k, largest=False)
    return indices, distances


def interpolate(start: Float[Tensor, "M D"], end: Float[Tensor, "M D"], steps: int) -> Float[Tensor, "S M D"]:
    """Arrays on the straight line from `start` to `end`, including both."""
    parts = torch.linspace(0, 1, steps, device=start.device, dtype=start.dtype)
    return torch.lerp(start, end, parts[:, None, None])


def project(values: Float[Tensor, "B F"]) -> Float[Tensor, "B 2"]:
    """Projects onto the first two principal components, computed exactly; the largest coordinate fixes their signs."""
    centred = (values - values.mean(0)).double()
    _, _, directions = torch.linalg.svd(centred, full_matrices=False)
    points = centred @ directions[:2].T
    largest = points.gather(0, points.abs().argmax(0, keepdim=True))
    return (points * largest.sign()).to(values.dtype)
