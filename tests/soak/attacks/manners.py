"""Family 13: how refusals look, what half-closing clients get, what the log says, and a worker that was stopped."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.soak.attacks.catalogue import attack
from tests.soak.attacks.stage import Stage, Wire
from tests.soak.requests import handshake, head, post

SOURCE = "127.0.0.7"
LIMIT = 60
BODY = json.dumps({"observations": [[1.0, 0.5]]}).encode()
ONE_SHOTS, AT_ONCE = 200, 20
LOG_SECONDS = 3.0


def bad_requests() -> Iterator[tuple[str, bytes, set[int]]]:
    """What must be refused, and how."""
    kind = "Content-Type: application/json"
    yield "garbage", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), {400}
    yield "no version", b"GET /\r\n\r\n", {400}
    yield "version 3", b"GET /health HTTP/3.0\r\nHost: a\r\n\r\n", {400, 505}
    yield "space in name", b"GET /health HTTP/1.1\r\nHost : a\r\n\r\n", {400}
    yield "no host", b"GET /health HTTP/1.1\r\n\r\n", {400, 200}
    yield "two lengths", head("POST", "/filter", kind, "Content-Length: 3", "Content-Length: 4") + b"abcd", {400}
    yield "negative length", head("POST", "/filter", kind, "Content-Length: -1"), {400}
    both = ("Content-Length: 3", "Transfer-Encoding: chunked")
    yield "length and chunks", head("POST", "/filter", kind, *both) + b"0\r\n\r\n", {400}
    yield "unknown encoding", head("POST", "/filter", kind, "Transfer-Encoding: gzip") + b"abc", {400, 501}
    yield "bad chunk", head("POST", "/filter", kind, "Transfer-Encoding: chunked") + b"zz\r\nabc\r\n", {400}
    yield "null in header", b"GET /health HTTP/1.1\r\nHost: a\r\nx: a\x00b\r\n\r\n", {400}
    yield "large head", head("GET", "/health", "x-a: " + "a" * 100_000), {431}
    yield "many headers", head("GET", "/health", *[f"x-{n}: a" for n in range(10_000)]), {431}
    yield "long path", head("GET", "/" + "a" * 100_000), {414, 431}
    yield "unknown path", head("GET", "/nothing"), {404}
    yield "wrong method", head("DELETE", "/filter"), {405}
    yield "CONNECT", head("CONNECT", "example:443"), {400, 404, 405}
    yield "large body", head("POST", "/filter", kind, "Content-Length: 3000000") + b" " * 1_000, {413}
    yield "no type", head("POST", "/filter", f"Content-Length: {len(BODY)}") + BODY, {415}
    yield "no JSON", post("/filter", b"{"), {422}
    yield "no field", post("/filter", b"{}"), {422}
    yield "deep", post("/filter", b"[" * 1_000), {422}
    yield "no model", post("/filter", b'{"observations":[[1]],"model":"nothing"}'), {404, 422}


def bad_handshakes() -> Iterator[tuple[str, bytes, set[int]]]:
    """Handshakes that must be refused, and how."""
    good = handshake()
    without_key = [line for line in good.split(b"\r\n") if not line.startswith(b"Sec-WebSocket-Key")]
    yield "no key", b"\r\n".join(without_key), {400}
    yield "short key", handshake().replace(b"==\r\n", b"\r\n"), {400}
    yield "version 8", handshake(version="8"), {400, 426}
    yield "no version", good.replace(b"Sec-WebSocket-Version: 13\r\n", b""), {400, 426}
    yield "POST", good.replace(b"GET", b"POST", 1), {400, 404, 405, 426}
    yield "no upgrade", good.replace(b"Upgrade: websocket\r\n", b""), {400, 404, 405, 426}
    yield "unknown path", handshake(path="/nothing"), {403, 404}
    yield "path of HTTP", handshake(path="/filter"), {400, 403, 404, 405}
    yield "large header", handshake(headers="x-a: " + "a" * 20_000 + "\r\n"), {101, 400, 431}
    yield "two keys", handshake(headers="Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"), {400}


@attack(13, seconds=15)
def refusals(stage: Stage) -> None:
    """Everything that must be refused, over and over: the right status, a request id, the one error shape."""
    cases = [*bad_requests(), *bad_handshakes()]
    stage.begin()
    turns = itertools.cycle(cases)

    def ask(wire: Wire) -> None:
        name, request, statuses = next(turns)
        with suppress(OSError):  # the refusal may come before all is sent
            wire.send(request)
        answers = wire.answers(1.0)
        found = [answer.status for answer in answers]
        is_right = len(found) == 1 and found[0] in statuses
        stage.claim("a bad request is refused once, as it must be", is_right, f"{name}: {found}")
        for answer in answers:
            stage.claim("a refusal has an id and the error shape", not answer.complaint, f"{name}: {answer.complaint}")

    stage.lanes(8, ask)


@attack(13, settings={"header_timeout_seconds": 1, "body_timeout_seconds": 1, "max_connections": LIMIT}, seconds=12)
def refusals_of_the_slow(stage: Stage) -> None:
    """Timeouts and the limit of connections: 408 and 503 with a request id and the one error shape."""
    slow = {
        "head": b"GET /health HTTP/1.1\r\nHost: a\r\nx-a: a",
        "body": post("/filter", BODY)[:-5],
    }
    stage.begin()
    for name, opening in slow.items():
        with stage.connect(seconds=5) as wire:
            wire.send(opening)
            answers = wire.answers(4.0)
        stage.claim("a slow request is told 408", [a.status for a in answers] == [408], f"{name}: {answers}")
    open_wires = stage.open_many(2 * LIMIT, lambda wire: wire.send(b"POST /filter HTTP/1.1\r\n"))
    statuses = []
    for _ in range(20):
        with suppress(OSError), stage.connect(seconds=2) as wire:
            answer = wire.ask(head("GET", "/info"))
            statuses.append(answer and answer.status)
    stage.count("held at the limit", len(open_wires))
    stage.count("refused at the limit", sum(status == 503 for status in statuses))
    is_fair = len(statuses) == 20 and all(status in (200, 503) for status in statuses)
    stage.claim("at the limit everyone is answered", is_fair, statuses)


@attack(13)
def half_closed(stage: Stage) -> None:
    """Clients that shut down their side after their request, as `nc -N` does: each gets its whole answer."""
    text = {"inputs": "It was", "parameters": {"max_new_tokens": 20, "seed": 1}}
    cases = {
        "GET": head("GET", "/health"),
        "GET of much": head("GET", "/openapi.json"),
        "series": post("/filter", {"observations": [[1.0, 0.5]] * 3_000}),
        "streamed series": post("/filter", {"observations": [[1.0, 0.5]] * 500, "stream": True}),
        "text": post("/generate", text),
        "streamed text": post("/generate", {**text, "stream": True}),
        "refused": post("/filter", b"{}"),
    }
    stage.begin()
    turns = itertools.cycle(cases.items())

    def ask(wire: Wire) -> None:
        name, request = next(turns)
        wire.send(request)
        wire.socket.shutdown(socket.SHUT_WR)
        try:
            answer = wire.answer()
        except OSError as error:
            stage.claim("a half-closing client gets its answer", False, f"{name}: {error}")
            return
        is_fair = answer is not None and answer.status == (422 if name == "refused" else 200)
        stage.claim("a half-closing client gets its answer", is_fair, f"{name}: {answer and answer.status}")
        stage.sleep(0.02)

    stage.lanes(2, ask)


@attack(13, seconds=25)
def log_lines(stage: Stage) -> None:
    """Every answer has one line in the log, with its id and the client's address; a client's mistake is no ERROR."""
    cases = [
        head("GET", "/health"),
        post("/filter", BODY),
        post("/filter", b"{"),
        head("GET", "/nothing"),
        b"GET /health HTTP/1.1\r\nHost : a\r\n\r\n",
        head("GET", "/health", "x-a: " + "a" * 100_000),
        head("POST", "/filter", "Content-Length: -1"),
        handshake(version="8"),
        handshake(path="/nothing"),
        handshake(headers="Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"),
    ]
    path = Path(stage.log)
    stage.begin()
    before = path.stat().st_size
    ids: dict[str, str] = {}
    for request in cases:
        own = f"log-{secrets.token_hex(8)}"
        first, _, rest = request.partition(b"\r\n")
        with stage.connect(source=SOURCE, seconds=3) as wire:
            with suppress(OSError):
                wire.send(first + f"\r\nX-Request-ID: {own}\r\n".encode() + rest)
            answers = wire.answers(0.5)
        request_id = answers[0].headers.get("x-request-id", "") if answers else ""
        stage.claim("an answer has a request id", bool(request_id), request[:60])
        if request_id:
            ids[request_id] = repr(request[:60])
    time.sleep(LOG_SECONDS)
    with path.open(errors="replace") as file:
        file.seek(before)
        lines = file.read().splitlines()
    for own, name in ids.items():
        of_it = [line for line in lines if own in line]
        stage.claim("an answer has a line in the log", bool(of_it), name)
        stage.claim("the line has the client's address", any(SOURCE in line for line in of_it), f"{name}: {of_it[:1]}")
    errors = [line for line in lines if " ERROR " in line]
    stage.claim("a client's mistake is no ERROR", not errors, errors[:2])


@attack(13, seconds=30, is_live_judged=False, may_replace=True)
def worker_stopped(stage: Stage) -> None:
    """One of the processes is stopped (SIGSTOP): 200 requests on new connections, then it goes on."""
    victim = stage.pids[0]
    request = head("GET", "/health", "Connection: close")
    stage.begin()
    os.kill(victim, signal.SIGSTOP)
    try:

        def one_shot() -> None:
            with suppress(OSError), stage.connect(seconds=2) as wire:
                answer = wire.ask(request)
                if answer is not None and answer.status == 200:
                    stage.count("answered")

        for _ in range(ONE_SHOTS // AT_ONCE):
            stage.together([one_shot] * AT_ONCE)
    finally:
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGCONT)
    answered = stage.counts["answered"]
    stage.claim("every request on a new connection is answered", answered == ONE_SHOTS, f"{answered} of {ONE_SHOTS}")
