import torch
from hypothesis import given

from neuralfunctionals import NetworkSpec
from neuralfunctionals.layers import Project, Unproject
from neuralfunctionals.testing import random_features
from strategies import cnn_specs


@given(spec=cnn_specs())
def test_kernels_fold_into_channels_and_back(spec):
    features = random_features(spec, 2)
    project, unproject = Project(spec, 2, 3).double(), Unproject(spec, 3, 2).double()
    folded = project(features)
    assert folded.spec == spec.without_kernels()
    restored = unproject(folded)
    assert restored.spec == spec
    for n, (group, small) in enumerate(zip(spec.groups, folded.spec.groups, strict=True)):
        values = features.group(group).flatten(1 + len(group.axes))  # kernel positions, then channels
        expected = values @ project.maps[n].weight.T + project.maps[n].bias
        torch.testing.assert_close(folded.group(small), expected)
        back = expected @ unproject.maps[n].weight.T + unproject.maps[n].bias
        torch.testing.assert_close(restored.group(group).flatten(1 + len(group.axes)), back)


def test_layers_without_kernel_pass_unchanged_if_the_width_stays():
    spec = NetworkSpec.cnn([1, 4], (3, 3), dense=[2])
    features = random_features(spec, 5)
    folded = Project(spec, 5, 5).double()(features)
    assert torch.equal(folded.weights[1], features.weights[1])
    assert torch.equal(folded.biases[0], features.biases[0])
