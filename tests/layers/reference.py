"""The papers' formulas as slow loops over networks, layers, neurons and heads, to compare the layers with."""

import itertools
import math

import torch

from neuralfunctionals import WeightSpaceFeatures


def attend(query, pairs):
    """Attn(q, {(k_p, v_p)}) with scores divided by the square root of the vectors' length."""
    scores = torch.stack([(query * key).sum() for key, _ in pairs]) / math.sqrt(query.numel())
    return sum(weight * value for weight, (_, value) in zip(scores.softmax(0), pairs, strict=True))


def self_attention(layer, features, terms=(1, 2, 3)):
    """The appendix's "Full description including biases", for specs without kernels.

    W[i][j][k] and b[i][j] hold (q, k, v); layers count from 1 as in the paper, i - 1 = 0 being the input.
    """
    spec, heads = features.spec, layer.num_heads
    L, n = spec.num_layers, spec.widths
    c = layer.in_channels // heads
    out = []
    for network in range(len(features)):
        x = features[network]
        result = torch.zeros_like(x.tensor)
        for h in range(heads):
            W, b = {}, {}
            for i in range(1, L + 1):
                for j in range(n[i]):
                    for k in range(n[i - 1]):
                        W[i, j, k] = project(layer, x.weights[i - 1][0, j, k], i, j, k, h, c)
                    if spec.layers[i - 1].has_bias:
                        b[i, j] = project(layer, x.biases[i - 1][0, j], i, j, None, h, c)
            Y, z = attention_of_one_head(spec, W, b, terms, layer.global_term, layer.reduction)
            views = {(g.kind, g.layer): WeightSpaceFeatures(spec, result).group(g)[0] for g in spec.groups}
            for (i, j, k), value in Y.items():
                views["weight", i][j, k, h * c : (h + 1) * c] = value
            for (i, j), value in z.items():
                views["bias", i][j, h * c : (h + 1) * c] = value
        out.append(result)
    return torch.cat(out)


def project(layer, x, i, j, k, h, c):
    """Query, key and value of one entry: by the shared map, or by those of the fixed neurons it touches (HNP)."""
    linear, C = layer.to_qkv, layer.in_channels
    neurons = [(0, k)] * (i == 1 and k is not None) + [(layer.spec.num_layers, j)] * (i == layer.spec.num_layers)
    own = [(linear.fixed.index(axis), neuron) for axis, neuron in neurons if axis in linear.fixed]
    if own:
        y = sum(linear.weights[m][neuron] @ x + linear.biases[m][neuron] for m, neuron in own)
    else:
        y = linear.shared.weight @ x + linear.shared.bias
    return tuple(y[s * C + h * c : s * C + (h + 1) * c] for s in range(3))


def attention_of_one_head(spec, W, b, terms, global_term, reduction):
    L, n = spec.num_layers, spec.widths

    def row(i, j, s):
        return torch.stack([W[i, j, k][s] for k in range(n[i - 1])])

    def column(i, k, s):
        return torch.stack([W[i, j, k][s] for j in range(n[i])])

    def bias(i, s):
        return torch.stack([b[i, j][s] for j in range(n[i])])

    def vectors_over(i):
        """KV: columns of W(i), rows of W(i+1) and the bias b(i); KV_1 is vectors_over(i - 1), KV_2 vectors_over(i)."""
        columns = [(column(i, q, 1), column(i, q, 2)) for q in range(n[i - 1])] if i >= 1 else []
        rows = [(row(i + 1, p, 1), row(i + 1, p, 2)) for p in range(n[i + 1])] if i < L else []
        biases = [(bias(i, 1), bias(i, 2))] if i >= 1 and spec.layers[i - 1].has_bias else []
        return columns + rows + biases

    Y = {key: torch.zeros_like(value[0]) for key, value in W.items()}
    z = {key: torch.zeros_like(value[0]) for key, value in b.items()}
    for i in range(1, L + 1):
        for j in range(n[i]) if 1 in terms else []:
            values = attend(row(i, j, 0), vectors_over(i - 1))
            for k in range(n[i - 1]):
                Y[i, j, k] = Y[i, j, k] + values[k]
        for k in range(n[i - 1]) if 2 in terms else []:
            values = attend(column(i, k, 0), vectors_over(i))
            for j in range(n[i]):
                Y[i, j, k] = Y[i, j, k] + values[j]
        if 2 in terms and spec.layers[i - 1].has_bias:
            values = attend(bias(i, 0), vectors_over(i))
            for j in range(n[i]):
                z[i, j] = z[i, j] + values[j]
    if 3 in terms and global_term == "full":
        everything = [(key, value) for _, key, value in itertools.chain(W.values(), b.values())]
        Y = {index: y + attend(W[index][0], everything) for index, y in Y.items()}
        z = {index: y + attend(b[index][0], everything) for index, y in z.items()}
    if 3 in terms and global_term == "reduced":

        def pooled(entries, i, s):
            values = torch.stack([value[s] for index, value in entries.items() if index[0] == i])
            return values.mean(0) if reduction == "mean" else values.sum(0)

        with_bias = [i for i in range(1, L + 1) if spec.layers[i - 1].has_bias]
        groups = [(W, i) for i in range(1, L + 1)] + [(b, i) for i in with_bias]
        pairs = [(pooled(entries, i, 1), pooled(entries, i, 2)) for entries, i in groups]
        Y = {index: y + attend(pooled(W, index[0], 0), pairs) for index, y in Y.items()}
        z = {index: y + attend(pooled(b, index[0], 0), pairs) for index, y in z.items()}
    return Y, z


