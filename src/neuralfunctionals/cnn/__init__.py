"""The input networks: small CNNs, and training of many at once."""

from neuralfunctionals.cnn.settings import CnnSettings, build_cnn

__all__ = ["CnnSettings", "build_cnn"]
