import itertools

import pytest
import torch

from neuralfunctionals import NetworkSpec
from neuralfunctionals.layers.folding import FoldedGroup
from neuralfunctionals.testing import random_features
from neuralfunctionals.weight_space.axes import Axis, Group

AXES = (Axis(2), Axis(3), Axis(2, within=1), Axis(4, within=1))


@pytest.mark.parametrize("order", [*itertools.permutations(range(4))])
def test_neurons_of_nested_axes_are_numbered_through_their_parent_and_back(order):
    shape = tuple(AXES[n].size for n in order)
    spec = NetworkSpec(axes=AXES, groups=(Group(1, "weight", order, shape, 0, "w"),))
    (group,) = FoldedGroup.of(spec, "NP")
    x = group.fold_fixed(random_features(spec, 2).group(spec.groups[0]))
    y = group.by_ends(x)
    assert group.ends == tuple(n for n in order if n != 1)
    expected = torch.zeros_like(y)  # also where neurons of different parents meet
    for index in itertools.product(*map(range, shape)):
        at = dict(zip(order, index, strict=True))
        number = {0: at[0], 2: 2 * at[1] + at[2], 3: 4 * at[1] + at[3]}
        expected[(slice(None), *(number[n] for n in group.ends))] = x[(slice(None), *index)]
    assert torch.equal(y, expected)
    assert torch.equal(group.from_ends(y), x)
