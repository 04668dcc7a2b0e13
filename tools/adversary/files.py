"""Mutated and crafted files through every importer, with 2 GiB of memory and 20 seconds each.

    python tools/adversary/files.py                  3,000 mutated files, and all crafted ones
    python tools/adversary/files.py --short          a few of each, in seconds

Every file must be read or refused in one line: no code in it may run, no traceback, no signal, nothing that takes all
the memory or time, and nothing left behind. What is read must be a store that verifies and holds finite numbers. Ten of
each importer use the real command, the others forked workers. Ends with exit code 1 if anything else happened.
"""

from __future__ import annotations

import gzip
import os
import random
import re
import resource
import shutil
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from crafted import CANARY, CRAFTED, Maker, repack
from trials import Outcome, Tally, Worker, command, nf, one_line, parser, run_forked, slowness, warm_up, workshop

MEMORY = 2 << 30
SECONDS = 20.0
REAL = 10
MODEL = "digits-dilate"
"""A shipped model, whose files are mutated and which edits networks from mutated ones."""


@dataclass(frozen=True)
class Importer:
    """A command that reads other people's files."""

    name: str
    words: tuple[str, ...]
    """`IN` is the folder with the material; what is made is `OUT`."""
    make: Callable[[Path], None]
    """Puts good material into a folder."""


def _networks(folder: Path, ending: str = ".pth", *, legacy: bool = False, count: int = 2) -> None:
    import safetensors.torch
    import torch

    from neuralfunctionals.inr import Siren

    folder.mkdir(parents=True, exist_ok=True)
    for n in range(1, count + 1):
        state = Siren([2, 3, 1] if count > 1 else (2, 32, 32, 1), seed=n).state_dict()
        if ending == ".safetensors":
            safetensors.torch.save_file(state, folder / f"net{n}{ending}")
        else:
            torch.save(state, folder / f"net{n}{ending}", _use_new_zipfile_serialization=not legacy)


def _npz(folder: Path) -> None:
    import neuralfunctionals as networks

    spec = networks.NetworkSpec.mlp([2, 2, 1])
    weights = np.random.default_rng(0).standard_normal((4, spec.num_entries)).astype(np.float32)
    folder.mkdir()
    np.savez(folder / "a.npz", weights=weights, spec=np.array(spec.to_json()), label=np.arange(4))


def _zoo(folder: Path) -> None:
    from neuralfunctionals.data.formats.published import export_networks

    export_networks("small-cnn-zoo", folder.parent / "zoo", folder)


def _pictures(folder: Path) -> None:
    import cv2

    folder.mkdir()
    picture = np.random.default_rng(0).integers(0, 256, (9, 8, 3), dtype=np.uint8)
    for ending in ("png", "jpg", "bmp", "webp", "tif", "ppm"):
        cv2.imwrite(str(folder / f"a.{ending}"), picture)


def _image_arrays(folder: Path) -> None:
    folder.mkdir()
    images = np.random.default_rng(0).integers(0, 256, (6, 8, 8), dtype=np.uint8)
    np.savez_compressed(folder / "a.npz", images=images, labels=np.arange(6))


def _model(folder: Path) -> None:
    from neuralfunctionals.shipped import find_shipped

    _networks(folder, ".safetensors", count=1)
    shutil.copytree(find_shipped(MODEL), folder / "run")
    for sums in folder.rglob("SHA256SUMS"):  # as whoever crafts a model would: checksums would find every mutation
        sums.unlink()


_FIT = ("--limit", "2", "--recipe", "fast", "--psnr", "1", "--hidden", "4", "--workers", "1")
IMPORTERS = (
    Importer("state-dicts", ("data", "import", "state-dicts", "IN", "--out", "OUT"), _networks),
    Importer("nfn-sirens", ("data", "import", "nfn-sirens", "IN", "--out", "OUT"), lambda f: _networks(f / "digit_1s")),
    Importer("legacy", ("data", "import", "state-dicts", "IN", "--out", "OUT"), lambda f: _networks(f, legacy=True)),
    Importer(
        "safetensors",
        ("data", "import", "state-dicts", "IN", "--out", "OUT"),
        lambda f: _networks(f, ".safetensors"),
    ),
    Importer("npz", ("data", "import", "npz", "IN/a.npz", "--out", "OUT"), _npz),
    Importer("small-cnn-zoo", ("data", "import", "small-cnn-zoo", "IN", "--out", "OUT"), _zoo),
    Importer("pictures", ("fit", "--images", "IN", "--image-size", "8", "--out", "OUT", *_FIT), _pictures),
    Importer("image arrays", ("fit", "--images", "IN/a.npz", "--out", "OUT", *_FIT), _image_arrays),
    Importer("edit", ("edit", MODEL, "--weights", "IN/net1.pth", "--out", "OUT.pth"), lambda f: _networks(f, count=1)),
    Importer("model", ("edit", "IN/run", "--weights", "IN/net1.safetensors", "--out", "OUT.pth"), _model),
)


