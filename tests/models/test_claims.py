"""Configs that claim more than the weights beside them."""

import json
import threading

import pytest
import torch
from torch import nn

from neuralfunctionals import NetworkSpec, from_pretrained, models
from neuralfunctionals.models.claims import limit_tensors

SPEC = NetworkSpec.mlp([2, 3, 3, 1])


def save(path, model, **claims):
    model.save_pretrained(path)
    config = json.loads((path / "config.json").read_text())
    assert not claims.keys() - config.keys()
    (path / "config.json").write_text(json.dumps({**config, **claims}))
    return path


NFT = {"channels": 8, "num_blocks": 1, "hidden_channels": 6, "num_heads": 2}


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("make", "claims"),
    [
        (lambda: models.NFT(SPEC, **NFT), {"channels": 10**9}),
        (lambda: models.NFT(SPEC, **NFT), {"num_blocks": 10**9}),
        (lambda: models.NFT(SPEC, **NFT), {"hidden_channels": 10**12}),
        (lambda: models.NFN(SPEC, channels=[3]), {"channels": [10**6] * 4}),
        (lambda: models.NFN(SPEC, channels=[3]), {"channels": [1] * 100_000}),
        (lambda: models.StatNN(SPEC, head_channels=[4]), {"head_channels": [10**9]}),
        (lambda: models.StatNN(SPEC, head_channels=[4]), {"out_channels": 10**9}),
        (lambda: models.NeuronGraphNet(SPEC, channels=4), {"channels": 10**6}),
        (lambda: models.LatentClassifier(4, 6, 3, channels=8, num_blocks=1, num_heads=2), {"channels": 10**7}),
        (lambda: models.DWSNet(SPEC, channels=3, num_layers=1), {"num_layers": 10**9}),
        (lambda: models.DWSNet(SPEC, channels=3, num_layers=1), {"num_layers": 10**6}),
        (
            lambda: models.Inr2Array(SPEC, latent_channels=4, **NFT, grid_size=2, decoder_channels=5),
            {"grid_size": 10**5},
        ),
        (lambda: models.SpatialNFN(SPEC, channels=[4], latent_channels=4, num_heads=2), {"latent_channels": 10**8}),
    ],
)
def test_a_config_larger_than_its_weights_is_refused(tmp_path, make, claims):
    path = save(tmp_path, make(), **claims)
    with pytest.raises(
        ValueError, match=rf"{path}.*describes a larger model than there are weights for|{path} does not hold"
    ):
        from_pretrained(path)


def test_messages_leave_out_the_stack_that_torch_appends(tmp_path):
    side = 2**31
    layers = [{"name": "a", "out_neurons": side, "in_neurons": side, "has_bias": True}]
    path = save(tmp_path, models.NeuronGraphNet(SPEC, channels=4), spec={"layers": layers})
    with pytest.raises(ValueError, match=r"does not hold a NeuronGraphNet: .*\w\. Load it") as caught:
        from_pretrained(path)
    assert "frame #" not in str(caught.value)
    assert "Exception raised from" not in str(caught.value)


def test_inside_a_canonical_model_too(tmp_path):
    path = save(tmp_path, models.Canonical(models.NFT(SPEC, **NFT)))
    config = json.loads((path / "config.json").read_text())
    config["model"]["config"]["channels"] = 10**9
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="describes a larger model"):
        from_pretrained(path)


def test_weights_larger_than_the_limit_are_refused(tmp_path, monkeypatch):
    path = save(tmp_path, models.StatNN(SPEC, head_channels=[300, 300]))
    monkeypatch.setenv("NF_MAX_MEMORY", "500K")
    with pytest.raises(ValueError, match=r"The model in .* would take .* --max-memory 1G"):
        from_pretrained(path)
    monkeypatch.setenv("NF_MAX_MEMORY", "1G")
    assert isinstance(from_pretrained(path), models.StatNN)


def test_modules_made_elsewhere_at_the_time_do_not_count(tmp_path):
    path = save(tmp_path, models.StatNN(SPEC, head_channels=[4]))
    made = []
    with limit_tensors(path / "model.safetensors", {}), torch.device("meta"):
        thread = threading.Thread(target=lambda: made.append(nn.Linear(3000, 3000, device="meta")))
        thread.start()
        thread.join()
        assert made
        with pytest.raises(ValueError, match="larger model"):
            nn.Linear(3000, 3000)
    nn.Linear(3000, 3000, device="meta")  # afterwards there is no limit
