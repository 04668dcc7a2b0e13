"""The commands that predict accuracies, as people call them."""

from dataclasses import replace

import pytest

from commands import run
from neuralfunctionals.cli import main
from neuralfunctionals.data import WeightDataset, build_cnn
from neuralfunctionals.data.formats.network_files import write_networks
from neuralfunctionals.inr import Siren
from neuralfunctionals.runs import open_run
from neuralfunctionals.studies import TABLES
from neuralfunctionals.weight_space import WeightSpaceFeatures

TRAIN = ("train", "generalization/svhn-grey", "--scale", "tiny")
ZOO = "zoo --images mnist-sample --count 20 --epochs 4 --batch-size 64 --limit-images 600".split()


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "zoo"
    assert main([*ZOO, "--out", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def trained(zoo, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    assert main([*TRAIN, "--model", "statnn", "--data", str(zoo), "--out", str(out)]) == 0
    return out


def test_trains_and_evaluates_on_a_zoo_of_its_own(capsys, tmp_path):
    code, result, err = run(capsys, *TRAIN, "--model", "nfn-np", "--out", tmp_path / "r", "--json")
    assert code == 0, err
    assert result["test"]["networks"] == 20
    code, result, _ = run(capsys, "evaluate", tmp_path / "r", "--json")
    assert code == 0
    assert result.keys() == {"split", "networks", "kendall_tau", "r2", "l1", "run"}


def test_pooling_fourier_scale_loss_and_zoo_are_fields(capsys, zoo, tmp_path):
    options = [
        "--model",
        "nft",
        "--model.pooling",
        "cross_attention",
        "--model.fourier_scale",
        "10",
        "--model.num_latents",
        "2",
    ]
    options += ["--task.loss", "mse", "--data.count", "30", "--training.steps", "10"]
    code, _, err = run(capsys, *TRAIN, *options, "--data", zoo, "--out", tmp_path / "r", "--json")
    assert code == 0, err
    opened = open_run(tmp_path / "r")
    assert (opened.run.model["pooling"], opened.run.model["fourier_scale"]) == ("cross_attention", 10)
    assert opened.task.loss_name == "mse"
    assert opened.run.data.count == 30
    code, out, _ = run(capsys, *TRAIN, "--help")
    assert code == 0
    for text in ("--model.pooling", "--data.count", "Number of CNNs", "--task.loss"):
        assert text in out


def test_an_imported_zoo_of_the_published_format_is_learned_from(capsys, zoo, tmp_path):
    published, imported = tmp_path / "published", tmp_path / "imported"
    assert run(capsys, "data", "export", "small-cnn-zoo", zoo, "--out", published)[0] == 0
    words = ["--split", published / "split.csv", "--out", imported]
    code, _, err = run(capsys, "data", "import", "small-cnn-zoo", published, *words)
    assert code == 0, err
    words = ["--model", "statnn", "--data", imported, "--out", tmp_path / "r", "--json"]
    code, result, err = run(capsys, *TRAIN, *words)
    assert code == 0, err
    assert result["train"]["networks"] == 8


@pytest.mark.parametrize("ending", [".pth", ".safetensors", ".npz"])
def test_predicts_the_accuracies_of_networks_in_a_file(capsys, zoo, trained, tmp_path, ending):
    features = WeightDataset(zoo)[:].features if ending == ".npz" else WeightSpaceFeatures.from_modules([build_cnn()])
    write_networks(tmp_path / f"cnn{ending}", features)
    code, result, err = run(capsys, "predict", trained, "--weights", tmp_path / f"cnn{ending}", "--json")
    assert code == 0, err
    assert result["networks"] == len(result["accuracies"]) == len(features)
    assert result["accuracies"] == pytest.approx(open_run(trained).task.predict(features).tolist(), abs=1e-4)


def test_refuses_in_one_line_what_the_user_can_put_right(capsys, trained, tmp_path):
    write_networks(tmp_path / "siren.pth", WeightSpaceFeatures.from_modules([Siren()]))
    fit = "fit --images mnist-sample --limit 20 --recipe fast --out".split()
    assert main([*fit, str(tmp_path / "d")]) == 0
    capsys.readouterr()
    cases = [
        (["predict", trained, "--weights", tmp_path / "siren.pth"], "The model takes networks 1->16"),
        (["edit", trained, "--weights", tmp_path / "siren.pth", "--out", tmp_path / "e.pth"], "a recipe edit/..., but"),
        ([*TRAIN, "--data", tmp_path / "d", "--out", tmp_path / "r"], "networks with a known test_accuracy"),
        (["reproduce", "table3", "--data", "zoo"], "Expected --data RECIPE=DIR"),
        (["reproduce", "table3", "--data", "edit/mnist-erode=zoo"], "stores for recipes of table3, but got one for"),
    ]
    for words, message in cases:
        code, _, err = run(capsys, *words)
        assert code == 2
        assert message in err
        assert err.startswith("nf: ")
        assert err.count("\n") == 1
    assert not (tmp_path / "r").exists()


@pytest.mark.slow
def test_a_table_is_reproduced_on_given_stores(capsys, monkeypatch, zoo, tmp_path):
    table = TABLES["table3"]
    assert len(table.runs) == 32
    chosen = [run for run in table.runs if run.model in ("nfn-np", "statnn") and not run.seed]
    monkeypatch.setitem(TABLES, "table3", replace(table, runs=(*chosen[:2], chosen[-1])))
    stores = [word for name in ("cifar10", "svhn") for word in ("--data", f"generalization/{name}-grey={zoo}")]
    code, result, err = run(capsys, "reproduce", "table3", "--scale", "tiny", "--out", tmp_path, *stores, "--json")
    assert code == 0, err
    assert result["runs"] == 3
    assert "0.915" in result["markdown"]
    assert all(
        (tmp_path / f"{name}.png").stat().st_size > 10_000
        for name in ("predictions", "generalization_curves", "accuracies")
    )
    assert open_run(tmp_path / "generalization-svhn-grey-tiny-statnn-seed0").data == zoo.resolve()
