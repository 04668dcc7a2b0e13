"""The real server as a process: what it refuses, what it survives, how it starts and ends."""

import base64
import concurrent.futures
import json
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

import httpx
import pytest
from test_digits import ANIMATION, PICTURE, huge_png, url
from web_server import Server, Visitor

from commands import run
from neuralfunctionals.web.digits import MAX_BYTES


@pytest.fixture
def client():
    with httpx.Client(timeout=120, trust_env=False) as opened:
        yield opened


def test_a_port_that_is_taken_is_said_in_one_line(capsys):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        code, out, err = run(capsys, "serve", "--port", port, "--no-browser")
    assert (code, out) == (2, "")
    assert err.startswith(f"nf: Cannot listen at 127.0.0.1, port {port}: Address already in use. Choose another one")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--port", "70000"], "port from 0 to 65535, but got 70000"),
        (["--port", "x"], "port"),
        (["--port", "0", "--host", "no.such.host.invalid"], "Expected an address of this machine"),
        (["--port", "0", "--models", "nowhere"], "The page needs the trained model digits-dilate"),
    ],
)
def test_refuses_in_one_line_what_cannot_be_served(capsys, words, reason):
    code, out, err = run(capsys, "serve", "--no-browser", *words)
    assert (code, out) == (2, "")
    assert reason in err
    assert err.count("\n") == 1


def test_refuses_a_model_of_another_task(capsys, models_directory, tmp_path):
    for model in models_directory.iterdir():
        (tmp_path / model.name).symlink_to(model)
    (tmp_path / "digits-classify").unlink()
    (tmp_path / "digits-classify").symlink_to(models_directory / "digits-erode")
    code, _, err = run(capsys, "serve", "--no-browser", "--port", "0", "--models", tmp_path)
    assert code == 2
    assert "Expected the task of run digits-classify to be ClassifyTask, but got EditTask" in err


def test_without_gradio_the_extra_is_named(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)  # as if it were not installed
    code, _, err = run(capsys, "serve", "--port", 0, "--no-browser")
    assert code == 2
    assert err == "nf: The page needs gradio. Install it with pip install 'neuralfunctionals[web]'.\n"


@pytest.mark.slow
def test_the_page_and_its_actions(server, client):
    assert "neuralfunctionals" in client.get(server.url).text
    visitor = Visitor(client, server.url, "somebody")
    fitted = visitor.call("fit", "sample:3")
    assert "40." in fitted[2] or "39." in fitted[2] or "41." in fitted[2]
    assert 'id="nf-class"' in visitor.call("read")[1]
    edited = visitor.call("dilate")
    assert "now: thicker" in edited[2]
    for name in ("shuffle", "flip"):
        changes = visitor.call(name)[4]
        assert changes.count('"nf-unchanged"') == 3
        assert "nf-scrambled" in changes
    assert "now: thicker" not in visitor.call("undo")[2]


@pytest.mark.slow
def test_own_networks_and_classifiers(server, client):
    visitor = Visitor(client, server.url, "owner")
    for source, reason in (("network:30:paper:/etc/passwd", "data URL"), (f"network:30:paper:{url(b'x')}", "network")):
        assert reason in visitor.call("fit", source)[1]
    with pytest.raises(ConnectionError, match="no network yet"):
        visitor.call("shuffle_cnn")
    assert "cannot be read as a network" in visitor.call("open_cnn", url(b"x"))[1]
    assert 'id="nf-predicted"' in visitor.call("open_cnn", "sample:2")[3]
    assert "stayed the same" in visitor.call("shuffle_cnn")[3]


@pytest.mark.slow
def test_visitors_do_not_see_each_others_networks(server, client):
    visitors = [Visitor(client, server.url, f"visitor-{k}") for k in range(2)]
    pictures = [visitor.call("fit", f"sample:{k}")[3] for k, visitor in enumerate(visitors)]
    assert visitors[0].call("undo")[2] == pictures[0] != pictures[1]
    with pytest.raises(ConnectionError, match="no network yet"):
        Visitor(client, server.url, "newcomer").call("shuffle")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (url(b""), "empty"),
        (url(b"#!/bin/sh"), "not a picture"),
        (url(PICTURE[:60]), "damaged"),
        (url(ANIMATION), "animation"),
        (url(huge_png(10_000, 10_000)), "megapixels"),
        ("/etc/passwd", "data URL"),
        (5, "data URL"),
        ({"path": "/etc/passwd"}, "data URL"),
        ({"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}, ""),
    ],
)
def test_bad_pictures_are_answered_on_the_page(server, client, source, reason):
    visitor = Visitor(client, server.url, "bad-pictures")
    try:
        answer = visitor.call("fit", source)[1]
    except ConnectionError as error:
        answer = str(error)
    assert reason in answer
    assert "root:" not in answer
    assert visitor.call("fit", "sample:1")[1] == ""  # and the page goes on


