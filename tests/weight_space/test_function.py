import pytest
import torch
from architectures import Gpt, ResNet, mlp
from torch import nn

from neuralfunctionals import NetworkSpec, WeightSpaceFeatures, functional_call
from neuralfunctionals.inr import Siren, SirenForm, convert, image_grid, render
from neuralfunctionals.testing import random_features
from neuralfunctionals.weight_space import evaluate_layers, output_slopes


def close(a, b, tolerance=1e-9):
    torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


@pytest.mark.parametrize("activation", [nn.Tanh(), nn.ReLU(), nn.GELU(), nn.SiLU(), nn.Sigmoid()])
def test_networks_compute_what_their_modules_do(activation):
    modules = [mlp(activation).double() for _ in range(3)]
    features = WeightSpaceFeatures.from_modules(modules)
    x = torch.randn(4, 3, dtype=torch.float64)
    expected = torch.stack([m(x) for m in modules])
    close(functional_call(features, x), expected)
    close(functional_call(features, x, module=modules[0]), expected)
    own = torch.randn(3, 4, 3, dtype=torch.float64)
    close(functional_call(features, own), torch.stack([m(y) for m, y in zip(modules, own, strict=True)]))


def test_activations_with_other_arguments_are_not_mistaken():
    spec = NetworkSpec.from_module(mlp(nn.GELU(approximate="tanh")))
    assert spec.activation is None
    with pytest.raises(ValueError, match="does not record what its networks compute: activation of layer 1"):
        functional_call(random_features(spec), torch.randn(2, 3))


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(1, 3, 3, 2), nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, 2)

    def forward(self, x):
        return self.c(torch.relu(self.b(torch.relu(self.a(x)))).mean((2, 3)))


def test_convolutions_run_with_stride_padding_and_pooling():
    module = Cnn().double()
    spec = NetworkSpec.cnn([1, 3, 4], (3, 3), [2], activation="relu", stride=1, padding=1, pooling="mean")
    module.a.stride, module.a.padding = (1, 1), (1, 1)
    features = WeightSpaceFeatures.from_modules([module, Cnn().double()])
    x = torch.randn(5, 1, 8, 8, dtype=torch.float64)
    close(functional_call(WeightSpaceFeatures(spec, features.tensor), x)[0], module(x))
    strided = [Cnn().double(), Cnn().double()]
    features = WeightSpaceFeatures.from_modules(strided)
    assert features.spec.pooling == "mean"
    close(functional_call(features, x), torch.stack([m(x) for m in strided]))


def test_outputs_are_differentiable_in_weights_and_inputs():
    spec = NetworkSpec.siren([2, 4, 1], omega=2.0)
    weights = random_features(spec).tensor.requires_grad_()
    x = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda w, y: functional_call(WeightSpaceFeatures(spec, w), y), (weights, x))


def test_traced_networks_run_with_their_module():
    for module, x in ((ResNet().double().eval(), torch.randn(2, 3, 8, 8).double()), (Gpt(), torch.zeros(2, 5).long())):
        module = module.double()
        spec = NetworkSpec.from_module(module, x)
        features = WeightSpaceFeatures.from_modules([module, module], spec=spec)
        weights = features.with_tensor(features.tensor.clone().requires_grad_())
        output = functional_call(weights, x, module=module)
        close(output[1], module(x))
        output.square().sum().backward()
        assert weights.tensor.grad.abs().sum() > 0
        with pytest.raises(ValueError, match="takes chains of dense layers"):
            functional_call(features, x)


def test_frequency_and_convention_are_part_of_the_spec():
    siren = Siren([2, 8, 1], omega=7.0, seed=0)
    features = WeightSpaceFeatures.from_modules([siren])
    grid = image_grid(4, 4)
    assert features.spec.omega == 7.0
    close(render(features, grid)[0], siren(grid), 1e-6)
    silent = WeightSpaceFeatures(NetworkSpec.mlp([2, 8, 1]), features.tensor)  # read with frequency 30
    assert not torch.allclose(render(silent, grid)[0], siren(grid))
    converted = convert(features, SirenForm(30.0))
    assert converted.spec.omega == 30.0
    close(render(converted, grid)[0], siren(grid), 1e-5)
    with pytest.raises(ValueError, match="activation sine of frequency 7, not sine of frequency 30"):
        features.require_spec(converted.spec, "A model")
    with pytest.raises(ValueError, match="Expected sine networks, but the networks .* have the activation tanh"):
        render(random_features(NetworkSpec.mlp([2, 4, 1], "tanh")), grid)

    known = WeightSpaceFeatures(NetworkSpec.siren([2, 8, 1], 7.0), features.tensor)
    other = convert(known, SirenForm(7.0, "dws"))
    assert other.spec.convention == "dws"
    close(render(other, grid), render(known, grid), 1e-6)
    # The published networks add 0.5 and give pixels in [0, 1].
    close(functional_call(other, grid.flip(-1)), (functional_call(known, grid) + 1) / 2, 1e-6)


def test_what_is_known_survives_json_and_is_left_out_where_it_is_not():
    known = NetworkSpec.siren([2, 4, 1], omega=20.0, convention="dws")
    again = NetworkSpec.from_json(known.to_json())
    assert (again.omega, again.convention) == (20.0, "dws")
    cnn = NetworkSpec.cnn([1, 3], (3, 3), [2], activation="relu", stride=2, padding=0, pooling="mean")
    again = NetworkSpec.from_json(cnn.to_json())
    assert (again.layers[0].stride, again.layers[0].padding, again.pooling) == ((2, 2), (0, 0), "mean")
    plain = NetworkSpec.mlp([2, 4, 1])
    assert plain == known
    assert plain.matches(known)
    assert not known.matches(NetworkSpec.siren([2, 4, 1]))
    assert set(plain.to_dict()) == {"layers"}
    assert set(plain.to_dict()["layers"][0]) == {"out_neurons", "in_neurons", "kernel", "has_bias", "name"}


@pytest.mark.parametrize("widths", [[2, 1], [2, 4, 3], [2, 5, 4, 1], [3, 2, 4, 3, 2]])
def test_slopes_of_sine_networks_are_the_derivatives_of_their_outputs(widths):
    spec = NetworkSpec.siren(widths, omega=3.0)
    networks = 0.3 * random_features(spec, batch=2)
    points = torch.randn(2, 5, widths[0], dtype=torch.float64, requires_grad=True)
    *arguments, outputs = evaluate_layers(networks, points)
    slopes = output_slopes(networks, arguments)
    for o in range(widths[-1]):
        expected = torch.autograd.grad(outputs[..., o].sum(), [points, *arguments], retain_graph=True)
        for found, derivative in zip(slopes, expected, strict=True):
            close(found[:, o].expand_as(derivative), derivative)
