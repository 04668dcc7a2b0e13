"""Do the tests notice wrong code? Single-line mutants of `weight_space`, `layers` and `models`, drawn with a seed.

    python tools/mutants.py --count 60 --seed 0 --out mutants.jsonl

Each mutant changes one operator, comparison, number or truth value in a copy of the package, and is tried with the
tests of the mirrored folder alone, stopped at the first failure. Survivors are printed: each wants a test, or a word on
why the change means nothing. A run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src/neuralfunctionals"
FOLDERS = ("weight_space", "layers", "models")
SWAPS = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*", ast.MatMult: "*",
    ast.Lt: ">=", ast.LtE: ">", ast.Gt: "<=", ast.GtE: "<", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in", ast.And: "or", ast.Or: "and",
}  # fmt: skip


def mutants_of(file: Path) -> Iterator[tuple[int, str, str]]:
    """Line, old and new text of every mutant of a file, on lines of code alone."""
    text = file.read_text()
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
            new = repr(not node.value) if isinstance(node.value, bool) else repr(node.value + 1)
            line = lines[node.lineno - 1]
            yield node.lineno, line, line[: node.col_offset] + new + line[node.end_col_offset :]
            continue
        pairs: list[tuple[ast.expr, ast.AST, ast.expr]] = []
        if isinstance(node, ast.BinOp):
            pairs = [(node.left, node.op, node.right)]
        elif isinstance(node, ast.Compare):
            pairs = [(node.left, node.ops[0], node.comparators[0])]
        elif isinstance(node, ast.BoolOp):
            pairs = [(node.values[0], node.op, node.values[1])]
        for left, operator, right in pairs:
            new = SWAPS.get(type(operator))
            if new is None or left.end_lineno != right.lineno:
                continue
            line = lines[right.lineno - 1]
            between = line[left.end_col_offset : right.col_offset]
            words = between.strip(" ()")
            if words:
                changed = between.replace(words, new)
                yield right.lineno, line, line[: left.end_col_offset] + changed + line[right.col_offset :]


def is_caught(file: Path, line: int, new: str, *, seconds: int) -> bool:
    """Whether the tests of the mirrored folder fail with a mutant in a copy of the package."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "src", Path(folder) / "src", ignore=shutil.ignore_patterns("__pycache__"))
        target = Path(folder) / file.relative_to(ROOT)
        lines = target.read_text().splitlines(keepends=True)
        lines[line - 1] = f"{new}\n"
        target.write_text("".join(lines))
        paths = os.pathsep.join([f"{folder}/src", str(ROOT / "tests")])
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        tests = ROOT / "tests" / file.relative_to(PACKAGE).parts[0]
        words = [sys.executable, "-m", "pytest", tests, "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow"]
        try:
            quiet = subprocess.DEVNULL
            done = subprocess.run(words, cwd=ROOT, env=environment, stdout=quiet, stderr=quiet, timeout=seconds)
        except subprocess.TimeoutExpired:
            return True  # it hangs
        return done.returncode != 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=int, default=1800, help="longest time for the tests of one mutant")
    parser.add_argument("--out", default="mutants.jsonl", help="what came out; continued if it is there")
    options = parser.parse_args()
    files = [file for part in FOLDERS for file in sorted((PACKAGE / part).rglob("*.py"))]
    every = [(file, *mutant) for file in files for mutant in sorted(set(mutants_of(file)))]
    chosen = random.Random(options.seed).sample(every, options.count)
    out = Path(options.out)
    known = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    for file, line, old, new in chosen[len(known) :]:
        caught = is_caught(file, line, new, seconds=options.seconds)
        place = f"{file.relative_to(ROOT)}:{line}"
        known.append({"place": place, "old": old.strip(), "new": new.strip(), "caught": caught})
        with out.open("a") as log:
            log.write(json.dumps(known[-1]) + "\n")
        print(f"{'caught  ' if caught else 'SURVIVED'} {place}\n    {old.strip()}\n    {new.strip()}", flush=True)
    print(f"{sum(one['caught'] for one in known)} of {len(known)} mutants were caught")


if __name__ == "__main__":
    main()
