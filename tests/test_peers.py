"""With parameters copied over, our layers agree with the authors' package."""

import pytest
import torch

from neuralfunctionals import NetworkSpec
from neuralfunctionals.layers import HNPLinear, NPLinear, WeightSpaceSelfAttention
from neuralfunctionals.testing import random_features

nfn_layers = pytest.importorskip("nfn.layers", reason="install the extra 'peers' to compare with nfn")
nfn_common = pytest.importorskip("nfn.common")

SPECS = [
    NetworkSpec.mlp([2, 5, 4, 3]),
    NetworkSpec.mlp([2, 5, 4, 3, 2]),
    NetworkSpec.mlp([3, 4, 2]),
    NetworkSpec.cnn([2, 4, 3, 3], (3, 2), dense=[5]),
]


def to_nfn(features):
    first = [t.movedim(-1, 1).contiguous() for t in (*features.weights, *features.biases)]
    n = features.spec.num_layers
    return nfn_common.WeightSpaceFeatures(first[:n], first[n:])


def nfn_spec(spec):
    return nfn_common.network_spec_from_wsfeat(to_nfn(random_features(spec)), set_all_dims=True)


def assert_agrees(ours, theirs, channels):
    features = random_features(ours.spec, channels, batch=3, dtype=torch.float32)
    expected = theirs(to_nfn(features))
    result = ours(features)
    for mine, other in zip((*result.weights, *result.biases), (*expected.weights, *expected.biases), strict=True):
        torch.testing.assert_close(mine, other.movedim(1, -1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_attention_agrees_with_nfn(spec):
    spec = spec.without_kernels()  # nfn shares projections only between layers without kernels
    ours = WeightSpaceSelfAttention(spec, 8, num_heads=2)
    theirs = nfn_layers.NPAttention(nfn_spec(spec), 8, num_heads=2)
    # nfn splits channels into heads first and then into query, key, value; we do it the other way round.
    order = torch.arange(24).view(2, 3, 4).transpose(0, 1).flatten()
    with torch.no_grad():
        ours.to_qkv.shared.weight.copy_(theirs.to_qkv.linear.weight[order])
        ours.to_qkv.shared.bias.copy_(theirs.to_qkv.linear.bias[order])
    assert_agrees(ours, theirs, 8)


# The linear layers. An input of nfn's maps is a list of segments (kind, layer, whether whole or a mean): the
# weights of the outer layers enter HNP maps whole and, needlessly, also as means over the fixed neurons.


def np_maps(L):
    """For each target (kind, layer): the modules that map it from the network, and from neurons of each axis."""
    network = [("weight", i, False) for i in range(1, L + 1)] + [("bias", i, False) for i in range(1, L + 1)]
    maps = {}
    for i in range(1, L + 1):
        behind = [("weight", i, False)] + ([("weight", i - 1, False), ("bias", i - 1, False)] if i > 1 else [])
        ahead = [("weight", i, False), ("bias", i, False)] + ([("weight", i + 1, False)] if i < L else [])
        w, b = f"layer_{i - 1}", f"bias_{i - 1}"
        maps["weight", i] = {
            "entry": w,
            "network": (f"{w}_rc", network),
            "neurons": {i - 1: (f"{w}_r", behind), i: (f"{w}_c", ahead)},
        }
        maps["bias", i] = {"network": (f"{b}_rc", network), "neurons": {i: (b, ahead)}}
    return maps


def hnp_maps(L):
    maps = np_maps(L)
    network = maps["bias", 1]["network"][1] + [("weight", 1, True), ("weight", L, True), ("bias", L, True)]
    first = [("weight", 1, True), ("weight", 2, False), ("bias", 1, False)] + [("weight", 2, True)] * (L == 2)
    last = [("weight", L, True), ("weight", L - 1, False)] + [("weight", 1, True)] * (L == 2)
    for target in maps.values():
        target["network"] = (target["network"][0], network)
    for i in range(2, L):
        neurons = maps["weight", i]["neurons"]
        if i == 2:
            neurons[1] = (neurons[1][0], neurons[1][1] + [("weight", 1, True)])
        if i == L - 1:
            for kind in ("weight", "bias"):
                name, segments = maps[kind, i]["neurons"][i]
                maps[kind, i]["neurons"][i] = (name, [*segments, ("weight", L, True)])
    maps["weight", 1] = {"network": ("w0_rbdcst", network), "neurons": {1: ("w0_rpt", first)}}
    maps["bias", 1] = {"network": ("bias_0_rc", network), "neurons": {1: ("bias_0", first)}}
    maps["weight", L] = {"network": ("wfin_cbdcst", network), "neurons": {L - 1: ("wfin_cpt", last)}}
    maps["bias", L] = {"network": ("bias_fin_rc", network), "neurons": {}}
    return maps


def copy_parameters(ours, theirs, maps):
    folded = {(g.group.kind, g.group.layer): g for g in ours.groups}
    targets = list(folded)
    for t, target in enumerate(targets):
        rows = reorder(folded[target], ours.out_channels)
        biases = []

        def read(name, segments, sources, rows=rows, biases=biases):
            """Our matrix from these sources, out of nfn's module of that name."""
            module = getattr(theirs, name)
            biases.append(module.bias[rows])
            total = {s: torch.zeros(len(rows), folded[s].fold * ours.in_channels) for s in sources}
            start = 0
            for kind, layer, whole in segments:
                source = folded[kind, layer]
                fixed = source.fold // source.group.kernel_size
                size = ours.in_channels * source.group.kernel_size * (fixed if whole else 1)
                part = module.weight.flatten(1)[rows][:, start : start + size]
                part = part.view(len(rows), ours.in_channels, source.group.kernel_size, -1)
                part = part if whole else part.expand(-1, -1, -1, fixed) / fixed
                total[kind, layer] += part.permute(0, 3, 2, 1).flatten(1)
                start += size
            assert start == module.weight.shape[1]
            return torch.cat([total[s] for s in sources], 1)

        place(ours.network_map.weight, t, targets, folded, ours).copy_(read(*maps[target]["network"], targets))
        for axis, (name, segments) in maps[target]["neurons"].items():
            touching = [s for s in targets if axis in folded[s].axes]
            weight = ours.neuron_maps[str(axis)].weight
            place(weight, touching.index(target), touching, folded, ours).copy_(read(name, segments, touching))
        if "entry" in maps[target]:
            ours.entry_maps[str(t)].weight.copy_(read(maps[target]["entry"], [(*target, True)], [target]))
        place(ours.network_map.bias, t, targets, folded, ours).copy_(sum(biases))


def place(parameter, t, targets, folded, ours):
    return parameter.split([folded[s].fold * ours.out_channels for s in targets])[t]


def reorder(folded, channels):
    """For each of our folded channels (fixed neuron, kernel position, channel), its place in nfn's reverse order."""
    kernel = folded.group.kernel_size
    return torch.arange(channels * folded.fold).view(channels, kernel, -1).permute(2, 1, 0).flatten()


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize(
    ("ours", "theirs", "maps"),
    [(NPLinear, nfn_layers.NPLinear, np_maps), (HNPLinear, nfn_layers.HNPLinear, hnp_maps)],
    ids=["NP", "HNP"],
)
@torch.no_grad()
def test_linear_layers_agree_with_nfn(ours, theirs, maps, spec):
    mine, other = ours(spec, 2, 3), theirs(nfn_spec(spec), 2, 3)
    copy_parameters(mine, other, maps(spec.num_layers))
    assert_agrees(mine, other, 2)