# Mutations.


def mutate_bytes(data: bytes, dice: random.Random) -> bytes:
    """Some bytes changed, cut out, doubled or put in; numbers made extreme."""
    made = bytearray(data)
    for _ in range(dice.choice([1, 1, 1, 2, 8])):
        place = dice.randrange(len(made)) if made else 0
        kind = dice.choice(["bit", "byte", "cut", "end", "double", "number", "zeros", "insert"])
        if kind == "bit" and made:
            made[place] ^= 1 << dice.randrange(8)
        elif kind == "byte" and made:
            made[place] = dice.randrange(256)
        elif kind == "cut":
            del made[place : place + dice.randrange(1, 64)]
        elif kind == "end":
            del made[place:]
        elif kind == "double":
            made[place:place] = made[place : place + dice.randrange(1, 256)]
        elif kind == "number":
            size = dice.choice([2, 4, 8])
            made[place : place + size] = dice.choice([b"\xff" * size, b"\x7f" + b"\xff" * (size - 1), bytes(size)])
        elif kind == "zeros":
            made[place : place + 32] = bytes(32)
        else:
            made[place:place] = bytes(dice.randrange(256) for _ in range(dice.randrange(1, 16)))
    return bytes(made)


_NUMBERS = [b"-1", b"0", b"1e9", b"1000000000", b"1000000000000", b"99999999999999999999999", b"NaN", b"null", b'"x"']


def mutate_text(data: bytes, dice: random.Random) -> bytes:
    """One number in a text replaced by another one, or by something else."""
    found = list(re.finditer(rb"-?\d+(\.\d+)?", data))
    if not found or dice.random() < 0.3:
        return mutate_bytes(data, dice)
    place = dice.choice(found)
    return data[: place.start()] + dice.choice(_NUMBERS) + data[place.end() :]


def mutate(file: Path, dice: random.Random) -> str:
    """Changes a file in place; archives also from within, so that their checksums fit. Says how."""
    deep = dice.random() < 0.6
    if deep and zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
        chosen = dice.choice([n for n in names if n.endswith(("data.pkl", ".npy"))] * 3 + names)
        repack(file, lambda name, old: mutate_bytes(old, dice) if name == chosen else old)
        return f"{chosen} in {file.name}"
    data = file.read_bytes()
    if file.suffix == ".gz" and deep:
        file.write_bytes(gzip.compress(mutate_text(gzip.decompress(data), dice), 1))
    elif file.suffix in (".csv", ".json"):
        file.write_bytes(mutate_text(data, dice))
    elif file.suffix == ".safetensors" and deep:
        size = int.from_bytes(data[:8], "little")
        head = mutate_text(data[8 : 8 + size], dice)
        file.write_bytes(len(head).to_bytes(8, "little") + head + data[8 + size :])
    else:
        file.write_bytes(mutate_bytes(data, dice))
    return file.name


# Trials.


def limited(work: Callable[[], int], folder: Path) -> Callable[[], int]:
    def run() -> int:
        os.chdir(folder)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        return work()

    return run


def carry_out(importer: Importer, folder: Path, *, real: bool) -> Outcome:
    if not real:
        return Worker(limited(nf(*importer.words), folder), folder.parent).wait(SECONDS * slowness())

    def start() -> int:
        call = command(*importer.words)
        os.execv(call[0], call)

    # It also imports everything: that is not what is measured.
    return Worker(limited(start, folder), folder.parent).wait(4 * SECONDS * slowness())


