"""What stands before the page, with a tiny app behind it: which requests pass, and how long one may take."""

import asyncio
import contextlib
import json
import socket
import threading
import time

import pytest

pytest.importorskip("uvicorn")
import uvicorn

from neuralfunctionals.web.connections import bounded_protocol
from neuralfunctionals.web.guard import LOOPBACK, Guard

JOIN = "/gradio_api/queue/join"
GOOD = {"data": ["sample:1", None], "fn_index": 0, "session_hash": "abc"}


async def echo(scope, receive, send):
    """Answers with the body."""
    if scope["type"] != "http":
        return
    body = (await receive())["body"] if scope["method"] == "POST" else b"page"
    heads = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": heads})
    await send({"type": "http.response.body", "body": body})


def ask(guard, method="POST", path=JOIN, body=None, *, headers=(), host="localhost:7860", parts=None):
    """A request as the server hands it over; returns the status and the answer."""
    data = json.dumps(GOOD).encode() if body is None else body
    messages = parts or [{"type": "http.request", "body": data, "more_body": False}]
    sent = []

    async def receive():
        if not messages:
            await asyncio.sleep(60)
        return messages.pop(0)

    async def send(message):
        sent.append(message)

    heads = [(b"host", host.encode()), *((name.encode(), value.encode()) for name, value in dict(headers).items())]
    scope = {"type": "http", "method": method, "path": path, "headers": heads}
    asyncio.run(guard(scope, receive, send))
    return sent[0]["status"], sent[1]["body"]


@pytest.fixture
def guard():
    return Guard(echo, LOOPBACK, {0: 2, 3: 1}, body_seconds=0.3)


def test_the_page_and_its_own_requests_pass(guard):
    assert ask(guard, "GET", "/") == (200, b"page")
    assert ask(guard, "HEAD", "/assets/index.js")[0] == 200
    assert ask(guard) == (200, json.dumps(GOOD).encode())
    assert ask(guard, headers={"origin": "http://localhost:7860", "sec-fetch-site": "same-origin"})[0] == 200
    assert ask(guard, host="[::1]:7860", headers={"origin": "http://[::1]:7860"})[0] == 200
    assert ask(guard, body=b'{"event_id": "x"}', path="/gradio_api/reset")[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1:80@evil", "evil", "localhost.evil", "127.0.0.1 evil", "", "localhost:", "[::1", "::1"),
        *("localhost:port", "localhost/evil", "evil@localhost", "127.0.0.1:80:80", "localhost:123456"),
    ],
)
def test_refuses_other_names(guard, host):
    assert ask(guard, host=host)[0] == 403
    assert ask(guard, "GET", "/", host=host)[0] == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:7861"},
        {"origin": "http://localhost:7860.evil"},
        {"origin": "file://"},
        {"sec-fetch-site": "cross-site"},
    ],
)
def test_refuses_requests_of_other_pages(guard, headers):
    assert ask(guard, headers=headers)[0] == 403
    assert ask(Guard(echo, None), headers=headers)[0] == 403  # also where any name will do


