"""Adds the model of a finished run to the package, with a model card: what it does, its training data and its metrics.

    python tools/ship_model.py RUN digits-dilate "thickens the strokes of the digit that a sine network shows"

Checkpoints, curves and samples are not copied. `nf.from_pretrained("digits-dilate")` and all commands that take a run
find it by name.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

import neuralfunctionals
from neuralfunctionals.config import Run, flatten
from neuralfunctionals.registry import find_run, read_run
from neuralfunctionals.run_directory import RunDirectory
from neuralfunctionals.weight_space import NetworkSpec

SHIPPED = Path(neuralfunctionals.__file__).parent / "pretrained"


def command_of(run: Run, images: str) -> str:
    """The command that trains the model again, on networks of an image set."""
    usual = flatten(find_run(run.recipe, scale=run.scale, model=run.model_name))
    usual |= {name: flatten(run)[name] for name in ("training.threads", "data.images")}
    changed = {name: value for name, value in flatten(run).items() if usual.get(name) != value}
    words = [f"--scale {run.scale} --model {run.model_name} --images {images}"]
    words += [f"--{name} {str(value).lower() if isinstance(value, bool) else value}" for name, value in changed.items()]
    return f"nf train {run.recipe} {' '.join(words)}"


def card(name: str, summary: str, chosen: str, directory: RunDirectory) -> str:
    config, result = directory.read_config(), directory.read_result()
    run, data = read_run(config["run"]), config["data"]
    spec = NetworkSpec.from_dict(data["spec"])
    rows = [
        f"| {split} | {result[split]['networks']:,} | "
        + " | ".join(f"{value:.4f}" for metric, value in result[split].items() if metric != "networks")
        + " |"
        for split in ("train", "val", "test")
    ]
    metrics = [metric for metric in result["test"] if metric != "networks"]
    facts = [
        f"Recipe: `{run.recipe}`, scale `{run.scale}`, model `{run.model_name}`, {result['parameters']:,} parameters.",
        f"League: {result['league']}.",
        f"Trained by `{command_of(run, data['images'])}`; best of {result['steps']:,} steps by validation: "
        f"step {result['best_step']:,}.",
        f"Data: {data['networks']:,} networks of the image set `{data['images']}`, {spec}; `run.json` has the details. "
        "The model is less accurate for networks "
        f"{'trained' if spec.has_kernels else 'with another frequency or fitted'} differently, and cannot take "
        "networks of other widths.",
        f"Code: version {config['code']['version']}, commit {config['code']['commit']}; torch "
        f"{config['machine']['torch']}, {config['machine']['cores']} cores, no GPU.",
    ]
    return f"""# {name}

A model that {summary}.

{chr(10).join(f"- {fact}" for fact in facts)}

| split | networks | {" | ".join(metrics)} |
|---|---|{"---|" * len(metrics)}
{chr(10).join(rows)}

{chosen}, and measured once on the test networks.
"""


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
    shutil.copytree(directory.model, out / "model", ignore=shutil.ignore_patterns("README.md"))
    halve(out / "model" / "model.safetensors")
    config = directory.read_config()
    del config["data"]["path"]
    (out / "run.json").write_text(json.dumps(config, indent=2) + "\n")
    shutil.copy(directory.result_file, out)
    (out / "README.md").write_text(card(arguments.name, arguments.summary, arguments.chosen, directory))


if __name__ == "__main__":
    main()
