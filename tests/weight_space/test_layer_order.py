"""The order of layers, against all orders of them."""

import itertools
import random
import re

import pytest
import torch
from hypothesis import given, settings, strategies as st

from neuralfunctionals import LayerSpec, NetworkSpec
from neuralfunctionals.weight_space.layer_order import _chains


def numbered_before(name, other):
    numbers = [[int(n) for n in re.findall(r"\d+", x)] for x in (name, other)]
    return re.sub(r"\d+", "#", name) == re.sub(r"\d+", "#", other) and numbers[0] < numbers[1]


def is_chain(layers):
    fits = all(
        a.out_neurons == b.in_neurons and (not b.kernel or len(a.kernel) == len(b.kernel))
        for a, b in itertools.pairwise(layers)
    )
    return fits and not any(numbered_before(b.name, a.name) for a, b in itertools.combinations(layers, 2))


layers = st.tuples(
    st.sampled_from(["a", "b", "c", "d", "e0", "e1", "e2", "e01", "f1.x", "f10.x", "f2.x"]),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([(), (), (), (3,), (3, 3)]),
)


@settings(max_examples=500)
@given(drawn=st.lists(layers, min_size=1, max_size=6, unique_by=lambda layer: layer[0]))
def test_exactly_the_orders_are_found_that_trying_all_finds(drawn):
    specs = {name: LayerSpec(o, i, kernel, True, name) for name, o, i, kernel in drawn}
    tried = sorted([x.name for x in order] for order in itertools.permutations(specs.values()) if is_chain(order))
    found = sorted([x.name for x in order] for order in _chains(specs))
    loose = {name for name in specs if name in ("e1", "e01")}
    if len(loose) < 2:
        assert found == tried
    else:  # of equal numbers; such names may get more orders, never fewer
        assert all(order in found for order in tried)


def state_dict(shapes, seed=0):
    """Layers under names without numbers, in any order."""
    names = ["".join(letters) for letters in itertools.product("abcdefgh", repeat=3)][: len(shapes)]
    named = list(zip(names, shapes, strict=True))
    random.Random(seed).shuffle(named)
    return {f"{name}.weight": torch.empty(shape, device="meta") for name, shape in named}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("count", [9, 12, 40, 200])
def test_many_layers_without_numbers_are_ordered_or_asked_for_in_time(count):
    chain = NetworkSpec.from_state_dict(state_dict([(n + 2, n + 1) for n in range(count)]))
    assert chain.widths == tuple(range(1, count + 2))
    with pytest.raises(ValueError, match=r"Several orders .*layers=\[\.\.\.\]"):
        NetworkSpec.from_state_dict(state_dict([(3, 3)] * count))
    with pytest.raises(ValueError, match="no such order"):  # the last one fits nowhere
        NetworkSpec.from_state_dict(state_dict([(3, 3)] * (count - 1) + [(4, 5)]))
    # A loop that must be walked at the right moment.
    loop = [(2, 1), *[(5, 2), (2, 5)] * ((count - 3) // 2), (3, 2)]
    with pytest.raises(ValueError, match="Several orders"):
        NetworkSpec.from_state_dict(state_dict(loop))


@pytest.mark.timeout(120)
def test_a_search_that_takes_too_long_ends_with_a_question():
    """Two numbered families whose numbers contradict their shapes: a dead end at the end of every way."""
    specs = {f"{family}.{n}": (3, 3) for family in "abcdefgh" for n in range(8)}
    specs |= {"x.0": (4, 3), "x.1": (3, 4), "y.1": (5, 3), "y.0": (3, 5)}
    state = {f"{name}.weight": torch.empty(shape, device="meta") for name, shape in specs.items()}
    with pytest.raises(ValueError, match=r"The order of 68 layers takes too long .*layers=\[\.\.\.\]"):
        NetworkSpec.from_state_dict(state)