def test_refuses_other_methods_and_places(guard):
    for method, path in [("GET", JOIN), ("PUT", JOIN), ("POST", "/"), ("DELETE", "/config"), ("OPTIONS", JOIN)]:
        assert ask(guard, method, path)[0] == 405
    for path in ("/gradio_api/upload", "/gradio_api/file=/etc/passwd", "/assets/../x", "/gradio_api/queue/join/"):
        assert ask(guard, "GET", path)[0] == 404


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"NaN", "NaN"),
        (b"", "not valid JSON"),
        (b"[]", "expected an object"),
        (b"[" * 100_000, "nested too deeply"),
        (json.dumps({**GOOD, "fn_index": -1}).encode(), "expected an action of the page"),
        (json.dumps({**GOOD, "fn_index": 1}).encode(), "expected an action of the page"),
        (json.dumps({**GOOD, "fn_index": 3}).encode(), "as many values as the action takes"),
        (json.dumps({**GOOD, "fn_index": "0"}).encode(), "fn_index: expected an integer"),
        (json.dumps({**GOOD, "fn_index": True}).encode(), "fn_index: expected an integer"),
        (json.dumps({**GOOD, "data": []}).encode(), "as many values as the action takes"),
        (json.dumps({**GOOD, "session_hash": "../../etc"}).encode(), "expected letters and digits"),
        (json.dumps({**GOOD, "session_hash": "a" * 65}).encode(), "expected letters and digits"),
        (json.dumps({**GOOD, "trigger_id": 1.5}).encode(), "trigger_id: expected an integer or null"),
    ],
)
def test_refuses_bodies_that_the_page_does_not_send(guard, body, reason):
    status, answer = ask(guard, body=body)
    assert (status, reason in answer.decode()) == (400, True), answer


def test_a_body_that_does_not_arrive_is_given_up_and_holds_nothing(guard):
    half = [{"type": "http.request", "body": b"x" * 1000, "more_body": True}]
    for _ in range(60):
        guard.body_seconds = 0.01
        assert ask(guard, parts=list(half))[0] == 408
    assert guard._buffered == 0
    gone = [*half, {"type": "http.disconnect"}]
    assert ask(guard, parts=gone)[0] == 400
    assert ask(guard)[0] == 200


def test_bodies_are_bounded_one_by_one_and_together(guard):
    assert ask(guard, headers={"content-length": "99999999"})[0] == 413
    assert ask(guard, headers={"content-length": "9" * 30})[0] == 413
    assert ask(guard, headers={"content-length": "-1"})[0] == 400
    drops = [{"type": "http.request", "body": bytes(2**20), "more_body": True} for _ in range(64)]
    assert ask(guard, parts=drops)[0] == 413
    guard._buffered = 10**9  # what others are sending
    assert ask(guard)[0] == 503
    guard._buffered = 0
    assert ask(guard)[0] == 200


@contextlib.contextmanager
def serving(**limits):
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(Guard(echo, None), log_level="critical", http=bounded_protocol(**limits), lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(30)


def connect(port, data=b""):
    opened = socket.create_connection(("127.0.0.1", port), timeout=30)
    opened.sendall(data)
    return opened


def is_closed(opened):
    """Waits until the other side has closed it."""
    try:
        return opened.recv(1000) == b""
    except ConnectionError:
        return True


def page_of(port):
    with connect(port, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n") as opened:
        return b"".join(iter(lambda: opened.recv(1000), b""))


@pytest.mark.parametrize("start", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: a\r\n"])
def test_a_connection_without_a_request_is_closed(start):
    with serving(header_seconds=0.5) as port, connect(port, start) as opened:
        assert is_closed(opened)
        assert page_of(port).startswith(b"HTTP/1.1 200")


def test_what_trickles_in_buys_no_time():
    with serving(header_seconds=1.0) as port, connect(port, b"GET / HTTP/1.1\r\n") as opened:
        with contextlib.suppress(OSError):
            for n in range(200):
                opened.sendall(b"X-%d: y\r\n" % n)
                time.sleep(0.05)
        assert is_closed(opened)


def test_a_connection_that_is_used_again_is_bounded_again():
    request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    with serving(header_seconds=0.5) as port, connect(port) as opened:
        for _ in range(2):
            answer = b""
            opened.sendall(request)
            while not answer.endswith(b"page"):
                answer += opened.recv(1000)
        opened.sendall(request[:20])
        assert is_closed(opened)


def test_of_many_that_wait_the_oldest_are_closed():
    with serving(header_seconds=60.0, max_waiting=5) as port:
        opened = [connect(port) for _ in range(12)]
        assert all(is_closed(waiting) for waiting in opened[:7])
        assert page_of(port).startswith(b"HTTP/1.1 200")
        for waiting in opened:
            waiting.close()
