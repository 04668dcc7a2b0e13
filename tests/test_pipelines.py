"""One call for one network: every way in which people keep their networks, through every kind of model."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import neuralfunctionals as nf
from commands import run
from neuralfunctionals.data import build_cnn, open_images
from neuralfunctionals.inr import Siren, SirenForm, convert, fit
from siren_styles import LAYERS, Sine, SirenNet, Sitzmann, WithBuffer, in_style


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
    "Sitzmann's": lambda digit, path: in_style(Sitzmann, digit),
    "siren-pytorch's": lambda digit, path: in_style(SirenNet, digit),
    "frequency as buffer": lambda digit, path: in_style(WithBuffer, digit),
    "model in .pth": lambda digit, path: save({"model": digit.state_dict(), "optimizer": {}}, path / "x.pth"),
}


@pytest.mark.parametrize("kind", KEPT)
def test_a_network_is_read_however_it_is_kept(kind, classify, digits, expected, tmp_path, capsys):
    for digit, label in zip(digits, expected, strict=True):
        kept = KEPT[kind](digit, tmp_path)
        found = classify(kept)
        for answer in found if isinstance(found, list) else [found]:
            assert answer.label == label
            assert answer.probability == pytest.approx(max(answer.probabilities))
            assert sum(answer.probabilities) == pytest.approx(1)
        if isinstance(kept, nf.WeightSpaceFeatures):
            continue
        content = kept.state_dict() if isinstance(kept, nn.Module) else kept
        file = content if isinstance(content, Path) else save(content, tmp_path / "kept.pth")
        words = ["--module", f"siren_styles.{type(kept).__name__}"] if isinstance(kept, tuple(LAYERS)) else []
        code, result, err = run(capsys, "classify", "digits-classify", "--weights", file, *words, "--json")
        assert (code, set(result["labels"])) == (0, {label}), err


def test_lists_and_stores_give_lists(classify, digits, expected, tmp_path):
    assert [a.label for a in classify(digits)] == expected
    assert [a.label for a in classify(nn.ModuleList(digits))] == expected
    one, two, three = digits
    mixed = [in_style(Sitzmann, one), two.state_dict(), save(three.state_dict(), tmp_path / "3.pth")]
    assert [a.label for a in classify(mixed)] == expected
    assert [a.label for a in classify(d.state_dict() for d in digits)] == expected
    assert [a.label for a in classify(nf.WeightSpaceFeatures.from_modules(digits))] == expected


def test_frequency_and_convention_are_converted(classify, digits, expected):
    networks = nf.WeightSpaceFeatures.from_modules(digits)
    other = convert(networks, SirenForm(20.0, "dws"))
    found = classify(other, omega=20.0, convention="dws")
    assert [a.label for a in found] == expected
    (module,) = convert(networks, SirenForm(20.0))[:1].to_modules(Siren(omega=20.0))
    assert classify(module).label == expected[0]


def test_a_module_that_records_no_convention_may_have_either(classify, digits, expected):
    theirs = convert(nf.WeightSpaceFeatures.from_modules(digits), SirenForm(30.0, "dws")).to_modules(Siren())
    assert [a.label for a in classify(theirs, convention="dws")] == expected


def test_an_edited_network_keeps_the_frequencies_of_its_layers(digits):
    edit, points = nf.pipeline("digits-dilate"), torch.rand(9, 2)
    for kind in (SirenNet, WithBuffer):
        edited = edit(in_style(kind, digits[0]))
        assert type(edited) is kind
        torch.testing.assert_close(edited(points), edit(digits[0])(points), atol=1e-5, rtol=0)
    networks = nf.WeightSpaceFeatures.from_modules([in_style(SirenNet, digits[0])])
    with pytest.raises(ValueError, match=r"Expected one frequency for all layers, but got omega 30, 1\. Convert"):
        edit(networks)
    converted = convert(networks, SirenForm(30.0))
    torch.testing.assert_close(converted.tensor, nf.WeightSpaceFeatures.from_modules(digits[:1]).tensor)


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
    networks = nf.WeightSpaceFeatures.from_modules(digits)
    assert classify.task.classify(networks.double()).tolist() == expected
    edited = edit.task.edit(networks.double())
    assert edited.dtype == torch.float64
    torch.testing.assert_close(edited.to(torch.float32).tensor, edit(networks).tensor, atol=1e-5, rtol=0)
    cnn, predict = build_cnn(), nf.pipeline("cnn-accuracy")
    assert predict.task.predict(cnn.state_dict()) == predict(cnn) == predict.task.predict([cnn.state_dict()]).item()


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
    content = {name: x for name, x in in_style(WithBuffer, digits[0]).state_dict().items() if name != "omega"}
    with pytest.raises(ValueError, match=r"layers=\['fc1', 'fc2', 'out'\], or .* --layers fc1,fc2,out\."):
        classify(content)
    assert classify(content, layers="fc1, fc2, out").label == expected[0]
    assert classify(torch.jit.trace(digits[0], torch.rand(3, 2))).label == expected[0]


@pytest.mark.parametrize(
    "activations", [(nn.Tanh(),) * 2, (Sine(30.0), nn.ReLU()), (Sine(30.0),) * 2 + (nn.Sigmoid(),)]
)
def test_networks_of_another_activation_are_refused(classify, activations):
    first, second, *last = activations
    other = nn.Sequential(nn.Linear(2, 32), first, nn.Linear(32, 32), second, nn.Linear(32, 1), *last)
    wrong = last[0] if last else second
    for networks, options in ((other, {}), (other.state_dict(), {"module": other})):
        with pytest.raises(ValueError, match=f"takes sine networks, .* activation {type(wrong).__name__.lower()}"):
            classify(networks, **options)


@pytest.mark.parametrize(
    ("networks", "message"),
    [
        ("nowhere.pth", "Expected the file of weights nowhere.pth, but there is no such file"),
        ("~/nowhere.pth", f"Expected the file of weights {Path.home()}/nowhere.pth"),
        ("https://example.org/a.pth", "the URL https://example.org/a.pth. Download the file first"),
        (".", "Expected a store at ., but .* import a folder of networks with nf data import"),
        (3, "Expected a module, a state_dict, the path of a file, a list of these, features, or a store, but got int"),
        (b"a.pth", "but got bytes"),
        ([], "but got an empty list"),
        ([3], "but got a list that contains int"),
        ({"0.weight": np.zeros((32, 2))}, "but got a dict with '0.weight' of type ndarray"),
        ({"net": {}, "epoch": 3}, "but got a dict with 'net' of type dict"),
        ({"0.weight": torch.zeros(32, 2, device="meta")}, "on the meta device"),
        ([Siren(), Siren([2, 16, 1])], "network 1 has layers 2->16, 16->1, not 2->32, 32->32, 32->1"),
        ([Siren(), Siren(omega=20.0)], "network 1 has neurons of layer 1 with activation sine of frequency 20, not"),
        (
            [{"0.weight": torch.zeros(1, 2)}, Siren([2, 1], omega=20.0)],
            "network 1 has layers 2->1, not 2->1 without bias",
        ),
        (nn.Linear(2, 1), "takes networks 2->32, 32->32, 32->1, but"),
        ({"0.weight": torch.zeros(3, 32, 2)}, "32"),
        ({"0.weight": torch.zeros(3, 32, 2), "0.bias": torch.zeros(3, 32)}, "a stack of 3 networks"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(classify, networks, message):
    with pytest.raises(ValueError, match=message) as caught:
        classify(networks)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"omega": 0}, "Expected omega, the frequency of the sines, to be positive and finite, but got 0"),
        ({"omega": 20}, "the input records omega 30.0, but 20 was requested. Leave it out"),
        ({"convention": "Paper"}, "one of paper, dws, but got 'Paper'. Did you mean paper?"),
        ({"module": Siren}, "but got the class Siren. Pass an instance"),
        ({"layers": "a,b"}, r"Expected the names of all layers, \['layers.0', .*, but got \['a', 'b'\]"),
    ],
)
def test_wrong_options_are_refused_in_one_line(classify, digits, options, message):
    with pytest.raises(ValueError, match=message):
        classify(digits[0] if options.get("omega") == 20 else digits[0].state_dict(), **options)


@pytest.mark.parametrize("name", ["digit-classify", "Digits-Classify", "digits_classify", "classify"])
def test_a_name_that_is_nearly_right_is_corrected(name):
    with pytest.raises(ValueError, match=f"no run or model '{name}'. Did you mean digits-classify?"):
        nf.pipeline(name)


def test_every_shipped_model_is_a_pipeline():
    assert {"cnn-accuracy", "digits-classify", "digits-dilate", "digits-inr2array"} <= set(nf.list_pretrained())
    for name in nf.list_pretrained():
        assert name in repr(nf.pipeline(name))
