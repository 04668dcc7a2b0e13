"""Adds the model of a finished run to the package, with a model card: what it does, its training data and its metrics.

    python tools/ship_model.py RUN digits-dilate "thickens the strokes of the digit that a sine network shows"

Checkpoints, curves and samples are not copied. `nf.from_pretrained("digits-dilate")` and all commands that take a run
find it by name.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

import neuralfunctionals
from neuralfunctionals.run_directory import RunDirectory
from neuralfunctionals.runs.card import copy_run, run_card

SHIPPED = Path(neuralfunctionals.__file__).parent / "pretrained"


def halve(file: Path) -> None:
    """Stores floating-point tensors in half precision; loading converts them back. The metrics are equal to 1e-4."""
    tensors = {name: t.half() if t.is_floating_point() else t for name, t in load_file(file).items()}
    save_file(tensors, file, metadata={"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("name")
    parser.add_argument("summary")
    parser.add_argument("--chosen", default="The best step of one run, chosen by validation")
    arguments = parser.parse_args()
    directory, out = RunDirectory(arguments.run).require(), SHIPPED / arguments.name
    shutil.rmtree(out, ignore_errors=True)
    card = run_card(directory, arguments.name, summary=arguments.summary, chosen=arguments.chosen)
    copy_run(directory, out, card)
    halve(out / "model" / "model.safetensors")


if __name__ == "__main__":
    main()
