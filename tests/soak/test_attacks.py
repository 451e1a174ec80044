"""The checks of attacks detect every planted fault, and pass a correct server."""

from __future__ import annotations

import io
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.soak.attacks.__main__ import chosen
from tests.soak.attacks.answers import Answer, AnswerReader
from tests.soak.attacks.catalogue import Attack, all_attacks
from tests.soak.attacks.conduct import MOST_BYTES, STREAMS, Course, _judge
from tests.soak.attacks.framing import flood
from tests.soak.attacks.memory import Memory, is_back
from tests.soak.attacks.stage import Stage
from tests.soak.live import Seen, Span
from tests.soak.requests import head

ATTACK = Attack("attack", 1, "an attack.", lambda stage: None)
WINDOWS = {"calm": Span(0.0, 1.0), "attacked": Span(1.0, 2.0), "after": Span(2.0, 3.0)}
QUICK = [(0.1 * number, 0.001) for number in range(40)]
SAW = {"counts": {"connections": 1}, "claims": {"a claim": {"held": 1, "broken": 0, "examples": []}}}
SEEN = Seen(QUICK, QUICK, 0, {}, {}, [], [(1.5, 0.01)], [])
GOOD = Course(
    WINDOWS, SAW, STREAMS, SEEN, {1: 300, 2: 300}, {1: 400, 2: 300}, {1: 310, 2: 300}, 1.0, ({1, 2}, {1, 2}), []
)
SLOW = [(due, 0.06 if 1 <= due < 2 else seconds) for due, seconds in QUICK]
BROKEN = {**SAW, "claims": {"a claim": {"held": 9, "broken": 1, "examples": []}}}


@pytest.mark.parametrize(
    ("course", "bar"),
    [
        (GOOD, None),
        (replace(GOOD, peaks={1: MOST_BYTES + 1}), "memory of a process <= 700 MB"),
        (replace(GOOD, now={1: 331, 2: 300}), "memory back within 10 %"),
        (replace(GOOD, seen=replace(SEEN, samples=SLOW)), "live p99 <= 50 ms"),
        (replace(GOOD, seen=replace(SEEN, absent=1)), "every live answer came"),
        (replace(GOOD, seen=replace(SEEN, errors={"connection lost": 1})), "every live answer came"),
        (replace(GOOD, seen=replace(SEEN, wrong={"numbers": 1})), "every live answer right"),
        (replace(GOOD, seen=replace(SEEN, missed=[(1.5, "TimeoutError")])), "/health answered within 1 s"),
        (replace(GOOD, opened=STREAMS - 1), "live streams open"),
        (replace(GOOD, children=({1, 2}, {1, 3})), "no process died"),
        (replace(GOOD, errors=["TIME ERROR rfa.http: a request failed unexpectedly"]), "no error in the log"),
        (replace(GOOD, saw=BROKEN), "a claim"),
        (replace(GOOD, saw={**SAW, "counts": {}}), "the attack took place"),
    ],
)
def test_each_fault_trips_its_bar(course: Course, bar: str | None) -> None:
    assert _judge(ATTACK, course).missed == ([] if bar is None else [bar])


