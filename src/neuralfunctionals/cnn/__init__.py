"""The input networks: small CNNs, and how many of them are trained at once."""

from neuralfunctionals.cnn.settings import CnnSettings, build_cnn

__all__ = ["CnnSettings", "build_cnn"]
