"""The model card of a finished run, and the files that are shared with it: `run_card`, `copy_run`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from neuralfunctionals.config import Run
from neuralfunctionals.registry import RECIPES, changed_fields, read_run
from neuralfunctionals.run_directory import RunDirectory
from neuralfunctionals.weight_space import NetworkSpec


def run_card(
    directory: RunDirectory,
    name: str,
    *,
    summary: str | None = None,
    chosen: str = "The best step of one run, chosen by validation",
) -> str:
    """What the model does, its training data and its metrics, as Markdown.

    Args:
        directory: A finished run.
        name: Name of the model.
        summary: Completes the sentence "A model that ...". Defaults to the recipe's task.
        chosen: How the model was chosen.
    """
    config, result = directory.read_config(), directory.read_result()
    run, data = read_run(config["run"]), config["data"]
    spec = None if data.get("spec") is None else NetworkSpec.from_dict(data["spec"])
    if summary is None:
        summary = f"was trained to {RECIPES[run.recipe].summary}" if run.recipe in RECIPES else f"learned {run.recipe}"
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
        f"Trained by `{_command(run, data.get('images'))}`; best of {result['steps']:,} steps by validation: "
        f"step {result['best_step']:,}.",
        _describe_data(data, spec),
        f"Code: version {config['code']['version']}, commit {config['code']['commit']}; torch "
        f"{config['machine']['torch']}, {config['machine']['cores']} cores.",
    ]
    return f"""# {name}

A model that {summary}.

{chr(10).join(f"- {fact}" for fact in facts)}

| split | networks | {" | ".join(metrics)} |
|---|---|{"---|" * len(metrics)}
{chr(10).join(rows)}

{chosen}, and measured once on the test networks.
"""


def _command(run: Run, images: str | None) -> str:
    """The command that trains the model again."""
    changed = {name: v for name, v in changed_fields(run).items() if name not in ("training.threads", "data.images")}
    data = "--data DIR" if images is None else f"--images {images}"
    words = [f"--scale {run.scale} --model {run.model_name} {data}"]
    words += [f"--{name} {str(value).lower() if isinstance(value, bool) else value}" for name, value in changed.items()]
    return f"nf train {run.recipe} {' '.join(words)}"


def _describe_data(data: dict[str, Any], spec: NetworkSpec | None) -> str:
    if spec is None:
        return f"Data: latents of {data['networks']:,} networks; `run.json` has the details."
    images = f" of the image set `{data['images']}`" if "images" in data else ""
    differently = f"{'trained' if spec.has_kernels else 'with another frequency or fitted'} differently"
    return (
        f"Data: {data['networks']:,} networks{images}, {spec}; `run.json` has the details. The model is less accurate "
        f"for networks {differently}, and cannot take networks of other widths."
    )


def copy_run(directory: RunDirectory, out: Path, card: str) -> None:
    """Copies a run as it is shared: card, config, result and model, without checkpoints, curves and paths."""
    shutil.copytree(directory.model, out / "model", ignore=shutil.ignore_patterns("README.md"))
    config = directory.read_config()
    config.get("data", {}).pop("path", None)
    (out / "run.json").write_text(json.dumps(config, indent=2) + "\n")
    shutil.copy(directory.result_file, out)
    (out / "README.md").write_text(card)
