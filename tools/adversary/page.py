"""A crowd, half-open connections and hostile requests against the web page.

    python tools/adversary/page.py                   300 simultaneous fits, 1,000 half-open connections
    python tools/adversary/page.py --short           fewer of each, in seconds

Everybody in the crowd must be served and told their place in line; connections that send nothing, or half a request,
must be closed, and must not keep others waiting; no request may be answered with a server error. The page runs as a
process of its own, on the models of the package or on `--models DIR`. Ends with exit code 1 if anything else happened.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
from trials import Tally, command, parser, slowness, workshop

HEADER_SECONDS = 10.0
"""What `neuralfunctionals.web.connections` promises."""
BODY_SECONDS = 30.0
"""What `neuralfunctionals.web.guard` promises."""


class Page:
    """`nf serve` as a process."""

    def __init__(self, models: str | None) -> None:
        words = ["serve", "--port", 0, "--no-browser", *(["--models", models] if models else [])]
        self.process = subprocess.Popen(command(*words), stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.lines: list[str] = []
        self.url = ""
        for line in self.process.stderr:
            self.lines.append(line)
            if found := re.search(r"http://\S+:\d+", line):
                self.url = found[0]
                break
        if not self.url:
            raise SystemExit(f"The page did not start: {self.lines}")
        threading.Thread(target=lambda: self.lines.extend(self.process.stderr or ()), daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def rss_mb(self) -> float:
        with open(f"/proc/{self.process.pid}/status") as lines:
            return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024

    @property
    def num_files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60 * slowness())


async def visit(client: httpx.AsyncClient, url: str, call: int, session: str, data: list[Any]) -> tuple[str, list[int]]:
    """One action as the page's own script does it: what went wrong, and the places in line that were told."""
    places: list[int] = []
    try:
        body = {"data": data, "fn_index": call, "session_hash": session}
        joined = await client.post(f"{url}/gradio_api/queue/join", json=body)
        if joined.status_code != 200:
            return f"{joined.status_code} {joined.text[:100]}", places
        async with client.stream("GET", f"{url}/gradio_api/queue/data", params={"session_hash": session}) as stream:
            async for line in stream.aiter_lines():
                event = json.loads(line[6:]) if line.startswith("data: ") else {}
                if event.get("msg") == "estimation":
                    places.append(event["rank"])
                if event.get("msg") == "process_completed":
                    return "" if event["success"] else str(event["output"])[:200], places
        return "closed without an answer", places
    except httpx.HTTPError as error:
        return repr(error), places


