"""An event model from sequences to alarms: in pieces as whole, in Python, on the command line and over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner

from rfa.cli.main import app
from rfa.library.events import EventModel
from rfa.runtime.errors import InvalidInput
from tests.service.live import running

# A usual sequence of the logs of HDFS, as the default model knows them.
USUAL = [5, 5, 22, 5, 11, 9, 11, 9, 11, 9, 26, 26, 26]


@pytest.fixture(scope="module")
def model() -> EventModel:
    return EventModel("events")


def test_events_in_pieces_have_the_scores_of_the_whole(model: EventModel) -> None:
    events = [*USUAL, 7, 1234, *USUAL]
    whole = model.score(events)
    parts, state = [], None
    for piece in (events[:1], events[1:4], [], events[4:]):
        scores, state = model.update(piece, state)
        parts.append(scores)
    for name, column in whole._asdict().items():
        assert np.array_equal(np.concatenate([getattr(part, name) for part in parts]), column[:-1])
    assert len(whole.tail) == len(events) + 1
    assert whole.tail[13:15].max() < whole.tail[:13].min() <= 1


def test_bytes_of_another_model_are_refused(model: EventModel) -> None:
    _, state = model.update(USUAL)
    for broken in (state[:-1], b"\xff" * 4 + state[4:], b""):
        with pytest.raises(InvalidInput):
            model.update([5], broken)


def test_the_command_names_lines_and_places(tmp_path: Path) -> None:
    file = tmp_path / "today.txt"
    usual = " ".join(map(str, USUAL))
    file.write_text(f"{usual}\n\n5 5 7777 9\n5\n")
    command = ["score", str(file), "--rate", "0.001"]
    document = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout.splitlines()[-1])
    assert (document["sequences"], document["events"]) == (3, 21)
    assert (3, 3, 7777) in [(one["line"], one["place"], one["event"]) for one in document["found"]]
    assert all(one["line"] != 1 and one["tail"] <= 0.001 for one in document["found"])
    shown = CliRunner().invoke(app, command).output
    assert "line 3, position 3: event 7777, probability" in shown and "of 3 sequences" in shown
    file.write_text("5 x\n")
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1 and "line 1: 'x' is not an event" in result.output


@pytest.fixture(scope="module")
def address(bundles: Path) -> Iterator[str]:
    with running(bundles=(bundles / "events",)) as server:
        yield server.url


def test_alarms_over_http_are_those_of_the_process(address: str, model: EventModel) -> None:
    events = [*USUAL[:4], 777, 9]
    text = "<|endoftext|>" + "".join(f" {event}" for event in events) + "<|endoftext|>"
    body = {"inputs": text, "alarm": {"rate": 0.01}}
    (scored,) = httpx.post(f"{address}/score", json=body).json()["scores"]
    tails = model.score(events).tail
    assert min(scored["tails"][5:-2]) == tails[4] and scored["tails"][-1] == tails[-1]
    expected = [None, *(tail <= 0.01 for tail in scored["tails"][1:])]
    assert scored["alarms"] == expected and True in expected
    checks = scored["alarm_checks"]
    assert (checks["observations"], checks["raised"]) == (len(expected) - 1, sum(map(bool, expected)))
    lines: list[Any] = [
        json.loads(line) for line in httpx.post(f"{address}/score", json={**body, "stream": True}).text.splitlines()
    ]
    assert [one for line in lines[:-1] for one in line["alarms"]] == expected
    assert lines[-1]["scores"][0]["alarm_checks"] == checks
    refused = httpx.post(f"{address}/score", json={**body, "alarm": {"rate": 0.9}})
    assert refused.status_code == 422 and refused.json()["error"]["param"] == "alarm.rate"