def cross_attention(layer, features):
    """CA(W; e, theta_K, theta_V) with heads, one entry after the other, for specs without kernels."""
    d = layer.out_channels // layer.num_heads
    out = torch.zeros(len(features), layer.num_latents, layer.out_channels, dtype=features.tensor.dtype)
    for network, m, h in itertools.product(range(len(features)), range(layer.num_latents), range(layer.num_heads)):
        part = slice(h * d, (h + 1) * d)
        pairs = [
            ((layer.to_keys.weight @ x)[part], (layer.to_values.weight @ x + layer.to_values.bias)[part])
            for x in features.tensor[network]
        ]
        out[network, m, part] = attend(layer.queries[m, part], pairs)
    return out


def equivariant_linear(layer, features, average=False):
    """The sum over all pairs of arrays of all maps that keep, for a subset of the axes they share, those axes.

    The parameters are those of the layer, read through the position of each array in its summaries. Arrays are
    dictionaries from places (neurons of the permutable axes) to vectors of folded channels.
    """
    groups, C, D = layer.groups, layer.in_channels, layer.out_channels
    out = torch.zeros(len(features), features.spec.num_entries, D, dtype=features.tensor.dtype)
    reduce = {"mean": lambda v: v.mean(0), "sum": lambda v: v.sum(0), "max": lambda v: v.amax(0)}[layer.reduction]
    for network in range(len(features)):
        arrays = [to_places(features.spec, g, features.tensor[network]) for g in groups]
        for t, target in enumerate(groups):
            for place in arrays[t]:
                total = block_of(layer.network_map.bias, t, None, groups, C, D).clone()
                for s, source in enumerate(groups):
                    shared = [a for a in source.axes if a in target.axes]
                    for size in range(len(shared) + 1):
                        for kept in itertools.combinations(shared, size):
                            matrix = parameters_for(layer, t, s, kept)
                            same = dict(zip(target.axes, place, strict=True))
                            values = [
                                value
                                for where, value in arrays[s].items()
                                if all(where[source.axes.index(a)] == same[a] for a in kept)
                            ]
                            total = total + matrix @ reduce(torch.stack(values))
                write_place(features.spec, target, out[network], place, total / (len(groups) if average else 1))
    return out


def parameters_for(layer, t, s, kept):
    """The matrix from array s to array t that keeps these axes."""
    groups, C, D = layer.groups, layer.in_channels, layer.out_channels
    weight = next(layer._map(axes).weight for axes in layer.terms if set(axes) == set(kept))
    having = [n for n, g in enumerate(groups) if set(kept) <= set(g.axes)]
    return block_of(weight, having.index(t), having.index(s), [groups[n] for n in having], C, D)


def block_of(parameter, t, s, groups, C, D):
    rows = parameter.split([g.fold * D for g in groups])[t]
    return rows if s is None else rows.split([g.fold * C for g in groups], dim=1)[s]


