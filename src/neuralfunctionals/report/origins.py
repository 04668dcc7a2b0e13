"""Provenance of runs: their data, code and machines: `data_table`, `run_table`, `machines`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neuralfunctionals.report.finished import FinishedRun, group
from neuralfunctionals.report.tables import Table


def data_table(runs: Sequence[FinishedRun]) -> Table:
    """The data that the runs of each recipe were trained on, without duplicates."""
    rows: list[tuple[str, ...]] = []
    for recipe, of_recipe in group(runs, by="recipe").items():
        for run in of_recipe:
            data = run.config["data"]
            counts = " / ".join(str(run.result[split].get("networks", "?")) for split in ("train", "val", "test"))
            row = (recipe, *_networks(data), str(data.get("networks", "?")), counts)
            rows += [row] if row not in rows else []
    names = ("task", "images", "networks", "how they were made", "number", "train / val / test measured")
    return Table(names, tuple(rows))


def _networks(data: dict[str, Any]) -> tuple[str, str, str]:
    """The images, the shape of the networks, and how they were made."""
    if data.get("kind") == "latents" and isinstance(data.get("networks"), dict):
        images, shape, made = _networks(data["networks"])
        return images, shape, f"latents of networks; {made}"
    images = str(data.get("images") or data.get("source") or "not known")
    return images, _shape(data.get("spec")), _making(data)


def _shape(spec: Any) -> str:
    try:
        layers = [(layer["in_neurons"], layer["out_neurons"], layer["kernel"]) for layer in spec["layers"]]
        widths = "-".join(map(str, [layers[0][0], *(out for _, out, _ in layers)]))
    except (KeyError, TypeError, IndexError):
        return "not known"
    return f"{widths}, {'CNN' if any(kernel for _, _, kernel in layers) else 'MLP'}"


def _making(data: dict[str, Any]) -> str:
    kind, recipe = str(data.get("kind", "networks")), data.get("recipe")
    facts = [kind]
    if isinstance(recipe, dict):
        facts.append(f"{recipe.get('optimizer')}, rate {recipe.get('learning_rate')}, {recipe.get('schedule')}")
        facts.append(f"at most {recipe.get('steps')} steps")
        facts += [f"stopped at {recipe['stop_psnr_db']:g} dB"] if isinstance(recipe.get("stop_psnr_db"), float) else []
    if "epochs" in data:
        facts.append(f"{data['epochs']} epochs of batches of {data.get('batch_size')}")
    facts += [f"{data['copies']} per training image"] if data.get("copies", 1) != 1 else []
    return ", ".join([*facts, f"seed {data['seed']}"] if "seed" in data else facts)


def run_table(runs: Sequence[FinishedRun]) -> Table:
    """One row per run: its config, best step, and commit."""
    names = ("run", "recipe", "scale", "model", "seed", "best of steps", "rate", "batch", "commit", "started")
    rows = []
    for run in runs:
        setting, code = run.config["run"], run.config.get("code", {})
        commit = code.get("commit") or f"version {code.get('version', 'not known')}"
        steps = f"{run.result.get('best_step', '?')} of {run.result.get('steps', '?')}"
        rate, batch = setting.get("optimizer", {}).get("lr", "?"), setting["training"].get("batch_size", "?")
        facts = [run.name, run.recipe, run.scale, run.model, run.result["seed"], steps, rate, batch]
        started = str(run.config.get("started", "not known"))[:16].replace("T", " ")
        rows.append(tuple(str(fact) for fact in (*facts, commit, started)))
    return Table(names, tuple(rows))


def machines(runs: Sequence[FinishedRun]) -> list[str]:
    """Versions and hardware, without duplicates, with the number of runs of each."""
    lines: dict[str, int] = {}
    for run in runs:
        facts, code = run.config.get("machine", {}), run.config.get("code", {})
        line = (
            f"neuralfunctionals {code.get('version', '?')}, Python {facts.get('python', '?')}, "
            f"torch {facts.get('torch', '?')}, Lightning {facts.get('lightning', '?')}, "
            f"{facts.get('processor', 'processor not known')}, {facts.get('cores', '?')} cores, "
            f"threads per run: {facts.get('threads', '?')}"
        )
        lines[line] = lines.get(line, 0) + 1
    return [f"{line} ({count} run{'' if count == 1 else 's'})" for line, count in lines.items()]
