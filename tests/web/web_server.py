"""The page as a process of its own, and visitors that speak to it as its own script does."""

import json
import os
import re
import signal
import subprocess
import threading

from commands import nf_command


class Server:
    """`nf serve` as a process."""

    def __init__(self, models_directory, *words):
        command = nf_command("serve", "--port", 0, "--no-browser", "--models", models_directory, *words)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=_default_signals,
        )
        self.lines = []
        self.url = ""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if found := re.search(r"http://\S+:\d+", line):
                self.url = found[0]
                break
        assert self.url, self.lines
        # What it says later is kept, and never fills the pipe.
        self.listener = threading.Thread(target=lambda: self.lines.extend(self.process.stderr), daemon=True)
        self.listener.start()

    @property
    def rss_mb(self):
        with open(f"/proc/{self.process.pid}/status") as lines:
            return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024

    def stop(self, how=signal.SIGTERM):
        """Ends it; returns its exit code and what it printed."""
        self.process.send_signal(how)
        code = self.process.wait(120)
        self.listener.join(10)
        printed = self.process.stdout.read()
        self.process.stdout.close()
        self.process.stderr.close()
        return code, printed


def _default_signals():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell


class Visitor:
    """Speaks to the page as its own script does: joins the queue, then listens."""

    def __init__(self, client, url, session):
        self.client, self.url, self.session = client, url, session
        config = client.get(f"{url}/config").json()
        self.calls = {d["api_name"]: d["id"] for d in config["dependencies"]}

    def join(self, name, *data):
        body = {"data": [*data, None], "fn_index": self.calls[name], "session_hash": self.session}
        return self.client.post(f"{self.url}/gradio_api/queue/join", json=body)

    def call(self, name, *data):
        """What an action gives, as the page receives it; raises what it was refused with."""
        joined = self.join(name, *data)
        if joined.status_code != 200:
            raise ConnectionError(f"{joined.status_code} {joined.text}")
        with self.client.stream(
            "GET", f"{self.url}/gradio_api/queue/data", params={"session_hash": self.session}
        ) as stream:
            for line in stream.iter_lines():
                event = json.loads(line[6:]) if line.startswith("data: ") else {}
                if event.get("msg") == "process_completed":
                    if not event["success"]:
                        raise ConnectionError(str(event["output"].get("error")))
                    return event["output"]["data"]
        raise ConnectionError("the page closed the connection")
