"""Damaged and planted libraries in the cache of compiled kernels.

    python tools/adversary/libraries.py              46 damaged and 10 planted libraries
    python tools/adversary/libraries.py --short      a few of each, in seconds

Each is loaded by a process of its own, with and without a compiler. A damaged library must be built again, or not be
used where there is no compiler; one that others could have put there must never run. Ends with exit code 1 if anything
else happened, such as a signal.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from trials import Tally, Worker, damage, one_line, parser, slowness, warm_up, workshop

SOURCE = 'extern "C" int answer() { return 42; }\n'
EVIL = """#include <cstdio>
__attribute__((constructor)) static void run() {{ fclose(fopen("{canary}", "w")); }}
extern "C" int answer() {{ return 666; }}
"""


def load(source: Path, cache: Path, compiler: str | None) -> int:
    """Prints what the library answers, or that there is none."""
    from neuralfunctionals import native

    os.environ["NF_CACHE"] = str(cache)
    if compiler is not None:
        os.environ["CXX"] = compiler
    library = native.load_library(source)
    print(None if library is None else library.answer())
    return 0


def answer(path: Path, source: Path, cache: Path, compiler: str | None = None) -> tuple[str, str]:
    """What a new process gets, and what went wrong."""
    outcome = Worker(partial(load, source, cache, compiler), path).wait(120 * slowness())
    return outcome.out.strip(), "" if outcome.kind == "done" else one_line(outcome)


def damaged(path: Path, count: int, tally: Tally, dice: random.Random) -> None:
    source, good = path / "small.cpp", path / "good"
    source.write_text(SOURCE)
    answer(path, source, good)
    for number in range(count):
        cache = path / "cache"
        shutil.copytree(good, cache)
        (library,) = (cache / "kernels").glob("*.so")
        file = dice.choice([library, library, library, library.with_name(f"{library.name}.sha256")])
        how = damage(file, dice)
        for compiler, allowed in (("no-such-compiler", ("None",)), (None, ("42",)), ("no-such-compiler", ("42",))):
            found, failure = answer(path, source, cache, compiler)
            failure = failure or ("" if found in allowed else f"answered {found} instead of {allowed[0]}")
            kind = "not used" if found == "None" else "built again" if compiler is None else "used"
            tally.add("damaged", kind, failure and f"{number}, {how}: {failure}")
        shutil.rmtree(cache)


def planted(path: Path, count: int, tally: Tally, dice: random.Random) -> None:
    from neuralfunctionals import native

    source, evil, canary = path / "small.cpp", path / "evil.cpp", path / "canary"
    evil.write_text(EVIL.format(canary=canary))
    subprocess.run([str(native.find_compiler()), "-shared", "-fPIC", "-o", path / "evil.so", evil], check=True)
    ways: list[Callable[[Path], object]] = [
        lambda library: library.chmod(0o666),
        lambda library: library.with_name(f"{library.name}.sha256").chmod(0o622),
        lambda library: library.parent.chmod(0o777),
        lambda library: library.parent.chmod(0o770),
        lambda library: (shutil.move(library, path / "elsewhere.so"), library.symlink_to(path / "elsewhere.so")),
    ]
    if os.geteuid() == 0:  # only root can give files away
        ways += [
            lambda library: os.chown(library, 12345, 12345),
            lambda library: os.chown(library.parent, 12345, 12345),
        ]
    for number in range(count):
        cache = path / "cache"
        shutil.copytree(path / "good", cache)
        (library,) = (cache / "kernels").glob("*.so")
        shutil.copy(path / "evil.so", library)
        checksum = native._checksum(library.read_bytes(), library.name)
        library.with_name(f"{library.name}.sha256").write_bytes(checksum)
        library.chmod(0o600)
        ways[number % len(ways)](library)
        found, failure = answer(path, source, cache, dice.choice(["no-such-compiler", None]))
        if canary.exists():
            failure = "IT WAS RUN"
        elif not failure and found not in ("42", "None"):
            failure = f"answered {found}"
        tally.add("planted", "not used", failure and f"way {number % len(ways)}: {failure}")
        shutil.rmtree(cache)
        canary.unlink(missing_ok=True)


def main() -> int:
    made = parser(__doc__)
    made.add_argument("--count", type=int, default=46, help="damaged libraries (46)")
    options = made.parse_args()
    tally, dice = Tally("libraries", options.seed), random.Random(options.seed)
    warm_up()
    with tally, workshop(options.keep) as path:
        damaged(path, 3 if options.short else options.count, tally, dice)
        planted(path, 7 if options.short else 10, tally, dice)
    return tally.finish()


if __name__ == "__main__":
    sys.exit(main())
