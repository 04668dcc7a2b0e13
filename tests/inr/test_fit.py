import math
from dataclasses import replace

import pytest
import torch

from neuralfunctionals import NetworkSpec, WeightSpaceFeatures, kernels, native
from neuralfunctionals.inr import (
    RECIPES,
    FitRecipe,
    SirenForm,
    fit,
    fit_values,
    image_grid,
    initial_weights,
    psnr,
    render,
)
from neuralfunctionals.inr.engines import FitJob, mean_squared_gradients, train_native

needs_compiler = pytest.mark.skipif(native.find_compiler() is None, reason="no C++ compiler here")
ENGINES = ["torch", pytest.param("native", marks=needs_compiler)]
SHORT = FitRecipe(steps=30, learning_rate=5e-3)


def pictures(count=5, height=9, width=8, channels=1, seed=0):
    """Smooth random pictures as bytes."""
    generator = torch.Generator().manual_seed(seed)
    grid = image_grid(height, width)
    waves = torch.sin(grid @ (3 * torch.randn(count, 2, channels, generator=generator)))
    return ((waves + 1) * 127.5).round().to(torch.uint8).view(count, height, width, channels)


def batch(spec, count, points=60):
    items = torch.stack([torch.arange(count), torch.zeros(count, dtype=torch.int64)], 1)
    generator = torch.Generator().manual_seed(1)
    coordinates = torch.rand(points, spec.widths[0], generator=generator) * 2 - 1
    return initial_weights(spec, items), coordinates, torch.rand(count, points, spec.widths[-1], generator=generator)


