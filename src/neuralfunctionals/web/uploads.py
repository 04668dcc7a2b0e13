"""Reads files that visitors upload: `decode_url`, `read_network`."""

from __future__ import annotations

import base64
import binascii
import io
import os
import tempfile
import zipfile
from pathlib import Path

from neuralfunctionals.data.formats.network_files import read_state_dict
from neuralfunctionals.errors import UserError
from neuralfunctionals.weight_space import NetworkSpec, WeightSpaceFeatures
from neuralfunctionals.weight_space.convert import spec_from_state_dict

MAX_BYTES = 5 * 2**20
"""Maximum size of a file."""
MAX_NETWORK_BYTES = 2**20
"""Maximum size of a network file: the page's networks take at most 20 kB, the rest is for optimiser state."""
SCRATCH = "nf-serve-"
"""Prefix of temporary directories; those of a killed server are removed by the next one."""
_MAX_UNPACKED = 4 * MAX_NETWORK_BYTES


def decode_url(url: str, what: str, *, max_bytes: int = MAX_BYTES) -> bytes:
    """Decodes a data URL; its declared type is ignored.

    Args:
        url: The data URL.
        what: The expected content, for error messages.
        max_bytes: Maximum size of the content.
    """
    kind, _, rest = url.partition(":")
    _, comma, encoded = rest.partition(",")
    if kind != "data" or not comma:
        raise UserError(f"Expected a {what} as a data URL, but got something else. Choose the file again.")
    if len(encoded) > 4 * (max_bytes // 3 + 1):
        raise UserError(f"The file is too large: expected at most {max_bytes // 2**20} MB. Choose a smaller one.")
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise UserError(f"The {what} was damaged on the way. Try again.") from error


def read_network(content: bytes, spec: NetworkSpec, what: str) -> WeightSpaceFeatures:
    """Reads the network of a `.pth`, `.pt` or `.safetensors` file, detected from the bytes; no code in it is run.

    Args:
        content: The bytes of the file.
        spec: The required spec of the network.
        what: Its name for error messages, such as "SIREN".
    """
    if not content:
        raise UserError("The file is empty (0 bytes). Choose a .pth, .pt or .safetensors file.")
    if len(content) > MAX_NETWORK_BYTES:
        raise UserError(
            f"The file is too large: expected at most {MAX_NETWORK_BYTES // 2**20} MB. Save only the weights."
        )
    _require_small(content)
    # The library's reader takes a path, so the file is written to a temporary directory.
    with tempfile.TemporaryDirectory(prefix=f"{SCRATCH}{os.getpid()}-") as scratch:
        file = Path(scratch) / ("network.safetensors" if content[8:9] == b"{" else "network.pth")
        file.write_bytes(content)
        try:
            state_dict = read_state_dict(file)
        except ValueError as error:
            if error.__cause__ is None:  # already a message about the contents of the file
                raise UserError(str(error).replace(str(file), "the file")) from error
            raise UserError(_NO_NETWORK) from error
    try:
        # The page asks for plain chains, so their layers may have any names.
        own = spec_from_state_dict(state_dict, is_chain=True)
        network = WeightSpaceFeatures.from_state_dicts([state_dict], own)
    except ValueError as error:
        reason = str(error).split(". ")[0].rstrip(".")[:300]
        raise UserError(f"This network does not fit. {reason}. {_expected(spec, what)}") from error
    if network.spec != spec:
        raise UserError(f"This network does not fit: its layers are {network.spec}. {_expected(spec, what)}")
    return WeightSpaceFeatures.from_vectors(spec, network.to_vectors())


_NO_NETWORK = (
    "This file cannot be read as a network: expected a state_dict of tensors, saved by "
    "torch.save(model.state_dict(), 'network.pth') or as safetensors. Nothing in it was run."
)


def _expected(spec: NetworkSpec, what: str) -> str:
    return f"Expected a {what} with the layers {spec}."


def _require_small(content: bytes) -> None:
    """Raises an error if an archive would unpack to more than the limit."""
    if not content.startswith(b"PK"):
        return
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            size = sum(info.file_size for info in archive.infolist())
    except Exception as error:  # a malicious or damaged archive may fail in any way
        raise UserError(_NO_NETWORK) from error
    if size > _MAX_UNPACKED:
        raise UserError(
            f"The file unpacks to {size / 2**20:.0f} MB: expected at most {_MAX_UNPACKED // 2**20} MB. "
            "Save only the weights."
        )