@pytest.mark.slow
def test_bodies_that_are_too_large_are_cut_off(server, client):
    large = "data:image/png;base64," + base64.b64encode(bytes(2 * MAX_BYTES)).decode()
    visitor = Visitor(client, server.url, "large")
    assert visitor.join("fit", large).status_code == 413

    def drops():
        for _ in range(64):
            yield bytes(2**20)

    try:
        answer = client.post(f"{server.url}/gradio_api/queue/join", content=drops())
        assert answer.status_code == 413
    except httpx.WriteError:
        pass  # it hung up before all was sent


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/file=/etc/passwd",
        "/gradio_api/file=../../../../etc/passwd",
        "/file=/etc/passwd",
        "/gradio_api/file/etc/passwd",
        "/static/../../../../../../etc/passwd",
        "/static/..%2f..%2f..%2f..%2f..%2fetc/passwd",
        "/assets/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "/static//etc/passwd",
        "/assets/%5c..%5c..%5cetc%5cpasswd",
        "/gradio_api/proxy=http://127.0.0.1:22/",
        "/gradio_api/vibe-code",
        "/gradio_api/openapi.json",
        "/gradio_api/custom_component/1/client/component/../../../etc/passwd",
        "/monitoring",
        "/gradio_api/stream/a/b/1/playlist-file",
        "/docs",
    ],
)
def test_files_and_other_doors_are_closed(server, path):
    # As raw bytes: clients tidy paths up before they send them.
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as raw:
        raw.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: raw.recv(65536), b""))
    assert answer.split(b" ")[1] in (b"403", b"404"), answer[:200]
    assert b"root:" not in answer


@pytest.mark.slow
def test_nothing_can_be_uploaded_to_disk_and_other_names_are_refused(server, client):
    answer = client.post(f"{server.url}/gradio_api/upload", files={"files": ("x.png", PICTURE)})
    assert answer.status_code == 404
    assert client.get(server.url, headers={"host": "evil.example"}).status_code == 403
    scratch = [p for p in Path(tempfile.gettempdir()).glob("nf-serve-*") if any(p.rglob("*.png"))]
    assert not scratch


@pytest.mark.slow
def test_two_hundred_requests_at_once_are_all_served_and_dropped_ones_leave_it_well(server):
    limits = httpx.Limits(max_connections=400, max_keepalive_connections=0)  # visitors come with their own connections
    with httpx.Client(timeout=300, limits=limits, trust_env=False) as client:
        first = Visitor(client, server.url, "first")
        first.call("fit", "sample:0")

        def visit(number):
            visitor = object.__new__(Visitor)
            visitor.client, visitor.url, visitor.session, visitor.calls = client, server.url, f"v{number}", first.calls
            try:
                return visitor.call("fit", f"sample:{number % 10}")[1]
            except ConnectionError as error:
                return str(error)

        def crowd():
            with concurrent.futures.ThreadPoolExecutor(200) as pool:
                return list(pool.map(visit, range(200)))

        crowd()
        before = server.rss_mb
        for number in range(10):  # join and leave, or leave while listening
            visitor = Visitor(client, server.url, f"dropped-{number}")
            visitor.join("fit", "sample:1")
            if number % 2:
                with client.stream(
                    "GET", f"{server.url}/gradio_api/queue/data?session_hash=dropped-{number}"
                ) as stream:
                    next(stream.iter_lines())
        answers = crowd()
        assert answers == [""] * 200  # all wait, nobody is sent away
        assert server.rss_mb - before < 150
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:  # those who left may still be waited for
            try:
                assert first.call("undo")
                break
            except ConnectionError:
                time.sleep(1)
        else:
            pytest.fail("the page did not recover")
    assert server.process.poll() is None
    assert not [line for line in server.lines if "Traceback" in line]


@pytest.mark.slow
def test_those_who_wait_are_told_their_place_in_line(server, client):
    visitors = [Visitor(client, server.url, f"line-{k}") for k in range(5)]
    for visitor in visitors:
        assert visitor.join("fit", "sample:1").status_code == 200
    address, last = f"{server.url}/gradio_api/queue/data", visitors[-1].session
    with client.stream("GET", address, params={"session_hash": last}) as stream:
        lines = [json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: ")]
    places = [event["rank"] for event in lines if event["msg"] == "estimation"]
    assert places[0] >= 2
    assert places == sorted(places, reverse=True)
    assert [event["success"] for event in lines if event["msg"] == "process_completed"] == [True]


@pytest.mark.slow
def test_no_request_ends_in_a_server_error(server, client):
    calls = Visitor(client, server.url, "odd").calls
    good = {"data": [None], "fn_index": calls["undo"], "session_hash": "odd"}
    odd = [{"fn_index": -1}, {"fn_index": 10**6}, {"data": []}, {"data": [None] * 9}, {"data": None}]
    odd += [{"session_hash": "../x"}, {"fn_index": None}]
    bodies = [b"NaN", b"", b"[]", b"[" * 10_000, *(json.dumps({**good, **change}).encode() for change in odd)]
    for body in bodies:
        answer = client.post(
            f"{server.url}/gradio_api/queue/join", content=body, headers={"content-type": "application/json"}
        )
        assert answer.status_code == 400, (body[:80], answer.text)
    for heads in ({"host": "127.0.0.1:80@evil"}, {"origin": "http://evil.example"}, {"origin": "null"}):
        assert client.post(f"{server.url}/gradio_api/queue/join", json=good, headers=heads).status_code == 403
    own = {"origin": server.url, "sec-fetch-site": "same-origin"}
    assert client.post(f"{server.url}/gradio_api/queue/join", json=good, headers=own).status_code == 200
    assert not [line for line in server.lines if "Traceback" in line]


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_told_to_end_it_ends_and_leaves_nothing_behind(models_directory, tmp_path, how):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path))
        server = Server(models_directory, "--json")
    httpx.get(server.url, trust_env=False)
    assert any(tmp_path.iterdir())
    code, printed = server.stop(how)
    assert code == 0
    assert json.loads(printed) == {"address": server.url}
    assert not any(tmp_path.glob("nf-serve-*"))
