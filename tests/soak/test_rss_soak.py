"""Memory over many requests: the traffic is what it says, and memory that grows is noticed."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rfa.benchmarks.load.truth import open_models
from rfa.runtime.bundle.locate import BUNDLE_ROOT
from tests.service.live import running
from tests.soak import rss_soak
from tests.soak.rss_client import KINDS, send
from tests.soak.rss_soak import ROUNDS, WARM_UP_ROUNDS, Memory, growth, is_met, read_memory, report, slope

REQUESTS = 600
HOARDER = "import sys; held = []\nfor line in sys.stdin: held.append(b'x' * int(line)); print(len(held), flush=True)"


def readings(*resident: int) -> list[Memory]:
    return [Memory(1000 * (number + 1), {1: rss}, {1: rss}) for number, rss in enumerate(resident)]


def test_every_kind_of_request_gets_its_answer() -> None:
    with running(open_models([BUNDLE_ROOT / "linear", BUNDLE_ROOT / "books"])) as live:
        tally = asyncio.run(send(live.url, REQUESTS, seed=1))
    assert not [kind for kind in tally if kind.startswith("failed")], tally
    assert tally.total() == REQUESTS
    assert set(tally) >= {kind.__name__ for kind, (share, _) in KINDS.items() if share >= 0.01}
    assert sum(share for share, _ in KINDS.values()) == pytest.approx(1)


def test_answers_that_are_not_as_they_should_be_are_counted() -> None:
    with running(api_keys="a-key-of-twenty-characters-at-least") as live:
        tally = asyncio.run(send(live.url, 60, seed=1))
    assert tally["failed observation 401"] > 0
    assert not is_met({**report(readings(*[100] * ROUNDS), tally, 1.0)})


def test_memory_that_is_kept_is_read() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOARDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        sizes = []
        for size in (1, 30_000_000):
            process.stdin.write(f"{size}\n")
            process.stdin.flush()
            process.stdout.readline()
            sizes.append(sum(read_memory(process.pid, 0).unique.values()))
        process.stdin.close()
    assert sizes[1] - sizes[0] > 25_000_000


@pytest.mark.parametrize(
    ("resident", "is_well"),
    [
        ([50, 100, *[101] * (ROUNDS - WARM_UP_ROUNDS)], True),  # what grows while it warms up does not count
        ([100, 100, *range(101, 101 + ROUNDS - WARM_UP_ROUNDS)], False),
        ([100, 100, *[102] * (ROUNDS - WARM_UP_ROUNDS)], False),
    ],
)
def test_growth_after_the_warm_up_is_the_bar(resident: list[int], is_well: bool) -> None:
    measured = readings(*(1_000_000 * size for size in resident))
    assert is_met(report(measured, Counter(observation=10), 1.0)) is is_well


def test_the_slope_is_that_of_a_line() -> None:
    line = readings(0, *(5_000_000 + 7 * 1000 * number for number in range(1, ROUNDS)))
    assert slope(line) == pytest.approx(7)
    assert growth(line) == pytest.approx(7 * 1000 * (ROUNDS - 2) / 5_007_000)


def test_a_process_that_was_replaced_is_noticed() -> None:
    measured = readings(*[100] * (ROUNDS - 1))
    measured.append(Memory(ROUNDS * 1000, {2: 100}, {2: 100}))
    assert not is_met(report(measured, Counter(observation=10), 1.0))


@pytest.mark.parametrize("code", [0, 1])
def test_the_command_stores_what_it_measured(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Started:
        url, pid = "http://127.0.0.1:1", 1

        def __init__(self, *_: Any) -> None: ...

        def __enter__(self) -> Started:
            return self

        def __exit__(self, *_: object) -> None: ...

    taken = iter(readings(*(10_000 + 100 * code * number for number in range(ROUNDS))))
    monkeypatch.setattr(rss_soak, "started", Started)
    monkeypatch.setattr(rss_soak, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(rss_soak, "send_round", lambda url, requests, *_: Counter(observation=requests))
    monkeypatch.setattr(rss_soak, "read_memory", lambda pid, requests: next(taken))
    out = tmp_path / "result.json"
    monkeypatch.setattr(sys, "argv", ["rss_soak", "--requests", "1001", "--out", str(out)])
    assert rss_soak.main() == code
    document = json.loads(out.read_text())
    assert document["requests"] == 1001 and len(document["readings"]) == ROUNDS
    assert "1001 requests, 0 failed" in capsys.readouterr().out
