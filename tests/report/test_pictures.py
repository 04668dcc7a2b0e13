import numpy as np
import pytest
import torch

from neuralfunctionals.data import Store, StoreHeader, WeightDataset, open_images
from neuralfunctionals.inr import image_values
from neuralfunctionals.report import draw_latents, draw_maps, draw_task
from neuralfunctionals.report.finished import read_runs
from neuralfunctionals.run_directory import RunDirectory
from neuralfunctionals.tasks.latents import project


def write_run(path, recipe, model, images):
    """A finished run, as far as pictures look at it."""
    image = image_values(open_images(images).read(np.arange(8)))
    blurred = image.roll(1, 1) / 2 + image / 2
    run = RunDirectory(path)
    run.write_config({"run": {"model": {}, "task": {}}, "data": {}})
    points = {"map": torch.randn(40, 2), "map_label": torch.arange(40) % 10}
    run.write_samples({"image": image, "original": image.clone(), "reconstruction": blurred, **points})
    split = {"mse": 0.1}
    facts = {"recipe": recipe, "model": model, "seed": 0, "parameters": 1, "training_seconds": 1.0}
    run.write_result({**facts, "train": split, "val": split, "test": split})
    return path


def write_latents(path):
    """Ten classes around ten centres."""
    generator = np.random.default_rng(0)
    label = np.arange(200) % 10
    values = 3 * generator.standard_normal((10, 4, 6))[label] + generator.standard_normal((200, 4, 6))
    tensors = {"latents": values.astype(np.float32), "label": label, "split": np.full(200, 2, np.int8)}
    Store.create(path, StoreHeader(200, 200)).write_shard(0, tensors, [{}] * 200)
    return WeightDataset(path)


def test_reconstructions_of_both_encoders_are_drawn(tmp_path):
    runs = [
        write_run(tmp_path / f"{name}-{model}", f"inr2array/{name}", model, images)
        for name, images in (("mnist", "mnist-sample"), ("cifar10", "shapes-sample"))
        for model in ("nft", "nfn")
    ]
    files = draw_task(read_runs(runs), tmp_path)
    assert [file.name for file in files] == ["inr2array_curves.png", "reconstructions.png", "latents.png"]
    assert files[1].stat().st_size > 10_000
    draw_maps(read_runs(runs[:1]), tmp_path / "one.png")
    assert files[2].stat().st_size > (tmp_path / "one.png").stat().st_size > 10_000


def test_latents_are_drawn_by_class(tmp_path):
    draw_latents(write_latents(tmp_path / "latents"), tmp_path / "latents.png")
    assert (tmp_path / "latents.png").stat().st_size > 10_000


def test_the_map_shows_the_directions_of_largest_variance():
    values = torch.randn(50, 5) * torch.tensor([1.0, 9.0, 0.1, 4.0, 0.5])
    points = project(values)
    torch.testing.assert_close(points.mean(0), torch.zeros(2), atol=1e-4, rtol=0)
    correlation = torch.corrcoef(torch.cat([points, values[:, [1, 3]]], dim=1).T)
    assert correlation[0, 2].abs() > 0.99
    assert correlation[1, 3].abs() > 0.9


def test_refuses_a_split_with_too_few_items(tmp_path):
    with pytest.raises(ValueError, match="three or more items in the train split of .* but got 0"):
        draw_latents(write_latents(tmp_path / "latents"), tmp_path / "latents.png", split="train")
