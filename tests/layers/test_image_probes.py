import pytest
import torch

from neuralfunctionals import NetworkSpec, NeuronPermutation
from neuralfunctionals.data import build_cnn
from neuralfunctionals.layers import ImageProbes
from neuralfunctionals.models import NeuronGraphNet, league
from neuralfunctionals.testing import random_features

SPEC = NetworkSpec.cnn([2, 3, 4], (3, 3), dense=[5])


def test_equals_the_zoos_own_networks_run_one_by_one():
    modules = {name: build_cnn(activation=name).double() for name in ("relu", "tanh")}
    spec = NetworkSpec.from_module(modules["relu"])
    probes = ImageProbes(spec, 3).double()
    networks = 0.3 * random_features(spec, batch=2)
    values = probes(networks)
    for number in range(2):
        for place, (name, module) in enumerate(modules.items()):
            (run,) = networks[number : number + 1].to_modules(module)
            x, layer = probes.images, 0
            for part in run.children():
                x = part(x)
                if isinstance(part, (torch.nn.ReLU, torch.nn.Tanh)):
                    layer += 1
                    found = values.neurons[layer][number][:, 3 * place : 3 * place + 3]
                    torch.testing.assert_close(found, x.mean((2, 3)).T.asinh(), msg=name)
            logits, probabilities = values.outputs[number].reshape(2, 2, 3, 10)[place]
            torch.testing.assert_close(logits, x.asinh())
            torch.testing.assert_close(probabilities, x.softmax(-1))


def test_values_move_with_their_neurons():
    probes = ImageProbes(SPEC, 3).double()
    networks = random_features(SPEC)
    permutation = NeuronPermutation.random(SPEC, symmetry="HNP")
    before, after = probes(networks), probes(permutation(networks))
    torch.testing.assert_close(after.outputs, before.outputs)
    assert before.outputs.shape[-1] == probes.output_channels
    for i, values in before.neurons.items():
        assert values.shape[-1] == probes.neuron_channels[i]
        torch.testing.assert_close(after.neurons[i][:, permutation.sigma[i]], values)


def test_a_predictor_with_probes_learns_its_images_and_is_of_the_second_league():
    model = NeuronGraphNet.generalization(SPEC, channels=8, num_rounds=1, probes=2).double()
    assert league(model) == "asks the function"
    out = model(random_features(SPEC))
    (grad,) = torch.autograd.grad(out.sum(), model.states.probes.images, allow_unused=True)  # pyright: ignore
    assert grad is not None
    assert grad.abs().max() > 0


@pytest.mark.parametrize("spec", [NetworkSpec.mlp([2, 3, 1]), NetworkSpec.cnn([1, 2, 2], (3,), dense=[2])])
def test_other_networks_are_refused(spec):
    with pytest.raises(ValueError, match="two-dimensional convolutions before any dense layers"):
        ImageProbes(spec, 3)


def test_one_image_is_enough_and_more_than_128_are_refused():
    assert ImageProbes(SPEC, 1)(random_features(SPEC, dtype=torch.float32)).outputs.isfinite().all()
    assert len(ImageProbes(SPEC, 128).images) == 128
    for count in (0, 129):
        with pytest.raises(ValueError, match=f"1 to 128 .*{count}"):
            ImageProbes(SPEC, count)
