"""The checks of attacks detect every planted fault, and pass a correct server."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from tests.soak.answers import Answer
from tests.soak.attacks.catalogue import Attack
from tests.soak.attacks.conduct import MOST_BYTES, STREAMS, Course, _judge
from tests.soak.attacks.memory import Memory, is_back
from tests.soak.live import Seen, Span

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
