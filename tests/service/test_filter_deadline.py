"""`deadline_ms` of POST /filter: what is finished by then is the beginning of the whole, and its state goes on."""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import logging
import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from rfa.runtime.filters import sequence as filter_sequence
from rfa.service.engine import job as jobs
from tests.service.live import answer, serving
from tests.service.models import FakeFilter, fake_models
from tests.service.test_columns import arrow, send

pytestmark = pytest.mark.anyio
# More than two pieces of a compiled filter, of 256 observations each.
COUNT = 600
ROWS: list[Any] = [
    None if i % 17 == 3 else [math.sin(i / 7), None if i % 5 == 1 else math.cos(i / 7)] for i in range(COUNT)
]
# A graph takes one observation at a time, so few are enough.
SERVED = {"linear": ROWS, "oscillator": ROWS[:40]}
VALUES = {name: [row and row[k] for row in ROWS] for k, name in enumerate(("left", "right"))}
LATE = 60_000  # milliseconds: the clock of these tests passes it when they say so
KEY = "a-key-of-sixteen-or-more"
served = functools.partial(serving, "linear", "oscillator", sessions="memory")


class Clock:
    """The clock of deadlines: it stands still until it is past all of them."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def ring(self) -> None:
        self.now += LATE


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """In the place of the monotonic clock, wherever a deadline is looked at."""
    clock = Clock()
    for module in (jobs, filter_sequence):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


@contextmanager
def ring_after(client: Any, model: str, calls: int, clock: Clock) -> Iterator[None]:
    """Let the deadline pass behind so many steps of the filter."""
    runtime = client.app.state.engine.filter_model(model)
    left = calls

    def counted(step: Any) -> Any:
        def take(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            found = step(*arguments, **named)
            left -= 1
            if not left:
                clock.ring()
            return found

        return take

    runtime.advance, runtime.trace = counted(runtime.advance), counted(runtime.trace)

    try:
        yield
    finally:
        del runtime.advance, runtime.trace


def body(model: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "observations": SERVED[model], "levels": [0.9], "horizon": [0.5], "seed": 5, **more}


# Of the compiled filter a call takes a piece, of the graphs one observation.
@pytest.mark.parametrize(("model", "taken"), [("linear", 256), ("oscillator", 1)])
async def test_a_series_ends_at_its_deadline_and_its_state_goes_on(clock: Clock, model: str, taken: int) -> None:
    """The steps are the first of the whole, all else is of them, and the rest follows bit for bit."""
    async with served() as client:
        whole = await answer(client, body(model, deadline_ms=LATE))
        assert (whole["finish_reason"], len(whole["steps"])) == ("complete", len(SERVED[model]))
        part = await answer(client, body(model, observations=SERVED[model][:taken]))
        with ring_after(client, model, 1, clock):
            cut = await answer(client, body(model, deadline_ms=LATE, return_state=True))
        rest = await answer(client, body(model, observations=SERVED[model][taken:], state=cut["state"]))
    assert (cut["finish_reason"], cut["steps"]) == ("deadline", whole["steps"][:taken])
    assert (cut["log_likelihood"], cut["calibration"]) == (part["log_likelihood"], part["calibration"])
    assert cut["steps"] + rest["steps"] == whole["steps"]


@pytest.mark.parametrize("model", ["linear", "oscillator"])
@pytest.mark.parametrize("accept", ["application/x-ndjson", "text/event-stream"])
async def test_the_last_line_of_a_stream_says_it(clock: Clock, model: str, accept: str) -> None:
    async with served() as client:
        whole = await answer(client, body(model))
        document = body(model, deadline_ms=LATE, stream=True, return_state="session:cut")
        with ring_after(client, model, 3, clock):
            response = await client.post("/filter", json=document, headers={"Accept": accept})
    *steps, last = (json.loads(line.removeprefix("data: ")) for line in response.text.splitlines() if line)
    assert steps == whole["steps"][:3]
    assert (last["done"], last["finish_reason"], last["state"]) == (True, "deadline", "session:cut@3")


@pytest.mark.parametrize("calls", [0, 1])
async def test_columns_and_arrow_streams_end_with_what_there_is(clock: Clock, calls: int) -> None:
    """Also where there is nothing yet: every column is there, and empty."""
    named = {"model": "linear", "levels": [0.9], "seed": 5}
    async with served() as client:
        whole = await answer(client, {**named, "values": VALUES})
        ring = (
            functools.partial(ring_after, client, "linear", calls) if calls else functools.partial(ring_at_once, client)
        )
        with ring(clock):
            summary = await answer(client, {**named, "values": VALUES, "deadline_ms": LATE})
        with ring(clock):
            response = await send(client, arrow(VALUES), model="linear", levels=0.9, seed=5, deadline_ms=LATE)
        read = pa.ipc.open_stream(response.content).read_all()
    found = [(summary.pop("columns"), summary), (read.to_pydict(), json.loads(read.schema.metadata[b"rfa"]))]
    assert whole["finish_reason"] == "complete"
    for columns, summary in found:
        assert columns == {name: column[: 256 * calls] for name, column in whole["columns"].items()}
        assert summary["finish_reason"] == "deadline"


@contextmanager
def ring_at_once(client: Any, clock: Clock) -> Iterator[None]:
    """Let the deadline pass while the request is on its way to the filter."""
    engine = client.app.state.engine
    submit = engine._scheduler.submit

    def late(job: Any) -> None:
        clock.ring()
        submit(job)

    engine._scheduler.submit = late

    try:
        yield
    finally:
        del engine._scheduler.submit


@pytest.mark.parametrize("more", [{}, {"smooth": True}, {"stream": True}], ids=str)
async def test_a_deadline_before_the_first_step_still_answers(clock: Clock, more: dict[str, Any]) -> None:
    """And the state, which has taken nothing, is that of the beginning."""
    async with served() as client:
        whole = await answer(client, body("linear"))
        with ring_at_once(client, clock):
            response = await client.post("/filter", json=body("linear", deadline_ms=LATE, return_state=True, **more))
        *lines, last = (json.loads(line) for line in response.text.splitlines())
        assert (response.status_code, lines, last.get("steps", [])) == (200, [], [])
        assert (last["finish_reason"], last["smoothed"], last["calibration"]["scored"]) == ("deadline", None, 0)
        again = await answer(client, body("linear", state=last["state"]))
        assert again["steps"] == whole["steps"]


@pytest.mark.parametrize("is_looking_back", [False, True])
async def test_smoothing_leaves_out_what_is_made_from_the_end(
    clock: Clock, is_looking_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps so far are the filter's; smoothed states and trajectories, of which some are there, are not told."""
    taken = COUNT if is_looking_back else 256
    async with served() as client:
        whole = await answer(client, body("linear"))
        if is_looking_back:
            back = filter_sequence.smooth

            def late(traces: Any) -> Any:
                for i, block in enumerate(back(traces)):
                    if i == 2:
                        clock.ring()
                    yield block

            monkeypatch.setattr(filter_sequence, "smooth", late)
        with nullcontext() if is_looking_back else ring_after(client, "linear", 1, clock):
            cut = await answer(client, body("linear", smooth=True, samples=2, deadline_ms=LATE, return_state=True))
    assert (cut["finish_reason"], cut["smoothed"], cut["steps"]) == ("deadline", None, whole["steps"][:taken])
    assert cut["state"]


