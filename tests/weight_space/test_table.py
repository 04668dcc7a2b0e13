"""The table of architectures in the guide: `python tests/weight_space/test_table.py` writes it, the test compares.

It needs the extra `peers`, for architectures of other packages.
"""

import sys
import time
import warnings
from pathlib import Path

import pytest
import torch

from neuralfunctionals import NetworkSpec

PAGE = Path(__file__).parents[2] / "docs/guide/your_networks.md"
HEADER = "| architecture | hidden axes | tensors on each | verified | seconds |\n|---|---|---|---|---|\n"


def row_of(architecture):
    torch.manual_seed(0)
    start = time.process_time()
    spec = NetworkSpec.from_module(architecture.make(), architecture.inputs())
    seconds = time.process_time() - start
    hidden = [n for n, axis in enumerate(spec.axes) if axis.role == "hidden"]
    sizes = ", ".join(f"{spec.axes[n].size}" + (" (nested)" if spec.axes[n].within is not None else "") for n in hidden)
    tensors = ", ".join(str(len({g.key for g in spec.groups if n in g.axes})) for n in hidden)
    return [architecture.name, sizes, tensors, "; ".join(spec.notes) or "yes", f"{seconds:.1f}"]


def rows_in_page():
    lines = PAGE.read_text().partition("<!-- table -->\n")[2].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return {row[0]: row for row in rows[2:]}


def architectures():
    from architectures import ARCHITECTURES

    return ARCHITECTURES


@pytest.mark.parametrize("architecture", architectures(), ids=lambda a: a.name)
def test_the_table_in_the_guide_says_what_is_found(architecture):
    if architecture.needs:
        pytest.importorskip(architecture.needs)
    assert row_of(architecture)[:-1] == rows_in_page()[architecture.name][:-1]


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    warnings.simplefilter("ignore")
    row_of(architectures()[-5])  # the first reading imports the tracer
    found = [row_of(a) for a in architectures()]
    text = PAGE.read_text().partition("<!-- table -->")[0]
    table = "".join(f"| {' | '.join(row)} |\n" for row in found)
    PAGE.write_text(f"{text}<!-- table -->\n\n{HEADER}{table}")
