"""The harnesses of `tools/adversary/` in their short forms; `--help` tells of the long ones."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / "tools" / "adversary" / "run.py"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["numerics", "libraries", "files", "stores", "kills", "page"])
def test_nothing_happens_that_must_not(name):
    result = subprocess.run(
        [sys.executable, RUN, name, "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    found = json.loads(result.stdout.splitlines()[-1])
    (counts,) = found["harnesses"]
    assert (result.returncode, found["failed"], counts["failures"]) == (0, 0, []), result.stderr
    assert counts["trials"] > 5


def test_a_name_that_is_no_harness_is_refused():
    result = subprocess.run([sys.executable, RUN, "nothing"], capture_output=True, text=True)
    assert result.returncode == 2
    assert "expected names among numerics, libraries" in result.stderr
