"""What is uploaded to the hub can be downloaded again; nothing is sent anywhere here."""

import shutil

import pytest
import torch
from huggingface_hub import HfApi

import neuralfunctionals as nf
from commands import run
from neuralfunctionals.run_directory import RunDirectory

SPEC = nf.NetworkSpec.siren([2, 8, 1], omega=20.0)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A folder that gets what the hub would get, by name."""

    def upload_folder(self, *, repo_id, folder_path):
        assert (tmp_path / repo_id).is_dir()
        shutil.copytree(folder_path, tmp_path / repo_id, dirs_exist_ok=True)
        return f"https://example.org/{repo_id}"

    monkeypatch.setattr(HfApi, "create_repo", lambda self, repo_id, **_: (tmp_path / repo_id).mkdir(parents=True))
    monkeypatch.setattr(HfApi, "upload_folder", upload_folder)
    return tmp_path


def test_a_model_is_uploaded_with_its_class_and_a_card(hub):
    model = nf.models.StatNN(SPEC, head_channels=[4]).eval()
    assert model.push_to_hub("me/mine", private=True) == "https://example.org/me/mine"
    again = nf.from_pretrained(hub / "me/mine")
    assert type(again) is nf.models.StatNN
    x = nf.testing.random_features(SPEC, channels=1)
    assert torch.equal(again.double()(x), model.double()(x))
    card = (hub / "me/mine/README.md").read_text()
    assert card.startswith("---\nlibrary_name: neuralfunctionals\n")
    assert "# StatNN" in card
    assert f"Input: networks {SPEC}." in card
    assert 'nf.from_pretrained("me/mine")' in card


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    nf.experiment("edit/mnist-dilate", "nfn-hnp", None, out, scale="tiny", progress=False)
    return out


def test_a_run_is_uploaded_with_its_results(hub, finished, capsys):
    nf.runs.open_run(finished).push_to_hub("me/run")
    made, result = hub / "me/run", RunDirectory(finished).read_result()
    assert sorted(path.name for path in made.iterdir()) == ["README.md", "model", "result.json", "run.json"]
    assert str(finished.parent) not in (made / "run.json").read_text()
    card = (made / "README.md").read_text()
    assert f"| test | 6 | {result['test']['mse']:.4f} | {result['test']['mse_no_edit']:.4f} |" in card
    assert "# me/run\n\nA model that was trained to dilate MNIST INRs." in card
    assert "`nf train edit/mnist-dilate --scale tiny --model nfn-hnp --images mnist-sample`" in card
    assert isinstance(nf.from_pretrained(made), type(nf.from_pretrained(finished)))
    assert isinstance(nf.pipeline(made)(nf.inr.Siren()), nf.inr.Siren)
    assert run(capsys, "report", made, "--out", hub / "report.html")[0] == 0


def test_what_the_hub_refuses_is_told_in_one_line(monkeypatch):
    def refuse(self, repo_id, **_):
        raise OSError("Name or service not known.\nAnd more.")

    monkeypatch.setattr(HfApi, "create_repo", refuse)
    expected = r"Cannot upload to me/mine on the .* OSError: Name or service not known\. Check .* \(hf auth login\)\.$"
    for model in (nf.models.StatNN(SPEC, head_channels=[4]), nf.runs.open_run("digits-erode")):
        with pytest.raises(nf.UserError, match=expected):
            model.push_to_hub("me/mine")
