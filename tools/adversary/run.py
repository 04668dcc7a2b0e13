"""Runs the harnesses of this folder: all of them, or those that are named.

    python tools/adversary/run.py                    all but the soak in their short forms, a few minutes
    python tools/adversary/run.py stores --full      one of them with all its trials; each also has options of its own
    python tools/adversary/run.py --json             one line of JSON last: what each of them counted

Ends with exit code 1 if any of them found something.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

NAMES = ("numerics", "libraries", "files", "stores", "kills", "page", "soak")
FOLDER = Path(__file__).parent


def run(name: str, *, full: bool, seed: int) -> dict[str, Any]:
    """One harness in a process of its own; what it counted."""
    words = [sys.executable, str(FOLDER / f"{name}.py"), "--seed", str(seed), *([] if full else ["--short"])]
    process = subprocess.run(words, stdout=subprocess.PIPE, text=True)
    *table, last = process.stdout.splitlines() or [""]
    print("\n".join(table), flush=True)
    try:
        return json.loads(last)
    except ValueError:
        return {"adversary": name, "failed": 1, "failures": [f"ended with exit code {process.returncode}"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(NAMES)} (all but the soak)")
    parser.add_argument("--full", action="store_true", help="all trials instead of a few")
    parser.add_argument("--seed", type=int, default=0, help="start of the random choices (0)")
    parser.add_argument("--json", action="store_true", help="print one line of JSON last")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        parser.error(f"expected names among {', '.join(NAMES)}, but got {unknown[0]}")
    found = [run(name, full=options.full, seed=options.seed) for name in options.names or NAMES[:-1]]
    failed = sum(result["failed"] for result in found)
    print(f"{len(found)} harnesses, {sum(r.get('trials', 0) for r in found)} trials, {failed} failed")
    if options.json:
        print(json.dumps({"failed": failed, "harnesses": found}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
