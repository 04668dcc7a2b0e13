"""The input networks: small CNNs, trained many at once."""

from neuralfunctionals.cnn.settings import CnnSettings, build_cnn

__all__ = ["CnnSettings", "build_cnn"]
