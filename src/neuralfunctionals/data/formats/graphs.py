"""Networks as graphs of neurons: `neuron_graph`, and `to_pyg` for PyTorch Geometric."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from neuralfunctionals.errors import UserError
from neuralfunctionals.weight_space import WeightSpaceFeatures

# Axes: B input networks, N neurons of all layers, E weights, C channels, K kernel entries times channels.


class NeuronGraph(NamedTuple):
    """One graph for all networks of a batch, and the values of each network."""

    nodes: Float[Tensor, "B N C"]
    """The bias of each neuron; zero for neurons without one, such as inputs."""
    edges: Int[Tensor, "2 E"]
    """For each weight, its incoming neuron and its outgoing neuron."""
    weights: Float[Tensor, "B E K"]
    """Flattened kernels; smaller ones are padded with zeros."""
    layers: Int[Tensor, "N"]
    """The layer of each neuron: 0 for inputs."""


def neuron_graph(features: WeightSpaceFeatures) -> NeuronGraph:
    """Neurons as nodes, inputs first, and weights as edges.

    Args:
        features: Networks that are chains of dense layers and convolutions.

    Example:
        >>> from neuralfunctionals import NetworkSpec
        >>> from neuralfunctionals.testing import random_features
        >>> graph = neuron_graph(random_features(NetworkSpec.mlp([2, 3, 1]), channels=1, batch=4))
        >>> graph.nodes.shape, graph.edges.shape
        (torch.Size([4, 6, 1]), torch.Size([2, 9]))
    """
    spec = features.spec
    if not spec.is_chain:
        raise UserError(f"Expected chains of dense layers and convolutions, but got networks {spec}.")
    batch, channels, device = len(features), features.num_channels, features.tensor.device
    widths = list(spec.widths)
    starts = [sum(widths[:layer]) for layer in range(len(widths))]
    nodes = features.tensor.new_zeros(batch, sum(widths), channels)
    edges, weights = [], []
    for group in spec.groups:
        values = features.tensor[:, group.start : group.stop]
        out = starts[group.layer]
        if group.kind == "bias":
            nodes[:, out : out + widths[group.layer]] = values
            continue
        out_neurons, in_neurons = group.shape[:2]
        weights.append(values.reshape(batch, out_neurons * in_neurons, -1))
        source = torch.arange(in_neurons, device=device).repeat(out_neurons) + starts[group.layer - 1]
        target = torch.arange(out_neurons, device=device).repeat_interleave(in_neurons) + out
        edges.append(torch.stack([source, target]))
    widest = max(part.shape[-1] for part in weights)
    filled = [torch.nn.functional.pad(part, (0, widest - part.shape[-1])) for part in weights]
    layers = torch.repeat_interleave(torch.arange(len(widths)), torch.tensor(widths)).to(device)
    return NeuronGraph(nodes, torch.cat(edges, dim=1), torch.cat(filled, dim=1), layers)


def to_pyg(features: WeightSpaceFeatures, labels: Tensor | None = None) -> list[Any]:
    """A `torch_geometric.data.Data` for each network: `x`, `edge_index`, `edge_attr`, `layer`, and `y` for labels.

    Args:
        features: Networks that are chains of dense layers and convolutions; see `neuron_graph`.
        labels: One per network.
    """
    try:
        from torch_geometric.data import Data  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError("to_pyg needs PyTorch Geometric: pip install 'neuralfunctionals[peers]'.") from error
    if labels is not None and len(labels) != len(features):
        raise UserError(f"Expected a label for each of {len(features)} networks, but got {len(labels)}.")
    graph = neuron_graph(features)
    made = []
    for network in range(len(features)):
        label = {} if labels is None else {"y": labels[network : network + 1]}
        data = Data(x=graph.nodes[network], edge_index=graph.edges, edge_attr=graph.weights[network], **label)
        data.layer = graph.layers
        made.append(data)
    return made
