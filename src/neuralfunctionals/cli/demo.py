"""`nf demo`: the whole pipeline, from digits to edited and classified networks, in minutes."""

from __future__ import annotations

from typing import Any

from neuralfunctionals.cli.command import Add, Command, print_table
from neuralfunctionals.progress import Progress

# Torch and everything that needs it is imported inside the functions, so that --help is fast.


def _add_demo_arguments(add: Add) -> None:
    add("--out", default="nf-demo", metavar="DIR", help="output directory; an unfinished demo is resumed (nf-demo)")
    add(
        "--scale",
        default="small",
        metavar="NAME",
        help="small, or tiny, a quick check that everything works (small)",
    )


def _demo(out: str, scale: str) -> dict[str, Any]:
    from neuralfunctionals.studies import run_demo

    with Progress(from_zero=True) as progress:
        result = run_demo(out, scale=scale, progress=progress.update)
    return {**result, "out": out}


def _show_demo(result: dict[str, Any]) -> None:
    rows = []
    tasks = {"edit": "dilate the digit: MSE", "classify": "classify the digit: accuracy"}
    for row in result["results"]:
        value = f"{row['test_mse']:.3f}" if "test_mse" in row else f"{row['test_accuracy']:.1%}"
        size = f"{row['parameters']:,}" if "parameters" in row else ""
        rows.append((tasks.pop(row["task"], ""), row["model"], row.get("trained", ""), value, size))
    changes = result["shuffled"]
    print(
        f"{result['networks']} networks, one per digit. Models that see only the weights, tested on "
        f"{result['unseen_networks']} networks of digits that none of them has seen:"
    )
    print_table(("task", "model", "trained", "test", "parameters"), rows)
    print(
        f"Shuffling neurons changes weights by up to {changes['weights']:.1g}, pictures by {changes['pictures']:.0e} "
        f"and the classifier's outputs by {changes['answers']:.0e}."
    )
    print(f"Report with pictures, curves and all numbers: {result['report']}")


COMMANDS = {
    "demo": Command(
        "Fit networks to digits, train models that edit and classify them, and compare with the shipped models.",
        "nf demo --out /tmp/nf-demo",
        _add_demo_arguments,
        _demo,
        show=_show_demo,
    ),
}
