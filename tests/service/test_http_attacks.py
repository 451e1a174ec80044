"""Attacks on raw sockets: contradictory framing, upgrades, and requests that cost the server many bytes."""

from __future__ import annotations

import json
import logging
import re
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from rfa.service.http.head import MAX_HEADERS
from rfa.service.http.websocket import MAX_FRAGMENTS
from tests.service.live import (
    Live,
    check_refusal,
    echoing,
    frame,
    handshake,
    opened,
    parse_head,
    read_answer,
    read_exactly,
    read_to_end,
    running,
)
from tests.service.models import FakeLanguage, fake_models
from tests.waiting import wait_until

BODY = json.dumps({"observations": [[0.5, 0.25]], "seed": 1}).encode()
GET = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
KEY = "k" * 32


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with running(max_header_bytes=4096, max_body_bytes=25_000) as server:
        yield server


def post(*lines: bytes, path: bytes = b"/filter") -> bytes:
    head = [b"POST " + path + b" HTTP/1.1", b"Host: x", b"Content-Type: application/json", *lines]
    return b"\r\n".join(head) + b"\r\n\r\n"


def chunked(body: bytes, trailers: bytes = b"", size: int = 1000) -> bytes:
    pieces = [body[first : first + size] for first in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n" + trailers + b"\r\n"


# Trailers and chunks.


def test_a_key_in_a_trailer_opens_nothing() -> None:
    with running(api_keys=KEY) as guarded, guarded.connect() as client:
        trailer = b"X-API-Key: " + KEY.encode() + b"\r\n"
        client.sendall(post(b"Transfer-Encoding: chunked") + chunked(BODY, trailer))
        assert read_answer(client)[0] == 401
        client.sendall(post(b"Transfer-Encoding: chunked", b"X-API-Key: " + KEY.encode()) + chunked(BODY, b"A: b\r\n"))
        assert read_answer(client)[0] == 200


@pytest.mark.parametrize("path", [b"/filter", b"/health", b"/nope"])
@pytest.mark.parametrize(
    "piece", [b"A: " + b"b" * 1000 + b"\r\n", b"A:b\r\n", b"x" * 1000], ids=["long", "short", "line"]
)
def test_trailers_without_end_are_refused(live: Live, path: bytes, piece: bytes) -> None:
    with live.connect() as client:
        client.sendall(post(b"Transfer-Encoding: chunked", path=path) + b"0\r\n")
        answer = endless(client, piece)
        if path == b"/filter":  # which waits for its body
            check_refusal(answer, 431, "headers_too_large")
        assert answer.count(b"HTTP/1.1 ") <= 1


@pytest.mark.parametrize(("coding", "status"), [(b"gzip", 415), (b"Identity", 200)])
def test_a_compressed_body_is_refused_by_its_name(live: Live, coding: bytes, status: int) -> None:
    with live.connect() as client:
        client.sendall(post(b"Content-Encoding: " + coding, b"Content-Length: %d" % len(BODY)) + BODY)
        assert read_answer(client)[0] == status


@pytest.mark.parametrize("extra", [0, 1])
def test_only_so_many_headers_are_parsed(live: Live, extra: int) -> None:
    """Each costs a parser the same, however small it is: the bytes of a head bound their number too loosely."""
    names = b"".join(b"x%d:\r\n" % number for number in range(MAX_HEADERS - 1 + extra))
    with live.connect() as client:
        client.sendall(GET.replace(b"\r\n\r\n", b"\r\n") + names + b"\r\n")
        if extra:
            check_refusal(read_to_end(client), 431, "headers_too_large")
        else:
            assert read_answer(client)[0] == 200


def test_whole_trailers_are_small(live: Live) -> None:
    """They are parsed in one go, like headers."""
    small, large = (b"".join(b"x%d:\r\n" % number for number in range(count)) for count in (100, 1_000))
    with live.connect() as client:
        client.sendall(post(b"Transfer-Encoding: chunked") + chunked(BODY, small))
        assert read_answer(client)[0] == 200
        client.sendall(post(b"Transfer-Encoding: chunked") + chunked(BODY, large))
        check_refusal(read_to_end(client), 431, "headers_too_large")


@pytest.mark.parametrize("piece", [b"1;" + b"x" * 500 + b"\r\na\r\n", b"1\r\na\r\n"], ids=["extensions", "tiny"])
def test_chunks_that_are_mostly_framing_are_refused(live: Live, piece: bytes) -> None:
    with live.connect() as client:
        client.sendall(post(b"Transfer-Encoding: chunked"))
        check_refusal(endless(client, piece), 413, "payload_too_large")


def endless(client: socket.socket, piece: bytes) -> bytes:
    """Send until the server ends it, which it must: what it answered."""
    burst = piece * (8192 // len(piece))
    answer = b""
    client.settimeout(0.005)
    for _ in range(5000):
        try:
            client.send(burst)
        except TimeoutError:
            pass
        except OSError:
            return answer
        try:
            got = client.recv(65_536)
        except TimeoutError:
            continue
        except OSError:
            return answer
        if not got:
            return answer
        answer += got
    raise AssertionError("the server reads on and on")


# Framing.

FRAMED_TWICE = post(b"Content-Length: 5", b"Transfer-Encoding: chunked") + b"0\r\n\r\n"


@pytest.mark.parametrize(
    "request_",
    [
        FRAMED_TWICE,
        post(b"Content-Length: 5", b"Content-Length: 6") + b"12345",
        post(b"Content-Length: +5") + b"12345",
        post(b"Content-Length: 0x5") + b"12345",
        post(b"Content-Length: 5 5") + b"12345",
        post(b"Content-Length:") + b"12345",
        post(b"Transfer-Encoding: gzip, chunked") + b"0\r\n\r\n",
        post(b"Transfer-Encoding: chunked, identity") + b"0\r\n\r\n",
        post(b"Transfer-Encoding: \x0bchunked") + b"0\r\n\r\n",
        post(b"Transfer-Encoding : chunked") + b"0\r\n\r\n",
        post(b"Transfer-Encoding: chunked").replace(b"HTTP/1.1", b"HTTP/1.0") + b"0\r\n\r\n",
        post(b"X: a\n Content-Length: 5") + b"12345",
        post(b"X: a\nContent-Length: 5") + b"12345",
        post(b"X: a\rContent-Length: 5") + b"12345",
        post(b"X: a\x00b"),
        post(b"X: a\x01b"),
        post(b"X: a", b" folded: b"),
        GET.replace(b"\r\n", b"\n"),
        GET.replace(b"Host: x", b"Host: x\r\nHost: x"),
        GET.replace(b"Host: x\r\n", b""),
        GET.replace(b"/health", b"/health#/x"),
        GET.replace(b"HTTP/1.1", b"HTTP/2.0"),
        GET.replace(b"HTTP/1.1", b"HTTP/1.2"),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET\r\n\r\n",
        post(b"A B: c"),
        post(b"Transfer-Encoding: chunked") + b"zz\r\n",
    ],
)
def test_what_two_readers_may_read_differently_is_refused_and_nothing_behind_it_is_answered(
    live: Live, request_: bytes
) -> None:
    with live.connect() as client:
        client.sendall(request_ + GET)
        check_refusal(read_to_end(client), 400, "malformed_request")


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_request_in_pieces_is_the_request(live: Live, size: int) -> None:
    stream = b"\r\n" + post(b"Transfer-Encoding: chunked") + chunked(BODY, b"A: b\r\n", size=9) + GET
    stream += GET.replace(b"/health", b"http://X/health?a=http://y")
    with live.connect() as client:
        for first in range(0, len(stream), size):
            client.sendall(stream[first : first + size])
        assert [read_answer(client)[0] for _ in range(3)] == [200, 200, 200]


# Upgrades.


@pytest.mark.parametrize(
    "upgrade",
    [b"h2c", b"TLS/1.0", b"websocket, h2c", b"x", b"websocket"],
)
@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_an_upgrade_that_is_not_made_leaves_the_framing_as_declared(live: Live, upgrade: bytes, framing: str) -> None:
    """The body is a request of its own for whoever does not see that it is a body."""
    smuggled = GET.replace(b"/health", b"/metrics")
    lines = [b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: " + upgrade, b"HTTP2-Settings: AAMAAABkAAQAAP__"]
    if framing == "length":
        request = post(*lines, b"Content-Length: %d" % len(smuggled)) + smuggled
    else:
        request = post(*lines, b"Transfer-Encoding: chunked") + chunked(smuggled)
    with live.connect() as client:
        client.sendall(request + post(*lines, b"Content-Length: %d" % len(BODY)) + BODY + GET)
        assert [read_answer(client)[0] for _ in range(3)] == [422, 200, 200]
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.recv(1)


def test_a_websocket_handshake_with_a_body_is_no_handshake(live: Live) -> None:
    with live.connect() as client:
        client.sendall(handshake(b"Content-Length: %d" % len(GET)) + GET)
        assert read_answer(client)[0] == 404
        client.sendall(GET)
        assert read_answer(client)[0] == 200


# Expect: 100-continue.


def test_a_client_that_waits_for_leave_to_send_gets_it(live: Live) -> None:
    with live.connect() as client:
        client.sendall(post(b"Expect: 100-continue", b"Content-Length: %d" % len(BODY)))
        assert read_exactly(client, 25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(BODY)
        assert read_answer(client)[0] == 200
        client.sendall(post(b"Expect: 100-continue", b"Content-Length: %d" % len(BODY)) + BODY + GET)  # unasked
        assert [read_answer(client)[0] for _ in range(2)] == [200, 200]


def test_a_refusal_instead_of_leave_ends_the_connection(live: Live) -> None:
    with live.connect() as client:
        client.sendall(post(b"Expect: 100-continue", b"Content-Length: 60000"))
        check_refusal(read_to_end(client), 413, "payload_too_large")


# Manners.


def test_a_client_that_only_shuts_its_sending_side_gets_its_answers() -> None:
    gate = threading.Semaphore(0)
    body = json.dumps({"inputs": "say |", "parameters": {"max_new_tokens": 5}}).encode()
    with running(fake_models(FakeLanguage(gate=gate))) as live, live.connect() as client:
        client.sendall(post(b"Content-Length: %d" % len(body), path=b"/generate") + body + GET)
        client.shutdown(socket.SHUT_WR)
        wait_until(lambda: live.app.state.engine._scheduler.running == 1)
        assert read_exactly(client, 25) == b"HTTP/1.1 100 Continue\r\n\r\n"  # are you there?
        gate.release(100)
        assert json.loads(read_answer(client)[2])["generated_text"] == "the q"
        assert read_answer(client)[0] == 200
        assert client.recv(1) == b""
        wait_until(lambda: live.server.open_connections() == 0)


def test_every_refusal_has_a_number_and_a_line_in_the_log(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="rfa.access")
    with live.connect() as client:
        client.sendall(FRAMED_TWICE)
        headers = parse_head(read_to_end(client).partition(b"\r\n\r\n")[0])[1]
    assert re.fullmatch("[0-9a-f]{32}", headers["x-request-id"])
    lines = [record.fields for record in caplog.records if record.name == "rfa.access"]  # type: ignore[attr-defined]
    (line,) = [line for line in lines if line["id"] == headers["x-request-id"]]
    expected = {"method": "other", "route": "other", "status": 400, "reason": "malformed_request", "complete": True}
    assert line.items() >= {**expected, "bytes_in": 0, "client": "127.0.0.1"}.items()
    assert 'rfa_connections_refused_total{reason="malformed_request"}' in live.app.state.metrics.render().decode()


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"Sec-WebSocket-Version: 12", 426),
        (b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Version: 13", 400),
        (b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x", 400),
        (None, 400),
    ],
)
def test_a_faulty_handshake_is_refused_in_the_one_shape(live: Live, line: bytes | None, status: int) -> None:
    """None is one without a key."""
    if line is None:
        head = re.sub(rb"Sec-WebSocket-Key.*\r\n", b"", handshake())
    else:
        head = handshake().replace(b"Sec-WebSocket-Version: 13", line)
    with live.connect() as client:
        client.sendall(head)
        answer = read_to_end(client)
    check_refusal(answer, status, "upgrade_required" if status == 426 else "malformed_request")
    assert "x-request-id" in parse_head(answer.partition(b"\r\n\r\n")[0])[1]


# WebSockets.


@pytest.fixture(scope="module")
def echo() -> Iterator[Live]:
    with running(prepare=echoing, max_message_bytes=100_000) as server:
        yield server


def close_code(client: socket.socket) -> int:
    """The code of the close frame that ends what the server sends."""
    data = read_to_end(client)
    assert data[0] == 0x88
    return int(struct.unpack("!H", data[2:4])[0])


def test_a_message_in_fragments_is_the_message(echo: Live) -> None:
    with opened(echo) as client:
        client.sendall(frame(1, b"a", is_final=False) + frame(9, b"?") + frame(0, b"", is_final=False) + frame(0, b"b"))
        assert read_exactly(client, 7) == b"\x8a\x01?" + b"\x81\x02ab"
        client.sendall(frame(1, b"c"))
        assert read_exactly(client, 3) == b"\x81\x01c"


@pytest.mark.parametrize("fragment", [b"", b"x"])
def test_a_message_of_too_many_fragments_is_refused(echo: Live, fragment: bytes) -> None:
    with opened(echo) as client:
        client.sendall(frame(1, fragment, is_final=False) + frame(0, fragment, is_final=False) * MAX_FRAGMENTS)
        assert close_code(client) == 1008
    wait_until(lambda: echo.server.open_connections() == 0)


def test_pongs_that_nobody_reads_do_not_pile_up(echo: Live) -> None:
    """The server stops reading a client that does not read: what it holds of answers to pings has an end."""
    pings = frame(9, b"p" * 125) * 500
    with opened(echo, receive_buffer=4096) as client:
        client.settimeout(0.3)
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < 100_000_000:
                sent += client.send(pings)
        (connection,) = echo.server.server_state.connections
        assert connection.transport.get_write_buffer_size() < 1_000_000
    wait_until(lambda: echo.server.open_connections() == 0)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x81\x01a", 1002),  # not masked
        (frame(3, b""), 1002),  # no such kind of frame
        (b"\xc1\x80" + bytes(4), 1002),  # a reserved bit
        (frame(0, b"a"), 1002),  # goes on with nothing
        (frame(9, b"a" * 126), 1002),  # a control frame is short
        (frame(9, b"a", is_final=False), 1002),  # and whole
        (frame(1, b"\xff"), 1007),
        (b"\x81\xff" + struct.pack("!Q", 2**40) + bytes(4), 1009),
    ],
)
def test_what_is_no_websocket_is_ended_with_its_code_and_no_error_in_the_log(
    echo: Live, caplog: pytest.LogCaptureFixture, data: bytes, code: int
) -> None:
    with opened(echo) as client:
        client.sendall(data)
        assert close_code(client) == code
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


# Memory.


def test_unfinished_heads_and_messages_are_leased_and_given_back(echo: Live) -> None:
    memory = echo.app.state.memory
    with echo.connect() as slow, opened(echo) as talker:
        slow.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000)
        talker.sendall(frame(1, b"x" * 60_000, is_final=False))
        wait_until(lambda: memory.leased_bytes >= 20_000 + 60_000 - 2 * 4_096)
        assert memory.leased_bytes <= 20_000 + 60_000 + 2 * 16_384
        talker.sendall(frame(0, b"y"))
        assert len(read_exactly(talker, 60_005)) == 60_005
        slow.sendall(b"\r\n\r\n")
        read_to_end(slow)
        wait_until(lambda: memory.leased_bytes == 0)


def test_beyond_the_budget_an_unfinished_head_is_refused_and_others_are_served(
    echo: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = echo.app.state.memory
    monkeypatch.setattr(memory, "limit_bytes", memory.leased_bytes + 10_000)
    with echo.connect() as slow, echo.connect() as other:
        slow.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * 30_000)
        check_refusal(read_to_end(slow), 429, "memory_exhausted")
        other.sendall(GET)
        assert read_answer(other)[0] == 200