def to_places(spec, folded, entries):
    """A dictionary from neurons of the permutable axes to the channels of all fixed neurons and kernel positions."""
    group = folded.group
    array = entries[group.start : group.stop].reshape(*group.shape, -1)
    places = {}
    for neurons in itertools.product(*(range(spec.widths[a]) for a in folded.axes)):
        index = tuple(neurons[folded.axes.index(a)] if a in folded.axes else slice(None) for a in group.axes)
        places[neurons] = array[index].flatten()
    return places


def write_place(spec, folded, entries, neurons, value):
    group = folded.group
    array = entries[group.start : group.stop].view(*group.shape, -1)
    index = tuple(neurons[folded.axes.index(a)] if a in folded.axes else slice(None) for a in group.axes)
    array[index] = value.view(array[index].shape)


def neuron_states(layer, features):
    """States of single neurons as dictionaries from (axis, neuron); messages summed one weight at a time.

    For specs whose groups have at most two axes, none nested in another.
    """
    spec, n = features.spec, features.spec.widths
    fixed = spec.fixed_axes(layer.symmetry)
    free = [i for i in range(len(spec.axes)) if i not in fixed]
    results = []
    for network in range(len(features)):
        x = features[network]
        logs, inside, entries = [], [], {}
        for g in spec.groups:
            raw = x.group(g)[0]
            scale = (raw.flatten(0, -2).square().mean(0) + 1e-12).sqrt()
            logs += scale.log().tolist()
            for place in itertools.product(*(range(n[a]) for a in g.axes)):
                entries[g, place] = raw[place] / scale
                if all(a in fixed for a in g.axes):
                    inside += raw[place].flatten().tolist()
        whole = torch.tensor([*logs, *inside], dtype=raw.dtype)
        h = {}
        for i in free:
            for j in range(n[i]):
                seen = []
                for number, g in enumerate(spec.groups):
                    if i not in g.axes:
                        continue
                    mine = [(p, v.flatten()) for (h_, p), v in entries.items() if h_ is g and p[g.axes.index(i)] == j]
                    values = [v for _, v in mine]
                    others = [a for a in g.axes if a != i]
                    if g.kind != "weight" and len(g.axes) == 1:
                        seen += values
                        if layer.omega is not None:
                            angle = layer.omega * x.group(g)[0][j]
                            seen += [angle.sin(), angle.cos()]
                    elif all(a in fixed for a in others):
                        # A fixed neuron's kernel positions and channels stand together, as in FoldedGroup.
                        seen += [torch.cat(values), torch.cat(values).abs()]
                        if layer.fourier:
                            rows = zip(torch.cat(values), layer.fourier[str(number)].frequencies, strict=True)
                            angles = torch.cat([2 * math.pi * value * row for value, row in rows])
                            seen += [angles.sin(), angles.cos()]
                    else:
                        seen += [sum(values) / len(values), sum(v.abs() for v in values) / len(values)]
                h[i, j] = layer.read_neurons[str(i)](torch.cat(seen)) + layer.read_network[str(i)](whole)
        joints = [g for g in spec.groups if len(g.axes) == 2 and all(a in free for a in g.axes)]
        gate = {
            (g, place): layer.gates.maps[joints.index(g)].weight @ v.flatten()
            for (g, place), v in entries.items()
            if g in joints and len(layer.rounds)
        }
        for update in layer.rounds:
            for i in free:
                new = {}
                for j in range(n[i]):
                    seen = [h[i, j]]
                    for g in joints:
                        if i not in g.axes:
                            continue
                        at, behind = g.axes.index(i), g.axes[1 - g.axes.index(i)]
                        pairs = [(v, h[behind, p[1 - at]]) for (h_, p), v in gate.items() if h_ is g and p[at] == j]
                        seen += messages(pairs)
                    new[i, j] = h[i, j] + update.updates[str(i)](torch.cat(seen))
                h |= new
        results.append((h, whole))
    return results


def messages(pairs):
    """Sums of gated states over the neurons behind: signed over the root of their number, absolute over it."""
    signed = [g.repeat_interleave(len(h) // len(g)) * h for g, h in pairs]
    absolute = [g.abs().repeat_interleave(len(h) // len(g)) * h for g, h in pairs]
    return [sum(signed) / math.sqrt(len(pairs)), sum(absolute) / len(pairs)]
