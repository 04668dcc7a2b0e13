"""Do the tests notice wrong code? Single-line mutants of `weight_space`, `layers` and `models`, drawn with a seed.

    python tools/mutants.py --count 60 --seed 0 --out mutants.jsonl

Each mutant changes one operator, comparison, number or truth value in a copy of the package. It is tried with the tests
of the mirrored folder only, stopped at the first failure; the tests of its own module come first. Survivors are
printed: each needs a test, or a reason why the change does not matter. The same command continues a stopped run, and
tries survivors again. The draw of a mutant depends on its own line alone, so changes elsewhere hardly change the draw.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src/neuralfunctionals"
FOLDERS = ("weight_space", "layers", "models")
SWAPS = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*", ast.MatMult: "*",
    ast.Lt: ">=", ast.LtE: ">", ast.Gt: "<=", ast.GtE: "<", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in", ast.And: "or", ast.Or: "and",
}  # fmt: skip
PROCESSOR_SECONDS, MEMORY_BYTES = 1200, 8 << 30
"""Limits of one try, several times what the tests need: a mutant that reaches one is caught."""


@dataclass(frozen=True, order=True)
class Mutant:
    """A line of a file, before and after; equal lines of a file count once."""

    file: str
    old: str
    new: str
    line: int = field(compare=False)


def mutants_of(file: Path) -> Iterator[Mutant]:
    """Every mutant of a file, on lines of code only."""
    text = file.read_text()
    lines = text.encode().splitlines()  # the columns of a syntax tree count bytes
    name = str(file.relative_to(ROOT))

    def replaced(number: int, start: int, stop: int | None, new: str) -> Mutant:
        line = lines[number - 1]
        return Mutant(name, line.decode(), (line[:start] + new.encode() + line[stop:]).decode(), number)

    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
            new = repr(not node.value) if isinstance(node.value, bool) else repr(node.value + 1)
            yield replaced(node.lineno, node.col_offset, node.end_col_offset, new)
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
            start, stop = left.end_col_offset or 0, right.col_offset
            between = lines[right.lineno - 1][start:stop].decode()
            if words := between.strip(" ()"):
                yield replaced(right.lineno, start, stop, between.replace(words, new))


def draw(seed: int, count: int) -> list[Mutant]:
    files = [file for part in FOLDERS for file in sorted((PACKAGE / part).rglob("*.py"))]
    every = {mutant for file in files for mutant in mutants_of(file)}
    return sorted(sorted(every), key=lambda m: random.Random(f"{seed} {m.file} {m.old} {m.new}").random())[:count]


def tests_of(mutant: Mutant) -> list[Path]:
    """The files of the mirrored folder of tests, beginning with that of the mutant's module if it has its own."""
    folder, module, *_ = Path(mutant.file).relative_to(PACKAGE.relative_to(ROOT)).with_suffix("").parts
    return sorted((ROOT / "tests" / folder).glob("test_*.py"), key=lambda file: (file.stem != f"test_{module}", file))


def passes(tests: Sequence[Path], mutant: Mutant | None) -> bool:
    """Whether tests pass on a copy of the package with the mutant's line in it."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "src", Path(folder) / "src", ignore=shutil.ignore_patterns("__pycache__"))
        if mutant is not None:
            target = Path(folder) / mutant.file
            lines = target.read_text().splitlines()
            lines[mutant.line - 1] = mutant.new
            target.write_text("\n".join(lines) + "\n")
        words = [sys.executable, "-m", "pytest", *tests, "-x", "-q", "-m", "not slow"]
        environment = {**os.environ, "PYTHONPATH": f"{folder}/src", "OMP_NUM_THREADS": "1"}
        quiet = subprocess.DEVNULL
        done = subprocess.run(words, cwd=ROOT, env=environment, stdout=quiet, stderr=quiet, preexec_fn=_limit)
        return done.returncode == 0


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_SECONDS, PROCESSOR_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="mutants.jsonl", help="what came out; continued if it is there")
    options = parser.parse_args()
    out = Path(options.out)
    records = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    caught = {Mutant(**record["mutant"]) for record in records if record["caught"]}
    chosen = draw(options.seed, options.count)
    sound: set[str] = set()
    for mutant in chosen:
        if mutant in caught:
            continue
        tests = tests_of(mutant)
        folder = tests[0].parent.name
        if folder not in sound:
            if not passes(tests, None):
                raise SystemExit(f"tests/{folder} fails without a mutant.")
            sound.add(folder)
        is_caught = not passes(tests, mutant)
        with out.open("a") as log:
            log.write(json.dumps({"mutant": asdict(mutant), "caught": is_caught}) + "\n")
        if is_caught:
            caught.add(mutant)
        place = f"{'caught  ' if is_caught else 'SURVIVED'} {mutant.file}:{mutant.line}"
        print(f"{place}\n    {mutant.old.strip()}\n    {mutant.new.strip()}", flush=True)
    print(f"{sum(mutant in caught for mutant in chosen)} of {len(chosen)} mutants were caught")


if __name__ == "__main__":
    main()
