"""Family 10: what a page in somebody's browser can send to a server on the same machine."""

from __future__ import annotations

import itertools
import json

from tests.soak.attacks.catalogue import attack
from tests.soak.attacks.stage import Stage, Wire
from tests.soak.requests import handshake, head

ORIGINS = (
    "http://evil.example",
    "https://evil.example",
    "null",
    "http://127.0.0.1.evil.example",
    "http://localhost.evil.example:{port}",
    "http://evil.example:{port}",
    "http://127.0.0.1:1",
    "http://127.0.0.1@evil.example",
    "http://[::1].evil.example",
    "http://169.254.169.254",
    "file://",
    "chrome-extension://abcdefgh",
    "http://localhostevil.example",
)
HOSTS = (
    "evil.example",
    "evil.example:{port}",
    "127.0.0.1.evil.example:{port}",
    "localhost.evil.example:{port}",
    "127.0.0.1@evil.example",
    "evil.example#127.0.0.1",
    "example:{port}",
)
BODY = json.dumps({"observations": [[1.0, 0.5]]}).encode()


def requests_to(port: int, host: str, origin: str | None) -> dict[str, bytes]:
    """What a page can make a browser send, by what it is."""
    lines = [] if origin is None else [f"Origin: {origin.format(port=port)}"]
    host = host.format(port=port)
    posted = [*lines, "Content-Type: application/json", f"Content-Length: {len(BODY)}"]
    found = {
        "GET /info": head("GET", "/info", *lines, host=host),
        "GET /metrics": head("GET", "/metrics", *lines, host=host),
        "GET /v1/models": head("GET", "/v1/models", *lines, host=host),
        "POST /filter": head("POST", "/filter", *posted, host=host) + BODY,
    }
    stream = handshake("".join(f"{line}\r\n" for line in lines))
    stream = stream.replace(b"Host: 127.0.0.1", f"Host: {host}".encode(), 1)
    return {**found, "WS /filter/stream": stream}


@attack(10)
def pages_of_others(stage: Stage) -> None:
    """Requests and WebSockets with the Origin of another page, or with the Host of another name."""
    forbidden = [(origin, "127.0.0.1:{port}") for origin in ORIGINS] + [(None, host) for host in HOSTS]
    forbidden += [(f"http://{host}", host) for host in HOSTS]  # DNS rebinding: the page is of the name that it asks
    cases = [
        (f"{name} Origin {origin} Host {host}", request, name.startswith("WS"))
        for origin, host in forbidden
        for name, request in requests_to(stage.port, host, origin).items()
        # A browser sends no Origin with a GET of its own page, and shows no other page what it was answered.
        if name.startswith(("WS", "POST")) or host in HOSTS
    ]
    stage.begin()
    turns = itertools.cycle(cases)

    def ask(wire: Wire) -> None:
        name, request, is_stream = next(turns)
        answer = wire.ask(request)
        claim = "a foreign page opens no stream" if is_stream else "a foreign page is not served"
        stage.claim(claim, answer is not None and 400 <= answer.status < 500, f"{name}: {answer and answer.status}")
        stage.sleep(0.01)

    stage.lanes(4, ask)


@attack(10)
def pages_of_our_own(stage: Stage) -> None:
    """The server's own page, and programs that send no Origin: these must be served."""
    port = stage.port
    names = ("127.0.0.1", "localhost")
    welcome: list[tuple[str | None, str]] = [(None, name) for name in names]
    welcome += [(None, f"{name}:{port}") for name in names]
    welcome += [(f"http://{name}:{port}", f"{name}:{port}") for name in names]
    cases = [
        (f"{name} Origin {origin} Host {host}", request, 101 if name.startswith("WS") else 200)
        for origin, host in welcome
        for name, request in requests_to(port, host, origin).items()
    ]
    stage.begin()
    turns = itertools.cycle(cases)

    def ask(wire: Wire) -> None:
        name, request, status = next(turns)
        answer = wire.ask(request)
        stage.expect("the server's own page is served", answer, {status}, name)
        stage.sleep(0.01)

    stage.lanes(2, ask)