async def half_open(port: int, dice: random.Random, *, bodies: bool) -> float | None:
    """A connection that never sends a whole request: seconds until it was closed; none if it was not."""
    started = time.monotonic()
    starts = [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"]
    if bodies:
        join = b"POST /gradio_api/queue/join HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        starts.append(join + b"Content-Length: 6000000\r\n\r\n" + b"x" * dice.choice([0, 10, 100_000]))
        starts.append(join + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n")
    start = dice.choice(starts)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(start)
        await writer.drain()
        for _ in range(int(BODY_SECONDS + HEADER_SECONDS) * 2):
            try:
                if not await asyncio.wait_for(reader.read(65536), 2):
                    break
            except asyncio.TimeoutError:
                if dice.random() < 0.2:  # some trickle
                    writer.write(b"x")
        else:
            return None
        writer.close()
    except OSError:
        pass
    return time.monotonic() - started


async def crowd(page: Page, fits: int, idle: int, tally: Tally, dice: random.Random, *, bodies: bool) -> None:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=httpx.Timeout(1200, connect=60), limits=limits, trust_env=False) as client:
        config = (await client.get(f"{page.url}/config")).json()
        calls = {d["api_name"]: d["id"] for d in config["dependencies"]}
        idlers = [half_open(page.port, random.Random(dice.random()), bodies=bodies) for _ in range(idle)]
        waiting = [asyncio.create_task(idler) for idler in idlers]
        await asyncio.sleep(0.5)
        started = time.monotonic()
        fit, names = calls["fit"], [f"visitor-{n}" for n in range(fits)]
        visits = [visit(client, page.url, fit, name, [f"sample:{n % 10}", None]) for n, name in enumerate(names)]
        answers = await asyncio.gather(*visits)
        elapsed = time.monotonic() - started
        for problem, _ in answers:
            tally.add("simultaneous fits", "answered" if not problem else "refused", problem)
        told = [places for _, places in answers if places]
        if fits > 10 and (len(told) < 0.9 * fits or max(max(places) for places in told) < fits // 2):
            tally.add("places in line", "missing", f"{len(told)} of {fits} were told their place")
        # All are served before anybody acts again: nobody's network may have been forgotten.
        for n in dice.sample(range(fits), min(fits, 20)):
            problem, _ = await visit(client, page.url, calls["undo"], names[n], [None])
            tally.add("acts afterwards", "answered" if not problem else "refused", problem)
        closed = await asyncio.gather(*waiting)
        for seconds in closed:
            late = seconds is None or seconds > BODY_SECONDS + HEADER_SECONDS + 10 * slowness()
            tally.add("half-open connections", "kept" if late else "closed", f"after {seconds} s" if late else "")
        slowest = max((seconds for seconds in closed if seconds is not None), default=0.0)
        tally.numbers |= {
            "closed_after_seconds": round(slowest, 1),
            "fits": fits,
            "fits_seconds": round(elapsed, 1),
            "half_open": idle,
        }


HOSTILE: tuple[bytes, ...] = (
    b"NaN",
    b"",
    b"[]",
    b"{}",
    b"null",
    b'{"data": [NaN], "fn_index": 0, "session_hash": "a"}',
    b'{"data": [1e999], "fn_index": 0, "session_hash": "a"}',
    b'{"data": [], "fn_index": -1, "session_hash": "a"}',
    b'{"data": [], "fn_index": 123456789, "session_hash": "a"}',
    b'{"data": [], "fn_index": 1e3, "session_hash": "a"}',
    b'{"data": {}, "fn_index": 0, "session_hash": "a"}',
    b'{"data": [], "fn_index": 0, "session_hash": "../../a"}',
    b'{"data": [], "fn_index": 0, "session_hash": null}',
    b'{"data": [], "fn_index": 0}',
    b'{"data": [null, null], "fn_index": true, "session_hash": "a"}',
    b'{"data": [{"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}], "fn_index": 0, "session_hash": "a"}',
    b"[" * 100_000,
    b'{"a":' * 1000,
    b"\xff\xfe",
)
HEADS: tuple[tuple[dict[str, str], int], ...] = (
    ({"host": "127.0.0.1:80@evil"}, 403),
    ({"host": "evil.example"}, 403),
    ({"host": "localhost.evil.example"}, 403),
    ({"host": "127.0.0.1 evil"}, 403),
    ({"origin": "http://evil.example"}, 403),
    ({"origin": "null"}, 403),
    ({"origin": "http://127.0.0.1:1"}, 403),
    ({"sec-fetch-site": "cross-site"}, 403),
)


async def hostile(page: Page, rounds: int, tally: Tally, dice: random.Random) -> None:
    """Crafted and mutated requests: none may end in a server error."""
    async with httpx.AsyncClient(timeout=60 * slowness(), trust_env=False) as client:
        config = (await client.get(f"{page.url}/config")).json()
        call = next(d["id"] for d in config["dependencies"] if d["api_name"] == "undo")  # cheap, if it is let through
        good = json.dumps(
            {"data": ["sample:1", None], "fn_index": call, "session_hash": "a", "event_data": None}
        ).encode()
        bodies = list(HOSTILE)
        for _ in range(rounds):
            data = bytearray(good)
            for _ in range(dice.randrange(1, 6)):
                data[dice.randrange(len(data))] = dice.randrange(256)
            bodies.append(bytes(data[: dice.randrange(1, len(data) + 1)] if dice.random() < 0.2 else data))
        for body in bodies:
            for path in ("queue/join", "reset", "cancel"):
                answer = await send(client, page, path, body, {})
                tally.add("hostile bodies", f"{answer // 100}xx", f"{answer}: {body[:80]!r}" if answer >= 500 else "")
        for heads, expected in HEADS:
            answer = await send(client, page, "queue/join", good, heads)
            tally.add("hostile heads", f"{answer // 100}xx", "" if answer == expected else f"{answer}: {heads}")


async def send(client: httpx.AsyncClient, page: Page, path: str, body: bytes, heads: dict[str, str]) -> int:
    try:
        url = f"{page.url}/gradio_api/{path}"
        return (await client.post(url, content=body, headers={"content-type": "application/json", **heads})).status_code
    except httpx.HTTPError:  # closed before it answered: a refusal
        return 413


def main() -> int:
    made = parser(__doc__)
    made.add_argument("--fits", type=int, default=300)
    made.add_argument("--half-open", type=int, default=1000)
    made.add_argument("--rounds", type=int, default=200, help="mutated requests (200)")
    made.add_argument("--models", help="run directories (defaults to the shipped models)")
    options = made.parse_args()
    if options.short:
        options.fits, options.half_open, options.rounds = 20, 60, 10
    tally, dice = Tally("page", options.seed), random.Random(options.seed)
    with workshop(options.keep) as path:
        page = Page(options.models)
        try:
            before, files = page.rss_mb, page.num_files
            asyncio.run(hostile(page, options.rounds, tally, dice))
            asyncio.run(crowd(page, options.fits, options.half_open, tally, dice, bodies=not options.short))
            tally.numbers |= {"rss_mb": [round(before), round(page.rss_mb)], "open_files": [files, page.num_files]}
            alive = page.process.poll() is None
        finally:
            code = page.stop()
        tracebacks = "".join(page.lines[1:])[:2000] if any("Traceback" in line for line in page.lines) else ""
        left = sorted(p.name for p in Path(path / "tmp").glob("nf-serve-*"))
        failure = "" if alive and code == 0 and not tracebacks and not left else f"{code} {tracebacks} {left}"
        tally.add("the page itself", "ended well" if not failure else "failed", failure)
    return tally.finish()


if __name__ == "__main__":
    sys.exit(main())