def test_memory_sees_a_peak_between_two_looks() -> None:
    """A process allocates and frees 80 MB between two samples."""
    script = (
        "import sys\nfor line in sys.stdin:\n data = bytearray(80_000_000 * int(line)); del data; print(1, flush=True)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        memory = Memory(lambda: [process.pid])  # its thread does not run
        take(process, 0)
        before = memory.mark()
        take(process, 1)
        assert memory.peaks()[process.pid] > before[process.pid] + 70_000_000
        assert is_back(before, memory.now(), 0.5)
        memory.mark()
        assert memory.peaks()[process.pid] < before[process.pid] + 70_000_000
        assert process.stdin
        process.stdin.close()


def take(process: subprocess.Popen[bytes], times: int) -> None:
    """Let the process allocate so many times 80 MB, and wait until it has freed them."""
    assert process.stdin and process.stdout
    process.stdin.write(b"%d\n" % times)
    process.stdin.flush()
    process.stdout.readline()


@pytest.mark.parametrize(
    ("data", "status", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcrest", 200, b"abc"),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2;a=b\r\nab\r\n1\r\nc\r\n0\r\nx: y\r\n\r\n",
            200,
            b"abc",
        ),
        (b"HTTP/1.1 400 Bad\r\n\r\nabc", 400, b"abc"),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\n\r\n\x81\x00", 101, b""),
    ],
)
@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_answers_are_read_in_any_pieces(data: bytes, status: int, body: bytes, piece: int) -> None:
    stream = io.BytesIO(data)
    answer = AnswerReader(lambda: stream.read(piece)).take()
    assert answer is not None
    assert (answer.status, answer.body, answer.size) == (status, body, len(body))


def test_an_answer_that_breaks_off_is_none() -> None:
    stream = io.BytesIO(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab")
    with pytest.raises(ConnectionError):
        AnswerReader(lambda: stream.read(5)).take()


ERROR = b'{"error": {"message": "m", "type": "%s", "param": null, "code": "c"}}'


@pytest.mark.parametrize(
    ("status", "headers", "body", "complaint"),
    [
        (200, {}, b"", None),
        (422, {"x-request-id": "a"}, ERROR % b"invalid_request", None),
        (422, {}, ERROR % b"invalid_request", "422 without a request id"),
        (422, {"x-request-id": "a"}, b'{"detail": "m"}', "422 without the error shape"),
        (503, {"x-request-id": "a"}, ERROR % b"not_ready", None),
        (503, {"x-request-id": "a"}, ERROR % b"internal_error", "503 c"),
        (500, {"x-request-id": "a"}, ERROR % b"internal_error", "500 c"),
    ],
)
def test_what_is_wrong_with_an_answer(status: int, headers: dict[str, str], body: bytes, complaint: str | None) -> None:
    assert Answer(status, headers, body, len(body)).complaint == complaint


@pytest.mark.parametrize("is_bounded", [False, True])
def test_a_server_without_a_bound_is_noticed(monkeypatch: pytest.MonkeyPatch, is_bounded: bool) -> None:
    monkeypatch.setattr(f"{Stage.__module__}.LINGER_SECONDS", 0.0)
    with toy_server(refuse if is_bounded else swallow) as port:
        stage = begun(port, monkeypatch)
        with stage.connect() as wire:
            flood(stage, wire, head("GET", "/"), b"a" * 65_536, 20_000_000, "it ends")
    claim = stage.claims["it ends"]
    assert (claim.held, claim.broken) == (1, 0) if is_bounded else (0, 1)


def test_every_attack_has_a_family_and_says_what_it_does() -> None:
    attacks = all_attacks()
    assert {attack.family for attack in attacks.values()} == {1, 3, 4, 5, 6, 12}
    assert all(attack.about.endswith(".") for attack in attacks.values())
    assert [attack.family for attack in chosen(attacks, ["3"])] == [3] * 3
    with pytest.raises(ValueError, match="no attack and no family 'nothing'"):
        chosen(attacks, ["nothing"])


# A server of a few lines.


def swallow(connection: socket.socket, size: int = 50_000_000) -> None:
    """Read so many bytes and close."""
    while size > 0 and (data := connection.recv(65_536)):
        size -= len(data)


def refuse(connection: socket.socket) -> None:
    """Read far fewer bytes."""
    swallow(connection, 100_000)


@contextmanager
def toy_server(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    try:
                        serve(connection)
                    except OSError:
                        continue

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


def begun(port: int, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A stage that has begun, with enough time left."""
    fake: Any = SimpleNamespace(readline=lambda: "go\n")
    monkeypatch.setattr(sys, "stdin", fake)
    stage = Stage(port, 60.0)
    stage.begin()
    return stage
