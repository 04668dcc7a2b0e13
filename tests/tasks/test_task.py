import pytest
import torch

from neuralfunctionals.tasks import OptimizerConfig, TrainingConfig


@pytest.mark.parametrize("schedule", ["constant", "cosine", "linear"])
def test_the_rate_rises_to_its_peak_and_falls_as_asked(schedule):
    config = OptimizerConfig(warmup_steps=10, schedule=schedule)
    factors = torch.tensor([config.factor(step, 100) for step in range(101)])
    torch.testing.assert_close(factors[:10], torch.arange(1, 11) / 10)
    assert factors[10] == 1
    assert bool((factors[11:].diff() <= 0).all())
    assert factors[100].item() == pytest.approx(1.0 if schedule == "constant" else 0.0)
    assert factors[55].item() == pytest.approx(1.0 if schedule == "constant" else 0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0.0}, "optimizer's lr to be a positive number, but got 0.0"),
        ({"lr": float("nan")}, "optimizer's lr to be a positive number"),
        ({"name": "sgd"}, "'adam' or 'adamw', but got 'sgd'"),
        ({"schedule": "step"}, "'constant', 'cosine' or 'linear'"),
        ({"clip_norm": -1.0}, "clip_norm to be a positive number"),
    ],
)
def test_refuses_optimisers_that_make_no_sense(options, message):
    with pytest.raises(ValueError, match=message):
        OptimizerConfig(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "training.steps to be at least 1"),
        ({"steps": 70, "val_every": 20}, "multiple of training.val_every, but got 70 and 20. Use 80 steps"),
        ({"batch_size": 10, "accumulate": 3}, "accumulate to divide the batch of 10"),
        ({"ema_decay": 1.0}, "ema_decay from 0 to below 1"),
        ({"patience": 0}, "patience to be at least 1"),
    ],
)
def test_refuses_trainings_that_make_no_sense(options, message):
    with pytest.raises(ValueError, match=message):
        TrainingConfig(**options)
