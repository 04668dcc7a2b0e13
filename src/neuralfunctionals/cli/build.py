"""`nf build`: compiles the kernels ahead of their first use."""

from __future__ import annotations

from typing import Any

from neuralfunctionals.cli.command import Command


def _build() -> dict[str, Any]:
    # Torch is imported here: help must come at once.
    from neuralfunctionals import kernels, native

    built = kernels.build()
    return {"built": built, "cache": str(native.cache_directory() / "kernels")}


COMMANDS = {
    "build": Command(
        "Compile the C++ kernels for this machine, once, before their first use.",
        "nf build",
        lambda add: None,
        _build,
    ),
}
