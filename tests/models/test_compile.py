"""Whole models compile into one graph. Slow: each compile takes many seconds."""

import pytest
import torch

from models.test_models import ON_WEIGHTS, SPECS, as_tensor, latent_classifier
from neuralfunctionals.testing import random_features

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::Warning")]


@pytest.mark.parametrize("name", ON_WEIGHTS)
def test_models_compile_into_one_graph(name):
    """One graph; code is generated, backward too, for the first alone, as that takes longest."""
    torch._dynamo.reset()
    backend = "inductor" if name == next(iter(ON_WEIGHTS)) else "eager"
    # NFTs on the CNN, where projections take part, except for the one that generates code.
    model = ON_WEIGHTS[name](SPECS["NFT" in name and backend == "eager"])
    features = random_features(model.spec, dtype=torch.float32)
    compiled = torch.compile(model.eval(), fullgraph=True, backend=backend)
    torch.testing.assert_close(as_tensor(compiled(features)), as_tensor(model(features)), rtol=1e-4, atol=1e-5)
    model.train()
    as_tensor(compiled(features)).square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_latent_classifier_compiles_into_one_graph():
    torch._dynamo.reset()
    model = latent_classifier().eval()
    latents = torch.randn(2, 4, 6)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(latents), model(latents), rtol=1e-4, atol=1e-5)
