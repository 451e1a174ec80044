"""What is timed of the network: one stream that goes on, at the lengths that are named."""

from __future__ import annotations

import pytest

import rfa
from rfa.benchmarks.results_page.page import SHOWN
from rfa.benchmarks.series import network_speed


def test_one_stream_is_timed_at_each_length(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[float, float]] = []

    class Stream:
        def __init__(self, **asked: object) -> None:
            assert asked == {"model": "series", "horizon": tuple(map(float, range(1, 65)))} and not seen

        def update(self, time: float, value: float) -> None:
            seen.append((time, value))

    monkeypatch.setattr(rfa, "Stream", Stream)
    reported = network_speed.live((10, 50, 200), 7)
    assert list(reported) == ["live after 10", "live after 50", "live after 200"]
    assert [time for time, _ in seen] == list(range(207))
    assert [value for _, value in seen] == network_speed.season(207).tolist()
    assert all(0 <= one["median"] <= one["p99"] for one in reported.values())


def test_every_length_has_its_bar() -> None:
    found = {"live after 10": {"median": 149.0, "p99": 200.0}, "live after 1,000,000": {"median": 151.0, "p99": 200.0}}
    document = {"load": 2.5, "microseconds": {**found, "a row of 64 streams": 30.0}}
    assert [bar.is_met for bar in SHOWN["series-speed"].bars(document)] == [True, False, True]
    (table,) = SHOWN["series-speed"].parts(document)
    assert "load was 2.5" in table.note and [row[0] for row in table.rows][:2] == list(found)
