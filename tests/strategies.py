"""Random small networks: widths 1 to 5, equal and unit widths, kernels of one to three dimensions."""

import itertools

from hypothesis import strategies as st

from neuralfunctionals import LayerSpec, NetworkSpec

widths = st.integers(1, 4)
always = st.just(True)


@st.composite
def mlp_specs(draw, min_layers=1, max_layers=4, biases=always):
    sizes = draw(st.lists(widths, min_size=min_layers + 1, max_size=max_layers + 1))
    if draw(st.booleans()):  # equal widths, where index bugs hide
        sizes = [sizes[0]] * len(sizes)
    pairs = itertools.pairwise(sizes)
    return NetworkSpec(tuple(LayerSpec(o, i, (), draw(biases), f"layers.{n}") for n, (i, o) in enumerate(pairs)))


@st.composite
def cnn_specs(draw):
    dimensions = draw(st.integers(1, 3))
    channels = draw(st.lists(st.integers(1, 3), min_size=2, max_size=3))
    kernels = [tuple(draw(st.integers(1, 2)) for _ in range(dimensions)) for _ in channels[1:]]
    return NetworkSpec.cnn(channels, kernels, dense=draw(st.lists(st.integers(1, 3), max_size=2)))


def network_specs():
    return st.one_of(mlp_specs(), mlp_specs(biases=st.booleans()), cnn_specs())
