"""The fuzzers: a sound server passes, and every kind of wrong answer is noticed."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from rfa.benchmarks.load.truth import open_models
from rfa.runtime.bundle.locate import BUNDLE_ROOT
from rfa.service.routes import filter as filter_route
from rfa.service.routes import live_stream
from tests.service.live import Live, running
from tests.soak.api_fuzz import SETTINGS, Fuzz, Judge, Tally, after_all, is_met, run_cases, run_schemathesis
from tests.soak.connection import Answer
from tests.soak.raw_cases import BEGINNINGS, DOCUMENTS, RawRequest
from tests.waiting import PATIENCE

CASES = 150
JSON = {"content-type": "application/json"}
ERROR = {"message": "m", "type": "t", "param": None, "code": "c"}


@pytest.fixture
def live() -> Iterator[Live]:
    with running(**SETTINGS) as server:
        yield server


def fuzzed(live: Live, count: int = CASES) -> Tally:
    tally = Tally()
    fuzz = Fuzz(live.url, tally)
    try:
        run_cases(fuzz, count, 5)
    finally:
        fuzz.close()
    return tally


def test_a_sound_server_passes(live: Live) -> None:
    tally = fuzzed(live)
    assert not tally.mistakes, tally.examples
    assert tally.statuses.total() == CASES
    seen = " ".join(tally.statuses)
    assert all(part in seen for part in ("/filter 200", "/filter 422", "/generate 422", "/filter/stream closed 1008"))
    after = after_all(live.url)
    assert after.pop("ready") and not any(after.values())


def test_each_route_that_takes_a_document_has_one_to_change(live: Live) -> None:
    judge = Judge(live.app.openapi(), Tally())
    fuzz = Fuzz(live.url, Tally())
    fuzz.close()
    assert fuzz.judge.operations == judge.operations
    # A file is no document.
    posts = {path for path, methods in fuzz.judge.operations.items() if "POST" in methods} - {"/read"}
    assert posts <= set(DOCUMENTS)


def test_the_documents_are_right_before_they_are_changed() -> None:
    with running(open_models([BUNDLE_ROOT / "linear", BUNDLE_ROOT / "books"]), **SETTINGS) as live:
        for path, documents in (("/filter", BEGINNINGS), *DOCUMENTS.items()):
            for document in documents:
                answer = httpx.post(live.url + path, json=document, timeout=PATIENCE)
                assert answer.status_code == 200, (path, document, answer.text)


def test_a_fault_of_a_route_is_noticed(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter_route, "_times", lambda *_: {}["nothing"])
    tally = fuzzed(live)
    assert set(tally.mistakes) == {"5xx"}
    assert "KeyError" not in tally.examples[0] and "/filter" in tally.examples[0]


@pytest.mark.slow
def test_a_fault_of_the_live_stream_is_noticed(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_stream, "parse_observation", lambda document: {}["nothing"])
    assert fuzzed(live).mistakes["close code"] > 0


@pytest.mark.parametrize(
    ("answer", "mistakes"),
    [
        (Answer(200, JSON, b'{"status": "alive"}'), set()),
        (Answer(200, JSON, b'{"status": NaN}'), {"invalid JSON"}),
        (Answer(200, JSON, b'{"status": "alive"'), {"invalid JSON"}),
        (Answer(200, JSON, b'{"state": "alive"}'), {"not its schema"}),
        (Answer(418, JSON, json.dumps({"error": ERROR}).encode()), {"undocumented status"}),
        (Answer(405, JSON, json.dumps({"error": ERROR}).encode()), set()),
        (Answer(405, JSON, b'{"detail": "no"}'), {"error of another shape", "not its schema"}),
        (Answer(405, {"content-type": "text/plain"}, b"no"), {"error of another shape"}),
        (Answer(500, JSON, json.dumps({"error": ERROR}).encode()), {"5xx"}),
    ],
)
def test_an_answer_that_must_not_be_is_reported(live: Live, answer: Answer, mistakes: set[str]) -> None:
    tally = Tally()
    fuzz = Fuzz(live.url, tally)
    fuzz.judge.judge(RawRequest("GET", "/health", b""), answer)
    fuzz.close()
    assert set(tally.mistakes) == mistakes


@pytest.mark.parametrize("is_broken", [False, True])
def test_schemathesis_walks_every_phase(live: Live, is_broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("schemathesis")
    if is_broken:
        monkeypatch.setattr(filter_route, "_times", lambda *_: {}["nothing"])
    found = run_schemathesis(live.url, 2, 1)
    assert bool(found["exit_code"]) == is_broken, found
    assert any("Stateful" in line and "not applicable" not in line for line in found["summary"])


def test_what_is_left_at_the_end_counts() -> None:
    sound = {"mistakes": {}, "schemathesis": {"exit_code": 0}, "after": {"ready": True, "rfa_num_streams": 0.0}}
    assert is_met(sound)
    assert not is_met({**sound, "after": {"ready": True, "rfa_num_streams": 1.0}})
    assert not is_met({**sound, "after": {"ready": False, "rfa_num_streams": 0.0}})
    assert not is_met({**sound, "schemathesis": {"exit_code": 1}})
