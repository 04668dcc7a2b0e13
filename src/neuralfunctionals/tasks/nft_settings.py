"""Options of NFTs that several tasks share: `NFT`, `NEURON_STATES`."""

from __future__ import annotations

from neuralfunctionals.tasks.definition import ModelSettings

NFT = ModelSettings(
    tiny={"channels": 8, "num_blocks": 1, "hidden_channels": 16, "num_heads": 2},
    small={"channels": 32, "num_blocks": 2, "hidden_channels": 64, "num_heads": 4}
    | {"standardize": True, "fourier_scale": 0.3},
)
"""Options of all NFTs on sine networks."""
NEURON_STATES: dict[str, dict[str, int]] = {
    "tiny": {"neuron_states": 1, "state_channels": 8},
    "small": {"neuron_states": 3, "state_channels": 64, "state_frequencies": 16},
    "paper": {"neuron_states": 4},
}
"""Further options of an NFT with neuron states, by scale."""
