"""Networks as graphs of their neurons."""

import pytest
import torch

import neuralfunctionals as nf
from neuralfunctionals.data.formats.graphs import neuron_graph, to_pyg
from neuralfunctionals.testing import random_features


def test_an_mlp_is_computed_by_its_graph():
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 4))
    graph = neuron_graph(nf.WeightSpaceFeatures.from_modules([module]))
    assert graph.nodes.shape == (1, 9, 1)
    assert graph.edges.shape == (2, 18)
    assert graph.layers.tolist() == [0] * 2 + [1] * 3 + [2] * 4
    inputs = torch.tensor([0.3, -2.0])
    values = torch.cat([inputs, torch.zeros(7)])
    for layer in (1, 2):
        sums = graph.nodes[0, :, 0].clone()
        sums.index_add_(0, graph.edges[1], graph.weights[0, :, 0] * values[graph.edges[0]])
        values = torch.where(graph.layers == layer, sums.relu() if layer == 1 else sums, values)
    torch.testing.assert_close(values[5:], module(inputs))


def test_kernels_of_different_sizes_are_filled_up_with_zeros():
    module = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3, bias=False), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(2, 5)
    )
    graph = neuron_graph(nf.WeightSpaceFeatures.from_modules([module, module]))
    assert graph.nodes.shape == (2, 8, 1)
    assert graph.weights.shape == (2, 12, 9)
    torch.testing.assert_close(graph.weights[0, :2], module[0].weight.flatten(1))
    assert not graph.weights[0, 2:, 1:].any()
    assert not graph.nodes[:, :3].any()


def test_networks_that_are_no_chains_are_refused():
    spec = nf.NetworkSpec.from_axes({"A": ("r", "in"), "B": ("out", "r")}, {"in": 3, "r": 2, "out": 3})
    with pytest.raises(ValueError, match="Expected chains"):
        neuron_graph(random_features(spec, channels=1))


def test_pytorch_geometric_gets_one_graph_for_each_network():
    data = pytest.importorskip("torch_geometric.data", reason="install the extra 'peers'")
    networks = random_features(nf.NetworkSpec.mlp([2, 3, 1]), channels=2, batch=4)
    made = to_pyg(networks, torch.arange(4))
    assert [(d.num_nodes, d.num_edges, int(d.y)) for d in made] == [(6, 9, label) for label in range(4)]
    batch = data.Batch.from_data_list(made)
    assert (batch.num_nodes, batch.edge_attr.shape) == (24, (36, 2))


def test_a_missing_pytorch_geometric_is_explained(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch_geometric.data", None)
    with pytest.raises(ValueError, match=r"pip install 'neuralfunctionals\[peers\]'"):
        to_pyg(random_features(nf.NetworkSpec.mlp([2, 3, 1]), channels=1))
