"""Measures how long each action of the web page takes, over HTTP and with the real server.

python benchmarks/serve_latency.py --rounds 20
python benchmarks/serve_latency.py --models DIR
python benchmarks/serve_latency.py --url http://127.0.0.1:7860
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time

import httpx
from rich.console import Console
from rich.table import Table

ACTIONS = {"fit": "fit a digit", "read": "class and latent", "dilate": "edit", "shuffle": "shuffle", "flip": "flip"}
GOAL_SECONDS = 2.0


def start(models: str | None) -> tuple[subprocess.Popen[str], str]:
    """Starts the server in a process; yields its address."""
    words = ["serve", "--port", "0", "--no-browser", *(["--models", models] if models else [])]
    process = subprocess.Popen(
        [sys.executable, "-m", "neuralfunctionals.cli", *words], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"http://\S+:\d+", line):
            return process, found[0]
    raise SystemExit("The server did not start: see the line above.")


def act(client: httpx.Client, url: str, call: int, data: list[object]) -> None:
    """Runs one action as the page does: joins the queue and waits for the result."""
    session = "benchmark"
    body = {"data": data, "fn_index": call, "session_hash": session}
    client.post(f"{url}/gradio_api/queue/join", json=body).raise_for_status()
    with client.stream("GET", f"{url}/gradio_api/queue/data", params={"session_hash": session}) as stream:
        for line in stream.iter_lines():
            event = json.loads(line[6:]) if line.startswith("data: ") else {}
            if event.get("msg") == "process_completed":
                if not event["success"]:
                    raise SystemExit(f"An action failed: {event['output']}")
                return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--models", help="run directories; defaults to the shipped models")
    parser.add_argument("--url", help="address of a running server; by default one is started")
    options = parser.parse_args()
    process, url = (None, options.url) if options.url else start(options.models)
    seconds: dict[str, list[float]] = {name: [] for name in ACTIONS}
    try:
        with httpx.Client(timeout=120, trust_env=False) as client:
            calls = {d["api_name"]: d["id"] for d in client.get(f"{url}/config").json()["dependencies"]}
            for round_ in range(-1, options.rounds):  # the first round is a warm-up
                for name in ACTIONS:
                    data: list[object] = [f"sample:{round_ % 10}", None] if name == "fit" else [None]
                    started = time.perf_counter()
                    act(client, url, calls[name], data)
                    if round_ >= 0:
                        seconds[name].append(time.perf_counter() - started)
    finally:
        if process is not None:
            process.terminate()
            process.wait()
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    table = Table("action", "median, s", "slowest, s", f"below {GOAL_SECONDS:.0f} s")
    for name, words in ACTIONS.items():
        table.add_row(words, f"{medians[name]:.3f}", f"{max(seconds[name]):.3f}", str(medians[name] < GOAL_SECONDS))
    Console().print(table)
    result = {"benchmark": "serve_latency", **vars(options), "goal_seconds": GOAL_SECONDS}
    print(json.dumps({**result, "median_seconds": {name: round(value, 4) for name, value in medians.items()}}))


if __name__ == "__main__":
    main()
