"""`nf build`: compiles the kernels ahead of their first use."""

from __future__ import annotations

from typing import Any

from neuralfunctionals.cli.command import Command


def _build() -> dict[str, Any]:
    # Torch is imported here, so that --help is fast.
    from neuralfunctionals import kernels, native

    built = kernels.build()
    return {"built": built, "cache": str(native.cache_directory() / "kernels")}


COMMANDS = {
    "build": Command(
        "Compile the C++ kernels for this machine before their first use.",
        "nf build",
        lambda add: None,
        _build,
    ),
}