def native_gradients(spec, parameters, points, targets, omega):
    """Errors and gradients of the compiled loop: what it stops at, and what one large step of descent subtracts."""
    kernels.build(["siren_fit"])
    step = FitRecipe(steps=1, learning_rate=1e3, schedule="constant", optimizer="sgd", beta1=0.0)
    job = FitJob(spec, points, omega, step, math.inf, 0.01, "native", 1, None, torch.device("cpu"))
    stopped, errors, steps = train_native(job, parameters, targets, lambda count: None)
    assert torch.equal(stopped, parameters)
    assert not steps.any()
    moved = train_native(replace(job, stop_error=0.0), parameters, targets, lambda count: None)[0]
    return errors, (parameters - moved) / 1e3


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("widths", [[2, 32, 32, 1], [2, 32, 32, 3], [3, 5, 9, 7, 2], [1, 17, 1], [2, 3]])
def test_written_gradients_are_those_of_autograd(engine, widths):
    spec = NetworkSpec.mlp(widths)
    parameters, points, targets = batch(spec, 4)
    tensor = parameters.clone().requires_grad_()
    values = render(WeightSpaceFeatures(SirenForm(20.0).complete(spec), tensor[..., None]), points)
    expected = (values - targets).square().flatten(1).mean(1)
    expected.sum().backward()
    assert tensor.grad is not None
    function = native_gradients if engine == "native" else mean_squared_gradients
    errors, gradients = function(spec, parameters, points, targets, omega=20.0)
    torch.testing.assert_close(errors.float(), expected.detach(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(gradients, tensor.grad, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("recipe", [SHORT, replace(SHORT, optimizer="sgd", schedule="linear", warmup_steps=5)])
def test_training_follows_torch_optimizers(engine, recipe):
    images = pictures(3)
    result = fit(images, recipe=recipe, engine=engine, hidden=[16, 16], seed=2)
    spec = result.features.spec
    items = torch.tensor([[0, 0], [1, 0], [2, 0]])
    tensor = initial_weights(spec, items, seed=2).requires_grad_()
    if recipe.optimizer == "adam":
        optimizer = torch.optim.Adam([tensor], lr=1.0)
    else:
        optimizer = torch.optim.SGD([tensor], lr=1.0, momentum=0.9)
    targets = images.float().view(3, -1, 1) / 127.5 - 1
    for rate in recipe.rates().tolist():
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        values = render(WeightSpaceFeatures(spec, tensor[..., None]), image_grid(9, 8))
        (values - targets).square().flatten(1).mean(1).sum().backward()
        optimizer.step()
    # Rounding grows along the way; the pictures must agree closely, the weights roughly.
    assert (result.features.to_vectors() - tensor.detach()).abs().max() < 0.05 * tensor.abs().max()
    final = psnr(render(WeightSpaceFeatures(spec, tensor.detach()[..., None]), image_grid(9, 8)), targets)
    torch.testing.assert_close(result.psnr_db, final, atol=0.5, rtol=0)
    assert result.steps.tolist() == [30, 30, 30]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("convention", ["paper", "dws"])
def test_the_reported_psnr_is_that_of_the_rendered_picture(engine, convention):
    images = pictures(4, channels=3)
    result = fit(images, recipe=SHORT, engine=engine, convention=convention)
    values = render(result.features, image_grid(9, 8))
    expected = psnr(values, images.float().view(4, -1, 3) / 127.5 - 1)
    torch.testing.assert_close(result.psnr_db, expected, atol=0.01, rtol=0)


@pytest.mark.parametrize("engine", ENGINES)
def test_each_network_stops_on_its_own(engine):
    images = torch.cat([pictures(3), torch.zeros(1, 9, 8, 1, dtype=torch.uint8)])
    result = fit(images, recipe="fast", psnr_db=35.0, engine=engine)
    assert bool((result.psnr_db >= 35).all())
    assert bool((result.psnr_db < 50).all())
    assert len(set(result.steps.tolist())) > 1
    assert not result.missed.any()
    assert not result.restarts.any()


@pytest.mark.parametrize("engine", ENGINES)
def test_networks_that_miss_the_asked_quality_are_marked(engine):
    noise = torch.randint(256, (2, 56, 56), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images = torch.cat([noise, torch.zeros(1, 56, 56, dtype=torch.uint8)])
    result = fit(images, recipe="fast", psnr_db=40.0, engine=engine)
    assert result.missed.tolist() == [True, True, False]
    assert result.psnr_db[:2].max() < 40


@pytest.mark.parametrize("engine", ENGINES)
def test_diverging_networks_start_again_and_say_so(engine):
    wild = FitRecipe(steps=60, learning_rate=5.0)
    result = fit(pictures(3), recipe=wild, engine=engine)
    assert bool((result.restarts > 0).all())
    assert bool(result.features.tensor.isfinite().all())
    assert bool((result.psnr_db > 6).all())  # better than a constant picture


@pytest.mark.parametrize("engine", ENGINES)
def test_a_recipe_that_never_converges_is_refused(engine):
    with pytest.raises(ValueError, match=r"3 of 3 networks diverged in each of 7 attempts.*Lower its learning rate"):
        fit(pictures(3), recipe=FitRecipe(steps=20, learning_rate=1e38, optimizer="sgd"), engine=engine)


@needs_compiler
def test_the_native_engine_does_not_depend_on_batches_or_threads():
    images = pictures(40)
    items = torch.stack([torch.arange(40) * 3, torch.arange(40) % 2], 1)
    together = fit(images, recipe=SHORT, engine="native", items=items, num_threads=2)
    parts = [
        fit(images[i : i + 13], recipe=SHORT, engine="native", items=items[i : i + 13], num_threads=1)
        for i in range(0, 40, 13)
    ]
    assert torch.equal(together.features.tensor, torch.cat([p.features.tensor for p in parts]))
    assert torch.equal(together.psnr_db, torch.cat([p.psnr_db for p in parts]))


@needs_compiler
def test_the_engines_agree():
    images = pictures(6, channels=3)
    native, torch_ = (fit(images, recipe="default", engine=e).psnr_db.clamp(max=50) for e in ("native", "torch"))
    torch.testing.assert_close(native, torch_, atol=2.0, rtol=0)
    assert native.median() > 40


def test_without_a_compiler_the_torch_engine_is_used(monkeypatch, tmp_path):
    monkeypatch.setenv("NF_CACHE", str(tmp_path))  # a library in the cache would be used
    monkeypatch.setattr(kernels.choice, "_libraries", {})
    monkeypatch.setattr(kernels.choice, "_warned", set())
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.warns(UserWarning, match="no C\\+\\+ compiler"):
        assert fit(pictures(1), recipe=SHORT).engine == "torch"
    with pytest.raises(ValueError, match="needs a C\\+\\+ compiler .* the CPU"):
        fit(pictures(1), recipe=SHORT, engine="native")


def test_plain_kernels_mean_the_torch_engine():
    with kernels.use("plain"):
        assert fit(pictures(1), recipe=SHORT).engine == "torch"


def test_any_dimension_and_depth():
    points = torch.rand(50, 3) * 2 - 1
    values = torch.sin(points @ torch.randn(2, 3, 4)) * 0.9
    result = fit_values(values, points, hidden=[24, 24, 24], recipe="default")
    assert result.features.spec.widths == (3, 24, 24, 24, 4)
    assert result.psnr_db.min() > 30


def test_progress_counts_every_network_once():
    seen = []
    fit(pictures(37), recipe=replace(SHORT, steps=1), progress=seen.append)
    assert sum(seen) == 37


def test_schedules():
    constant = FitRecipe(steps=4, learning_rate=1.0, schedule="constant", warmup_steps=2).rates()
    assert constant.tolist() == [0.5, 1.0, 1.0, 1.0]
    assert FitRecipe(steps=4, learning_rate=1.0, schedule="linear").rates().tolist() == [1.0, 0.75, 0.5, 0.25]
    cosine = FitRecipe(steps=4, learning_rate=2.0).rates().tolist()
    assert cosine == pytest.approx([1 + math.cos(math.pi * i / 4) for i in range(4)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"recipe": "quick"}, "one of default, fast.*but got 'quick'"),
        ({"engine": "jax"}, "'auto', 'native' or 'torch', but got 'jax'"),
        ({"convention": "nfn"}, "one of paper, dws"),
        ({"items": torch.zeros(2, 2, dtype=torch.int64)}, r"items of shape \(1, 2\)"),
    ],
)
def test_wrong_options_are_explained(arguments, message):
    with pytest.raises(ValueError, match=message):
        fit(pictures(1), **{"recipe": SHORT, **arguments})


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(28, 28, dtype=torch.uint8), "Channels come last"),
        (torch.zeros(1, 2, 2, dtype=torch.int64), "bytes .uint8. or as real numbers"),
        (torch.full((1, 2, 2), 3.0), "from 3.0 to 3.0"),
        (torch.full((1, 2, 2), math.nan), "real numbers in"),
    ],
)
def test_wrong_images_are_explained(images, message):
    with pytest.raises(ValueError, match=message):
        fit(images)


@pytest.mark.parametrize(
    "field", ["steps", "learning_rate", "schedule", "warmup_steps", "optimizer", "beta1", "epsilon"]
)
def test_wrong_recipes_are_explained(field):
    wrong = {"schedule": "step", "optimizer": "lion", "warmup_steps": 31}.get(field, -1 if field == "steps" else -1.0)
    with pytest.raises(ValueError, match=f"recipe's {field} to be"):
        replace(SHORT, **{field: wrong})


def test_named_recipes_are_valid_and_readable_as_json():
    assert {"default", "fast"} <= set(RECIPES)
    for recipe in RECIPES.values():
        assert FitRecipe(**recipe.to_dict()) == recipe
