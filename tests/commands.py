"""Calls `nf` as people do: in this process, or as the words of another."""

import json
import sys

from neuralfunctionals.cli import main


def run(capsys, *words):
    """Runs a command here: its exit code, its JSON, what it said on standard error."""
    try:
        code = main([str(word) for word in words])
    except SystemExit as leaving:
        code = leaving.code
    out, err = capsys.readouterr()
    # Kernels are compiled by whichever test comes first.
    err = "".join(line for line in err.splitlines(keepends=True) if "neuralfunctionals: compiling" not in line)
    return code, json.loads(out.splitlines()[-1]) if out.strip().endswith("}") else out, err


def nf_command(*words):
    """The words that start it as a process."""
    return [sys.executable, "-m", "neuralfunctionals.cli", *map(str, words)]
