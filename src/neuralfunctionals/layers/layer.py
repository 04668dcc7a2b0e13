"""The base class of all layers: `Layer`."""

from torch import nn

from neuralfunctionals.weight_space import NetworkSpec, Symmetry


class Layer(nn.Module):
    """A layer that takes features; it keeps their spec, its numbers of channels and its symmetry.

    Args:
        spec: The input networks.
        in_channels: Channels of each entry.
        out_channels: Channels of the output, of each entry or of each network.
    """

    symmetry: Symmetry = "NP"

    def __init__(self, spec: NetworkSpec, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.spec = spec
        self.in_channels, self.out_channels = in_channels, out_channels

    def extra_repr(self) -> str:
        return f"{self.spec}, {self.in_channels} -> {self.out_channels} channels, symmetry={self.symmetry}"