def judge(importer: Importer, folder: Path, outcome: Outcome) -> str:
    """What must not have happened; nothing if all is well."""
    if (folder / CANARY).exists():
        return "CODE WAS RUN"
    if outcome.kind not in ("done", "refused"):
        return one_line(outcome)
    if "not enough memory" in outcome.err:
        return f"took all memory: {one_line(outcome)}"
    left = sorted(p.name for p in folder.iterdir() if p.name != "IN")
    if outcome.kind == "refused":
        # A fit that was begun stays, to be continued.
        allowed = ["OUT"] if importer.words[0] == "fit" else []
        return f"left behind: {left}" if left not in ([], allowed) else ""
    if any(name.startswith(".") for name in left):
        return f"left behind: {left}"
    return problems(folder)


def problems(folder: Path) -> str:
    """What is wrong with what was made."""
    import torch

    from neuralfunctionals.data import Store, WeightDataset
    from neuralfunctionals.data.formats.network_files import read_networks

    try:
        if (folder / "OUT.pth").exists():
            return "" if bool(read_networks(folder / "OUT.pth").tensor.isfinite().all()) else "silent: not finite"
        found = list(Store(folder / "OUT").problems())
        weights = WeightDataset(folder / "OUT").column("weights")
        return str(found) if found else "" if bool(torch.isfinite(weights).all()) else "silent: not finite"
    except Exception as error:
        return f"what was made cannot be read: {error!r}"


def trial(
    importer: Importer, good: Path, change: Maker | None, tally: Tally, dice: random.Random, *, real: bool
) -> None:
    folder = good.parent / "trial"
    folder.mkdir()
    shutil.copytree(good, folder / "IN", symlinks=True)
    if change is None:
        files = sorted(p for p in (folder / "IN").rglob("*") if p.is_file() and p.suffix != ".md")
        how = f"mutated {mutate(dice.choice(files), dice)}"
    else:
        change(folder / "IN")
        how = next(name for name, maker in CRAFTED[importer.name].items() if maker is change)
    outcome = carry_out(importer, folder, real=real)
    if not real:  # real commands also import everything
        for name, value in (("most_cpu_seconds", outcome.cpu_seconds), ("most_memory_mb", outcome.peak_mb)):
            tally.numbers[name] = round(max(tally.numbers.get(name, 0.0), value), 1)
    failure = judge(importer, folder, outcome)
    kind = ("mutated " if change is None else "crafted ") + outcome.kind
    tally.add(importer.name, kind, failure and f"{how}: {failure}")
    shutil.rmtree(folder)


def make_material(path: Path) -> None:
    from neuralfunctionals.data.formats.network_files import read_state_dict

    words = ["zoo", "--images", "mnist-sample", "--count", 6, "--epochs", 1, "--limit-images", 100, "--batch-size", 64]
    made = run_forked(path, *words, "--workers", 1, "--out", path / "zoo", timeout=600)
    if made.kind != "done":
        raise SystemExit(f"Cannot make the material: {one_line(made)}")
    for importer in IMPORTERS:
        importer.make(path / importer.name)
        for file in (p for p in (path / importer.name).rglob("net1.*")):
            read_state_dict(file)  # what torch imports for this, forked workers have then


def main() -> int:
    made = parser(__doc__)
    made.add_argument("--count", type=int, default=3000, help="mutated and crafted files (3000)")
    made.add_argument("--real", type=int, default=REAL, help=f"of each importer, by the real command ({REAL})")
    made.add_argument("--only", help="one importer")
    options = made.parse_args()
    tally, dice = Tally("files", options.seed), random.Random(options.seed)
    warm_up()
    chosen = [i for i in IMPORTERS if options.only in (None, i.name)]
    with tally, workshop(options.keep) as path:
        make_material(path)
        crafted = [(i, maker) for i in chosen for maker in CRAFTED[i.name].values()]
        if options.short:
            crafted = dice.sample(crafted, min(len(crafted), 30))
        count = 40 if options.short else max(0, options.count - len(crafted))
        cases: list[tuple[Importer, Maker | None]] = [
            *crafted,
            *((chosen[n % len(chosen)], None) for n in range(count)),
        ]
        real = dict.fromkeys((i.name for i in chosen), 0 if options.short else options.real)
        for importer, change in cases:
            trial(importer, path / importer.name, change, tally, dice, real=change is None and real[importer.name] > 0)
            real[importer.name] -= change is None
    return tally.finish()


if __name__ == "__main__":
    sys.exit(main())
