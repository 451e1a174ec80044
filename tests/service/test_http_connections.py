"""Slow, silent, greedy and broken clients, on raw sockets: each is seen off in the one error shape."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from contextlib import ExitStack, suppress
from http.client import HTTPResponse
from typing import Any

import pytest
from fastapi import FastAPI, Request, WebSocket
from websockets.server import ServerProtocol
from websockets.sync.client import connect as connect_websocket

from rfa.service.body import BodyLimits, BodyReader
from rfa.service.cooperative import CooperativeWork
from rfa.service.errors import RequestTimeout
from rfa.service.http import http1
from rfa.service.http.websocket import BURST_BYTES
from rfa.service.memory import Lease, MemoryBudget
from rfa.service.process import draining
from rfa.service.process.accepting import SEND_BUFFER_BYTES
from rfa.service.schemas.stream_requests import StreamClose
from rfa.service.setting_groups import LimitSettings
from tests.service.live import (
    Live,
    check_refusal,
    echoing,
    frame,
    opened,
    read_answer,
    read_exactly,
    read_to_end,
    running,
)
from tests.service.models import FakeLanguage, fake_models
from tests.waiting import PATIENCE, wait_until

GET = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
JSON_POST = "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
TEXT = json.dumps({"inputs": "say |", "parameters": {"max_new_tokens": 5}}).encode()
ASK = JSON_POST.format(path="/generate", length=len(TEXT)).encode() + TEXT
NEVER_SECONDS = 600


def is_shut(live: Live) -> bool:
    """Whether nobody can connect any more."""
    try:
        live.connect().close()
    except ConnectionError:
        return True
    return False


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "TICKS_PER_SECOND", 1)
    monkeypatch.setattr(http1, "LINGER_SECONDS", 0.1)


@pytest.mark.usefixtures("impatient")
def test_headers_that_never_end_are_timed_out() -> None:
    begun = (b"GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: ", b"G", b"\r\n")
    with running(header_timeout_seconds=0.6) as live, ExitStack() as held:
        clients = [held.enter_context(live.connect()) for _ in begun]
        for client, piece in zip(clients, begun, strict=True):
            client.sendall(piece)
        for client in clients:
            check_refusal(read_to_end(client), 408, "header_timeout")
        wait_until(lambda: not live.server.open_connections())


def test_headers_that_trickle_do_not_win_time() -> None:
    with running(header_timeout_seconds=0.6) as live, live.connect() as client:
        ended = threading.Event()

        def trickle() -> None:
            with suppress(OSError):  # the server may close before it hears that it did
                while not ended.wait(0.05):
                    client.sendall(b"x")

        client.sendall(b"GET /health HTTP/1.1\r\nX-Slow: ")
        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            check_refusal(client.recv(65536), 408, "header_timeout")
        finally:
            ended.set()
            thread.join()


def test_a_connection_that_says_nothing_is_closed_without_a_word() -> None:
    with running(header_timeout_seconds=0.2) as live, live.connect() as client:
        assert read_to_end(client) == b""


def test_the_next_request_of_a_connection_is_timed_out_too() -> None:
    with running(keep_alive_seconds=NEVER_SECONDS) as live, live.connect() as client:
        client.sendall(GET)
        assert read_answer(client)[0] == 200
        live.limit(header_timeout_seconds=0.3)
        client.sendall(GET[:10])
        check_refusal(read_to_end(client), 408, "header_timeout")


def test_an_idle_connection_is_kept_and_then_closed() -> None:
    with running(keep_alive_seconds=1) as live, live.connect() as client:
        client.sendall(GET)
        assert read_answer(client)[0] == 200
        live.limit(header_timeout_seconds=0.2)
        assert read_to_end(client) == b""


def test_a_long_answer_is_not_taken_for_slow_headers() -> None:
    gate = threading.Semaphore(0)
    models = fake_models(FakeLanguage(gate=gate))
    with running(models) as live, live.connect() as client:
        client.sendall(ASK)
        wait_until(lambda: live.app.state.engine._scheduler.running == 1)
        live.limit(header_timeout_seconds=0.2)
        client.sendall(GET[:10])
        with pytest.raises(TimeoutError):
            client.settimeout(0.5)
            client.recv(1)
        gate.release(100)
        client.settimeout(PATIENCE)
        assert json.loads(read_answer(client)[2])["generated_text"] == "the q"


def test_headers_up_to_the_limit_are_read() -> None:
    begin, end = b"GET /health HTTP/1.1\r\nHost: x\r\nX-Big: ", b"\r\n\r\n"
    with running(max_header_bytes=2000) as live, live.connect() as client:
        for size, status in ((2000, 200), (2001, 431)):
            client.sendall(begin + b"a" * (size - len(begin) - len(end)) + end)
            assert read_answer(client)[0] == status


def test_an_endless_header_takes_no_memory() -> None:
    with running(max_header_bytes=4096) as live, live.connect() as client:
        client.sendall(b"GET /health HTTP/1.1\r\nX-Big: ")
        answer = b""
        client.settimeout(0.01)
        for _ in range(2000):
            client.sendall(b"a" * 4096)
            try:
                answer = client.recv(65536)
                break
            except TimeoutError:
                continue
        check_refusal(answer, 431, "headers_too_large")


@pytest.mark.usefixtures("impatient")
def test_a_body_that_stops_coming_is_timed_out() -> None:
    with running(body_timeout_seconds=0.3) as live, live.connect() as client:
        client.sendall(JSON_POST.format(path="/generate", length=1000).encode() + b'{"inputs":')
        check_refusal(read_to_end(client), 408, "request_timeout")
        wait_until(lambda: not live.server.open_connections())


async def read_slowly(pieces: list[bytes], seconds: float, settings: LimitSettings, lease: Lease) -> StreamClose:
    """Read a body that comes piece by piece."""

    async def receive() -> dict[str, object]:
        await asyncio.sleep(seconds)
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    reader = BodyReader(Request({"type": "http", "headers": []}, receive), settings, lease, CooperativeWork())
    return await reader.read_model(StreamClose, BodyLimits.of(settings))


@pytest.mark.anyio
async def test_a_body_may_take_long_at_the_rate_asked_for() -> None:
    settings = LimitSettings(body_timeout_seconds=0.4, min_body_rate=1)
    pieces = [b'{"c', b"lo", b'se":', *[b" "] * 12, b"true}"]
    assert (await read_slowly(pieces, 0.04, settings, MemoryBudget(10_000).take(0))).close


@pytest.mark.anyio
async def test_a_body_that_never_pauses_and_never_ends_is_timed_out() -> None:
    settings = LimitSettings(body_timeout_seconds=0.3, min_body_rate=1_000_000)
    budget = MemoryBudget(10_000)
    pieces = [b" "] * 1_000
    with pytest.raises(RequestTimeout), budget.take(0) as lease:
        await read_slowly(pieces, 0.01, settings, lease)
    assert len(pieces) > 900
    assert budget.leased_bytes == 0


def test_an_answer_before_the_end_of_the_body_leaves_the_connection_usable() -> None:
    with running() as live, live.connect() as client:
        client.sendall(JSON_POST.format(path="/nope", length=100_000).encode() + b" " * 10)
        assert read_answer(client)[0] == 404
        client.sendall(b" " * 99_990)
        client.sendall(GET)
        assert read_answer(client)[0] == 200


def test_the_rest_of_an_answered_body_is_not_waited_for_for_ever() -> None:
    with running(body_timeout_seconds=0.3, keep_alive_seconds=NEVER_SECONDS) as live, live.connect() as client:
        client.sendall(JSON_POST.format(path="/nope", length=100_000).encode() + b" " * 10)
        assert read_answer(client)[0] == 404
        assert read_to_end(client) == b""


def test_a_client_in_the_middle_of_sending_sees_why_it_is_refused() -> None:
    size = 8_000_000
    with running(max_body_bytes=10_000) as live, live.connect() as client:
        client.sendall(JSON_POST.format(path="/generate", length=size).encode())
        for _ in range(size // 100_000):
            client.sendall(b" " * 100_000)  # a reset would fail here, or lose the answer
        check_refusal(read_to_end(client), 413, "payload_too_large")


def test_connections_beyond_the_limit_hear_so() -> None:
    gate = threading.Semaphore(0)
    models = fake_models(FakeLanguage(gate=gate))
    with running(models, max_connections=2) as live, live.connect() as first, live.connect() as second:
        for client in (first, second):
            client.sendall(ASK)
        wait_until(lambda: live.app.state.engine._scheduler.running == 2)
        with live.connect() as third:
            check_refusal(read_to_end(third), 503, "too_many_connections")
        gate.release(100)
        for client in (first, second):
            assert read_answer(client)[0] == 200
        with live.connect() as fourth:
            fourth.sendall(GET)
            assert read_answer(fourth)[0] == 200


@pytest.mark.parametrize("said", [b"", b"GET /he", JSON_POST.format(path="/generate", length=9).encode() + b"{"])
def test_clients_that_have_not_said_what_they_want_make_space(said: bytes) -> None:
    with running(max_connections=2) as live, live.connect() as first, live.connect() as second:
        for client in (first, second):
            client.sendall(said)
        wait_until(lambda: live.server.open_connections() == 2)
        with live.connect() as third:
            third.sendall(GET)
            assert read_answer(third)[0] == 200
        try:
            answer = read_to_end(first)
        except ConnectionResetError:
            answer = b""
        assert answer == b"" or answer.startswith(b"HTTP/1.1 503")


@pytest.mark.usefixtures("impatient")
def test_a_reader_that_takes_nothing_is_cut() -> None:
    body = json.dumps({"observations": [[0.5, 0.25]] * 10_000, "samples": 60}).encode()
    limits: dict[str, Any] = {"send_timeout_seconds": 0.3, "keep_alive_seconds": 1, "max_reply_numbers": 10**8}
    with running(**limits) as live, ExitStack() as held:
        for connection in ("keep-alive", "close"):
            head = JSON_POST.format(path="/filter", length=len(body))
            client = held.enter_context(live.connect(receive_buffer=4096))
            client.sendall(head.replace("Host: x", f"Host: x\r\nConnection: {connection}").encode() + body)
        wait_until(lambda: live.server.open_connections() == 2)
        wait_until(lambda: not live.server.open_connections())
        text = live.app.state.metrics.render().decode()
    assert 'rfa_connections_refused_total{reason="stalled_reader"} 2.0' in text


def test_a_reader_that_takes_its_time_gets_everything() -> None:
    body = json.dumps({"observations": [[0.5, 0.25]] * 2_000, "samples": 60}).encode()
    with (
        running(send_timeout_seconds=1, max_reply_numbers=10**8) as live,
        live.connect(receive_buffer=65536) as client,
    ):
        client.sendall(JSON_POST.format(path="/filter", length=len(body)).encode() + body)
        pause = threading.Event()
        response = HTTPResponse(client)
        response.begin()
        pieces = []
        for _ in range(30):  # longer than the send timeout in all
            pause.wait(0.05)
            pieces.append(response.read(16384))
        pieces.append(response.read())
        response.close()
    assert len(json.loads(b"".join(pieces))["steps"]) == 2_000


def test_pipelined_requests_are_answered_in_order() -> None:
    with running() as live, live.connect() as client:
        client.sendall(b"".join(GET.replace(b"/health", path) for path in [b"/health", b"/nope", b"/ready"] * 6))
        assert [read_answer(client)[0] for _ in range(18)] == [200, 404, 200] * 6


def test_the_kernel_holds_no_megabytes_for_a_client_that_does_not_read() -> None:
    with running() as live, live.connect() as client:
        client.sendall(GET)
        assert read_answer(client)[0] == 200
        (connection,) = live.server.server_state.connections
        size = connection.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        assert size == 2 * SEND_BUFFER_BYTES  # Linux doubles it, for its own bookkeeping


def test_a_stream_with_a_request_behind_it_ends_when_its_client_leaves() -> None:
    gate = threading.Semaphore(0)
    models = fake_models(FakeLanguage(script="x" * 5000, gate=gate))
    body = json.dumps({"inputs": "say |", "parameters": {"max_new_tokens": 4000}, "stream": True}).encode()
    with running(models) as live:
        with live.connect() as client:
            client.sendall(JSON_POST.format(path="/generate", length=len(body)).encode() + body + GET)
            gate.release()
            assert client.recv(1) == b"H"
        wait_until(lambda: not live.server.open_connections())
        wait_until(lambda: not live.server.server_state.tasks)  # though the stream has nothing to send
        gate.release(10_000)


# WebSockets.


def test_a_websocket_carries_messages_up_to_the_limit_and_uncompressed() -> None:
    with running(prepare=echoing, max_message_bytes=2000) as live:
        with connect_websocket(f"ws://127.0.0.1:{live.port}/echo", open_timeout=PATIENCE) as client:
            assert "Sec-WebSocket-Extensions" not in client.response.headers
            client.send("a" * 2000)
            assert client.recv(timeout=PATIENCE) == "a" * 2000
            client.send("a" * 4001)
            with pytest.raises(Exception, match="1009"):
                client.recv(timeout=PATIENCE)
        wait_until(lambda: not live.server.open_connections())


def test_a_burst_of_frames_is_read_in_pieces_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that others have their turn between them; afterwards the connection reads on."""
    pieces: list[int] = []
    receive = ServerProtocol.receive_data

    def counted(self: ServerProtocol, data: bytes) -> None:
        pieces.append(len(data))
        receive(self, data)

    monkeypatch.setattr(ServerProtocol, "receive_data", counted)
    texts = [b"a" * 60_000, *(b"%05d" % number for number in range(8000)), b"b" * 60_000]
    with running(prepare=echoing, max_message_bytes=100_000) as live:
        with opened(live) as client:
            for burst in (texts, [b"once more"]):
                sending = threading.Thread(target=client.sendall, args=(b"".join(frame(1, text) for text in burst),))
                sending.start()
                expected = b"".join(frame(1, text, mask=b"") for text in burst)
                assert read_exactly(client, len(expected)) == expected
                sending.join()
        wait_until(lambda: not live.server.open_connections())
    assert max(pieces) == BURST_BYTES and sum(pieces) == sum(len(frame(1, text)) for text in [*texts, b"once more"])