async def test_what_is_left_is_not_counted(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """A quota has those observations back, and the line of the log tells those that were taken, and why no more."""
    caplog.set_level(logging.INFO, "rfa.access")
    # A second: next to nothing comes back by itself.
    async with served(api_keys=KEY, quota_observations=0.01) as client:
        client.headers["Authorization"] = f"Bearer {KEY}"
        for late in (ring_at_once(client, clock), ring_after(client, "linear", 1, clock)):
            with late:
                await answer(client, body("linear", deadline_ms=LATE))
        refused = await client.post("/filter", json=body("linear"))
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "quota_observations")
    # A debt of 256, less the one that was there.
    assert 25_500 <= int(refused.headers["Retry-After"]) <= 25_600
    lines = [record.fields for record in caplog.records if record.name == "rfa.access"]  # type: ignore[attr-defined]
    outputs = [(line.get("observations"), line.get("finish_reason")) for line in lines[:2]]
    assert outputs == [(0, "deadline"), (256, "deadline")]


async def test_the_clock_of_the_server_ends_a_series(connect: Any) -> None:
    """Nothing stands in for the clock here: the third observation takes until the deadline has passed, which leaves a
    slow machine time for the first two."""

    class Slow(FakeFilter):
        def advance(self, pool: Any, rows: Any) -> Any:
            if rows[0].t == 2.0:
                time.sleep(0.5)
            return super().advance(pool, rows)

    async with connect(fake_models(filter=Slow())) as client:
        reply = await answer(client, {"observations": [[float(i), 0.0] for i in range(50)], "deadline_ms": 400})
        assert (await client.post("/filter", json={"observations": [[1, 2]], "deadline_ms": 0})).status_code == 422
    assert reply["finish_reason"] == "deadline" and len(reply["steps"]) <= 3


async def test_a_server_that_goes_down_ends_a_streamed_series_with_its_state(connect: Any) -> None:
    """Its steps are out, and another server goes on from them; a plain one is refused, to be asked for again."""
    model, keys = FakeFilter(gate=threading.Semaphore(3)), {"state_keys": base64.b64encode(os.urandom(32)).decode()}
    rows = [[float(i), 1.0] for i in range(1000)]
    streamed, plain = ({"observations": rows, "seed": 5, "stream": is_streamed} for is_streamed in (True, False))
    async with connect(fake_models(filter=model), **keys) as client:
        engine = client.app.state.engine
        asked = [asyncio.create_task(client.post("/filter", json=document)) for document in (streamed, plain)]
        while len(model.batches) < 2:
            await asyncio.sleep(0.001)
        draining = asyncio.create_task(asyncio.to_thread(engine.drain, 0))
        while not draining.done():
            model.gate.release()  # so slowly that the end is far when it is interrupted
            await asyncio.sleep(0.001)
        cut, refused = [await task for task in asked]
    *steps, last = map(json.loads, cut.text.splitlines())
    assert 0 < len(steps) < len(rows) and (last["done"], last["finish_reason"]) == (True, "cancelled")
    assert refused.status_code == 503 and refused.json()["error"]["code"] == "not_ready"
    async with connect(**keys) as client:
        whole = await answer(client, plain)
        rest = await answer(client, {**plain, "observations": rows[len(steps) :], "state": last["state"]})
    assert steps + rest["steps"] == whole["steps"]
