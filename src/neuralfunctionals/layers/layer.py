"""What all layers keep: `Layer`."""

from torch import nn

from neuralfunctionals.weight_space import NetworkSpec, Symmetry


class Layer(nn.Module):
    """A layer that takes features, and knows of which networks, of how many channels and with which symmetry.

    Args:
        spec: The input networks.
        in_channels: Channels of each entry.
        out_channels: Channels afterwards, of each entry or of each network.
    """

    symmetry: Symmetry = "NP"

    def __init__(self, spec: NetworkSpec, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.spec = spec
        self.in_channels, self.out_channels = in_channels, out_channels

    def extra_repr(self) -> str:
        return f"{self.spec}, {self.in_channels} -> {self.out_channels} channels, symmetry={self.symmetry}"
