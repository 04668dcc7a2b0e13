"""The harnesses of `tools/adversary/` in their short forms; `--help` tells of the long ones."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "tools" / "adversary"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stores", "kills", "page"])
def test_nothing_happens_that_must_not(name):
    result = subprocess.run(
        [sys.executable, FOLDER / f"{name}.py", "--short"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    counts = json.loads(result.stdout.splitlines()[-1])
    assert (result.returncode, counts["failures"]) == (0, []), result.stderr
    assert counts["trials"] > 5