@pytest.mark.usefixtures("impatient")
def test_a_websocket_reader_that_takes_nothing_is_cut() -> None:
    with running(prepare=echoing, send_timeout_seconds=0.2) as live, opened(live, 4096, b"/flood"):
        wait_until(lambda: not live.server.open_connections())


def test_readiness_turns_false_and_connections_close_while_requests_end() -> None:
    gate = threading.Semaphore(0)
    with running(fake_models(FakeLanguage(gate=gate)), shutdown_grace_seconds=60) as live:
        busy, idle = live.connect(), live.connect()
        with busy, idle:
            idle.sendall(GET)
            assert "connection" not in read_answer(idle)[1]
            busy.sendall(ASK)
            wait_until(lambda: live.app.state.engine._scheduler.running == 1)
            live.server.stop()
            wait_until(lambda: live.app.state.draining)
            wait_until(lambda: is_shut(live))
            idle.sendall(GET.replace(b"/health", b"/ready"))
            check_refusal(read_to_end(idle), 503, "not_ready")
            gate.release(100)
            status, headers, answer = read_answer(busy)
            assert (status, headers["connection"]) == (200, "close")
            assert json.loads(answer)["generated_text"] == "the q"
            assert read_to_end(busy) == b""
            live.stop()


def test_a_websocket_handler_says_its_last_words() -> None:
    def prepare(app: FastAPI) -> None:
        async def stream(socket: WebSocket) -> None:
            await socket.accept()
            await socket.send_text("hello")
            while not app.state.draining:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            await socket.send_text("done")
            await socket.close(1012)

        app.add_api_websocket_route("/stream", stream)

    with running(prepare=prepare, shutdown_grace_seconds=3) as live:
        with connect_websocket(f"ws://127.0.0.1:{live.port}/stream", open_timeout=PATIENCE) as client:
            assert client.recv(timeout=PATIENCE) == "hello"
            live.server.stop()
            assert client.recv(timeout=PATIENCE) == "done"
            with pytest.raises(Exception, match="1012"):
                client.recv(timeout=PATIENCE)
        live.stop()
