"""One call for one network: every way in which people keep their networks, through every kind of model."""

import copy

import pytest
import torch
from torch import nn

import neuralfunctionals as nf
from neuralfunctionals.data import build_cnn, open_images
from neuralfunctionals.inr import Siren, SirenForm, convert, fit


@pytest.fixture(scope="module")
def digits():
    """Three fitted digits as modules."""
    images = open_images("mnist-unseen").read(range(3))
    return fit(images, recipe="fast").features.to_modules(Siren())


@pytest.fixture(scope="module")
def classify():
    return nf.pipeline("digits-classify")


@pytest.fixture(scope="module")
def expected(classify, digits):
    return [classify(digit).label for digit in digits]


def save(content, file):
    torch.save(content, file)
    return file


def lightning(digit):
    return {"state_dict": {f"model.net.{k}": v for k, v in digit.state_dict().items()}, "epoch": 3, "callbacks": {}}


KEPT = {
    "module": lambda digit, path: digit,
    "compiled module": lambda digit, path: torch.compile(digit),
    "data parallel": lambda digit, path: nn.DataParallel(digit),
    "half module": lambda digit, path: copy.deepcopy(digit).half(),
    "double module": lambda digit, path: copy.deepcopy(digit).double(),
    "state_dict": lambda digit, path: digit.state_dict(),
    "bfloat16 state_dict": lambda digit, path: {k: v.bfloat16() for k, v in digit.state_dict().items()},
    "compiled state_dict": lambda digit, path: {f"_orig_mod.{k}": v for k, v in digit.state_dict().items()},
    "DDP state_dict": lambda digit, path: {f"module.{k}": v for k, v in digit.state_dict().items()},
    "parameters": lambda digit, path: dict(digit.named_parameters()),
    "checkpoint": lambda digit, path: {"model_state_dict": digit.state_dict(), "epoch": 3},
    "features": lambda digit, path: nf.WeightSpaceFeatures.from_modules([digit]),
    ".pth": lambda digit, path: save(digit.state_dict(), path / "x.pth"),
    ".pt of a list": lambda digit, path: save([digit.state_dict()] * 2, path / "x.pt"),
    ".ckpt": lambda digit, path: save(lightning(digit), path / "x.ckpt"),
    "model in .pth": lambda digit, path: save({"model": digit.state_dict(), "optimizer": {}}, path / "x.pth"),
}


@pytest.mark.parametrize("kind", KEPT)
def test_a_network_is_read_however_it_is_kept(kind, classify, digits, expected, tmp_path):
    for digit, label in zip(digits, expected, strict=True):
        found = classify(KEPT[kind](digit, tmp_path))
        for answer in found if isinstance(found, list) else [found]:
            assert answer.label == label
            assert answer.probability == pytest.approx(max(answer.probabilities))
            assert sum(answer.probabilities) == pytest.approx(1)


def test_lists_and_stores_give_lists(classify, digits, expected, tmp_path):
    assert [a.label for a in classify(digits)] == expected
    assert [a.label for a in classify(d.state_dict() for d in digits)] == expected
    assert [a.label for a in classify(nf.WeightSpaceFeatures.from_modules(digits))] == expected


def test_frequency_and_convention_are_converted(classify, digits, expected):
    networks = nf.WeightSpaceFeatures.from_modules(digits)
    other = convert(networks, SirenForm(20.0, "dws"))
    found = classify(other, omega=20.0, convention="dws")
    assert [a.label for a in found] == expected
    (module,) = convert(networks, SirenForm(20.0))[:1].to_modules(Siren(omega=20.0))
    assert classify(module).label == expected[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_edited_networks_come_back_as_they_came(digits, dtype, tmp_path):
    edit = nf.pipeline("digits-dilate")
    module = copy.deepcopy(digits[0]).to(dtype)
    before = {name: x.clone() for name, x in module.state_dict().items()}
    edited = edit(module)
    assert type(edited) is type(module)
    content = edit({f"module.{name}": x for name, x in before.items()})
    assert isinstance(content, dict)
    for name, x in edited.state_dict().items():
        assert x.dtype == dtype
        assert not torch.equal(x, before[name])
        torch.testing.assert_close(content[f"module.{name}"], x)
        torch.testing.assert_close(module.state_dict()[name], before[name])
    as_list = edit([before, before])
    assert [sorted(d) for d in as_list] == [sorted(before)] * 2
    as_file = edit(save(before, tmp_path / "x.pth"))
    torch.testing.assert_close(as_file, as_list[0])


def test_tasks_take_state_dicts_too(classify, digits, expected):
    contents = [digit.state_dict() for digit in digits]
    assert classify.task.classify(contents).tolist() == expected
    assert classify.task.classify(contents[0]).tolist() == expected[:1]
    edit = nf.pipeline("digits-dilate")
    torch.testing.assert_close(edit.task.edit(contents[0]), edit(contents[0]))
    torch.testing.assert_close(edit.task.edit(contents), edit(contents))


def test_latents_and_accuracies(digits):
    latents = nf.pipeline("digits-inr2array")(digits)
    assert len(latents) == 3
    torch.testing.assert_close(nf.pipeline("digits-inr2array")(digits[1]), latents[1], atol=1e-5, rtol=1e-4)
    accuracy = nf.pipeline("cnn-accuracy")(build_cnn())
    assert 0 <= accuracy <= 1
    assert len(nf.pipeline("cnn-accuracy")([build_cnn(), build_cnn()])) == 2


def test_a_module_settles_what_names_and_shapes_leave_open(classify, digits, expected):
    content = {f"model.{name}": x for name, x in digits[0].state_dict().items()}
    names = [f"model.{layer.name}" for layer in nf.NetworkSpec.from_module(digits[0]).layers]
    assert classify(content, module=digits[0]).label == expected[0]
    assert classify(content, layers=names).label == expected[0]


def test_networks_of_another_activation_are_refused(classify):
    other = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    with pytest.raises(ValueError, match="tanh"):
        classify(other)
    with pytest.raises(ValueError, match="tanh"):
        classify(other.state_dict(), module=other)


@pytest.mark.parametrize(
    ("networks", "message"),
    [
        ("nowhere.pth", "Cannot read the file of weights nowhere.pth"),
        (3, "Expected a module, a state_dict, a list of these, features, a store, or the path of a file, but got int"),
        ([], "but got an empty list"),
        ([3], "but got a list that contains int"),
        (nn.Linear(2, 1), "takes networks 2->32, 32->32, 32->1, but"),
        ({"0.weight": torch.zeros(3, 32, 2)}, "32"),
        ({"0.weight": torch.zeros(3, 32, 2), "0.bias": torch.zeros(3, 32)}, "a stack of 3 networks"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(classify, networks, message):
    with pytest.raises(ValueError, match=message) as caught:
        classify(networks)
    assert "\n" not in str(caught.value)


def test_every_shipped_model_is_a_pipeline():
    assert {"cnn-accuracy", "digits-classify", "digits-dilate", "digits-inr2array"} <= set(nf.list_pretrained())
    for name in nf.list_pretrained():
        assert name in repr(nf.pipeline(name))
