"""Runs the code of a Markdown page as its reader would: block after block, in one directory.

python tests/documents.py PAGE [--slow]

Python blocks share their names; blocks of shell commands may stand between them. A `text` block right behind a block of
code is what that prints, numbers aside. A comment right above a block says `<!-- slow: why -->` or
`<!-- not run: why -->`.
"""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FENCE = re.compile(
    r"^(?:<!-- (?P<mark>[\w ]+): [^\n]+ -->\n)?(?P<ticks>```+)(?P<language>[^\n]*)\n(?P<code>.*?)^(?P=ticks)$",
    re.M | re.S,
)
KINDS = {"python": "python", "": "shell", "sh": "shell", "text": "text"}
NUMBER = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?")


@dataclass
class Block:
    """Code of a page: where it stands, its kind, its mark, and what it prints if the page says so."""

    line: int
    kind: str
    code: str
    mark: str
    prints: str | None = None


def pages() -> list[Path]:
    """Every page that people read."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    return sorted(page for page in found if "_build" not in page.parts)


def blocks_of(page: Path) -> list[Block]:
    """The blocks of code of a page; one whose language is not known is an error."""
    text, blocks, end = page.read_text(), [], -1
    for match in FENCE.finditer(text):
        language = match["language"].strip()
        if language.startswith("{"):  # a directive
            continue
        if language not in KINDS:
            raise ValueError(f"Expected python, sh or text in {page.name}, but got '{language}'. Name the language.")
        line = text.count("\n", 0, match.start("code")) + 1
        if KINDS[language] != "text":
            blocks.append(Block(line, KINDS[language], match["code"], match["mark"] or ""))
        elif end >= 0 and not text[end : match.start()].strip():
            blocks[-1].prints = match["code"]
        end = match.end()
    return blocks


def run_page(page: Path, *, slow: bool = False) -> None:
    """Runs every block in the current directory, without the slow ones unless asked for."""
    names = {"__name__": "__main__"}
    for block in blocks_of(page):
        if block.mark == "not run" or (block.mark == "slow" and not slow):
            continue
        print(f"{page.name}, line {block.line}: {block.kind}", file=sys.stderr, flush=True)
        if block.kind == "python":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(block.code, f"{page.name} from line {block.line}", "exec"), names)
            output = printed.getvalue()
        else:
            output = subprocess.run(["bash", "-euc", block.code], check=True, stdout=subprocess.PIPE, text=True).stdout
        print(output, end="", flush=True)
        if block.prints is not None and without_numbers(output) != without_numbers(block.prints):
            raise AssertionError(f"{page.name}, line {block.line}: expected\n{block.prints}\nbut got\n{output}")


def without_numbers(text: str) -> str:
    """What stays the same on another machine."""
    return " ".join(NUMBER.sub("#", text).split())


if __name__ == "__main__":
    run_page(Path(sys.argv[1]), slow="--slow" in sys.argv[2:])
