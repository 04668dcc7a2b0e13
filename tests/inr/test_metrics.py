import pytest
import torch

from neuralfunctionals.inr import psnr


def test_known_values():
    x = torch.zeros(2, 3, 3)
    y = torch.stack([torch.full((3, 3), 0.02), torch.full((3, 3), 2.0)])
    assert psnr(x, y).tolist() == pytest.approx([40.0, 0.0], abs=1e-4)
    assert psnr(x, y, peak=1.0)[0].item() == pytest.approx(33.98, abs=0.01)


def test_perfect_pictures_have_infinite_psnr():
    assert psnr(torch.ones(1, 2), torch.ones(1, 2)).tolist() == [float("inf")]


def test_shapes_must_agree():
    with pytest.raises(ValueError, match="of one shape"):
        psnr(torch.zeros(2, 3), torch.zeros(2, 4))
