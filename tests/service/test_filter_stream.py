"""WS /filter/stream: one reply per observation in order, one terminal frame, states that continue bit for bit."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from websockets.asyncio.client import connect as connect_websocket
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from rfa.service.engine.filter.recurrent_job import MOST_REFUSED
from rfa.service.engine.filter.stream import StreamJob
from rfa.service.errors import Conflict, ErrorReply, InvalidRequest, RowErrorReply
from rfa.service.routes.stream_frames import parse_observation
from rfa.service.schemas.filter_replies import FilterStepReply, StreamDone, StreamReady, StreamStepReply
from rfa.service.schemas.stream_requests import StreamObservation
from rfa.service.websocket import JsonSocket
from tests.service.live import Live, opened, running, serving
from tests.service.models import FakeFilter, fake_models
from tests.service.replies import read
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.anyio
BUNDLES = Path(__file__).parents[2] / "bundles"


class Socket:
    """A WebSocket client that speaks ASGI to the application."""

    def __init__(
        self,
        app: FastAPI,
        take: Callable[[Any], Awaitable[None]] | None = None,
        *,
        client: str = "10.0.0.1",
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        self.app = app
        self.sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.open = asyncio.Event()
        self.open.set()
        self.sent.put_nowait({"type": "websocket.connect"})
        scope = {
            "type": "websocket", "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1",
            "scheme": "ws", "path": "/filter/stream", "raw_path": b"/filter/stream", "query_string": b"",
            "root_path": "", "headers": list(headers), "client": (client, 1), "server": ("test", 80),
            "subprotocols": [], "state": {}, "extensions": {},
        }  # fmt: skip
        self.task = asyncio.ensure_future(app(scope, self.sent.get, take or self._take))

    async def _take(self, message: Any) -> None:
        await self.open.wait()
        self.received.put_nowait(message)

    def text(self, text: str) -> None:
        self.sent.put_nowait({"type": "websocket.receive", "text": text})

    def frame(self, document: Any) -> None:
        self.text(json.dumps(document))

    async def reply(self) -> Any:
        async with asyncio.timeout(PATIENCE):
            message = await self.received.get()
        if message["type"] == "websocket.accept":
            return await self.reply()
        return json.loads(message["text"]) if message["type"] == "websocket.send" else message

    async def start(self, **request: Any) -> Any:
        self.frame(request)
        return read(StreamReady, json.dumps(await self.reply()))

    async def rest(self) -> tuple[list[Any], int]:
        """Every frame up to the close, and its code; the application has ended and says nothing more."""
        frames = []
        while not (isinstance(frame := await self.reply(), dict) and frame.get("type") == "websocket.close"):
            frames.append(frame)
        async with asyncio.timeout(PATIENCE):
            await self.task
        assert self.received.empty()
        return frames, frame["code"]

    async def leave(self) -> None:
        self.sent.put_nowait({"type": "websocket.disconnect", "code": 1006})
        async with asyncio.timeout(PATIENCE):
            await self.task


async def slots_are_free(app: FastAPI) -> None:
    engine = app.state.engine
    await until(lambda: not engine.pool_slots_in_use and not engine._scheduler.streams)


def terminal(frame: Any) -> bool:
    return "done" in frame or "error" in frame


async def test_one_reply_per_observation(connect: Any) -> None:
    async with connect() as http:
        socket = Socket(http.app)
        ready = await socket.start(levels=[0.5], horizon=[0.25], samples=2, seed=9)
        assert (ready.model, ready.seed, ready.observation_size, ready.levels, ready.index) == ("mean", 9, 2, [0.5], 0)
        means = [[1.0, 2.0], [1.0, 2.0], [2.0, 2.0], [2.0, 3.0]]
        for i, y in enumerate([[1, 2.0], None, [3.0, None], [None, 4]]):
            socket.frame({"t": i / 2, "y": y, "noise": 2} if i else {"y": y})
            step = read(FilterStepReply, json.dumps(await socket.reply()))
            assert (step.index, step.t, step.mean, step.forecast[0].t) == (i, i / 2, means[i], i / 2 + 0.25)
            assert len(step.samples) == 2 and set(step.interval) == {"0.5"}
        socket.frame({"close": True})
        frames, code = await socket.rest()
        done = read(StreamDone, json.dumps(frames[0]))
        assert (len(frames), code) == (1, 1000)
        assert (done.steps, done.log_likelihood, done.reason, done.state) == (4, 3.0, "close", None)
        assert (done.calibration.scored, done.calibration.pit) == (2, [0] * 9 + [2])
        await slots_are_free(http.app)
        counted = {"route": "/filter/stream", "method": "WEBSOCKET", "status": "101"}
        assert http.app.state.metrics.registry.get_sample_value("rfa_http_requests_total", counted) == 1


@pytest.mark.parametrize(
    ("text", "param", "code"),
    [
        ("{", None, "invalid_json"),
        ("", None, "invalid_json"),
        ('{"y": [NaN, 1]}', None, "invalid_json"),
        ('{"y": ["\\ud800", 1]}', None, "invalid_json"),
        ("[" * 2000 + "]" * 2000, None, "too_deep"),
        ("[1, 2]", None, "model_type"),
        ("null", None, "model_type"),
        ('"close"', None, "model_type"),
        ("{}", "y", "missing"),
        ('{"t": 1}', "y", "missing"),
        ('{"y": [1, 2], "what": 1}', "what", "extra_forbidden"),
        ('{"y": [1, 2], "close": true}', "y", "extra_forbidden"),
        ('{"y": null, "t": 1, "t": 2}', "t", "duplicate"),
        ('{"y": [-1e12, 0], "bias": [1e12, 0]}', "bias", "out_of_range"),
        ('{"close": false}', "close", "literal_error"),
        ('{"close": 1}', "close", "bool_type"),
        ('{"y": []}', "y", "too_short"),
        ('{"y": 1}', "y", "list_type"),
        ('{"y": {"0": 1}}', "y", "list_type"),
        ('{"y": [1, [2]]}', "y[1]", "float_type"),
        ('{"y": [1, "2"]}', "y[1]", "float_type"),
        ('{"y": [true, 1]}', "y[0]", "float_type"),
        ('{"y": [1, 1e13]}', "y[1]", "less_than_equal"),
        ('{"y": [1, -1e300]}', "y[1]", "greater_than_equal"),
        ('{"y": [1, 123456789012345678901234567890]}', "y[1]", "less_than_equal"),
        ('{"y": [1, 2, 3]}', "y", "shape_mismatch"),
        ('{"y": [1]}', "y", "shape_mismatch"),
        ('{"y": null, "t": "1"}', "t", "float_type"),
        ('{"y": null, "t": true}', "t", "float_type"),
        ('{"y": null, "t": 1e16}', "t", "less_than_equal"),
        ('{"y": null, "t": 0.5}', "t", "time_not_monotonic"),
        ('{"y": null, "noise": 0}', "noise", "greater_than_equal"),
        ('{"y": null, "noise": 1e7}', "noise", "less_than_equal"),
        ('{"y": [1, 2], "t": 3, "noise": ' + "9" * 400 + "}", None, None),
        ('{"y": [1, 2], "t": ' + " " * 5000 + "3}", None, "payload_too_large"),
        ('{"y": [1, 2], "s": "' + "é" * 1000 + '"}', None, "payload_too_large"),
    ],
)
async def test_a_bad_frame_is_refused_with_its_reason_and_the_stream_goes_on(
    connect: Any, text: str, param: str | None, code: str | None
) -> None:
    async with connect(max_message_bytes=5000 if code != "payload_too_large" else 1500) as http:
        socket = Socket(http.app)
        await socket.start()
        socket.frame({"t": 1.0, "y": [1, 2]})
        socket.text(text)
        socket.frame({"t": 9.0, "y": [5, 6]})
        socket.frame({"close": True})
        (step, failure, *rest), closed = await socket.rest()
        assert step["mean"] == [1, 2]
        if code == "payload_too_large":
            assert not rest and closed == 1008
            error = read(ErrorReply, json.dumps(failure)).error
        else:
            after, done = rest
            assert (after["index"], after["mean"], done["steps"], done["refused"], closed) == (1, [3, 4], 2, 1, 1000)
            error = read(RowErrorReply, json.dumps(failure)).error
            assert failure["index"] == 1
        if code is not None:
            assert (error.param, error.code) == (param, code)
        assert param is None or param.partition("[")[0] in error.message
        await slots_are_free(http.app)


async def test_binary_frames_are_refused(connect: Any) -> None:
    async with connect() as http:
        for before in (False, True):
            socket = Socket(http.app)
            if before:
                await socket.start()
            socket.sent.put_nowait({"type": "websocket.receive", "bytes": b'{"y": [1, 2]}'})
            if before:
                socket.frame({"close": True})
            (failure, *_), closed = await socket.rest()
            assert (failure["error"]["code"], closed) == ("not_text", 1000 if before else 1008)


async def test_too_many_bad_frames_in_a_row_end_the_stream_with_its_state(connect: Any) -> None:
    """A good one in between starts the count again."""
    async with connect() as http:
        socket = Socket(http.app)
        await socket.start(return_state=True)
        for t in range(2):
            socket.frame({"t": 5 + t, "y": [1, 2]})
            for _ in range(MOST_REFUSED - 1):
                socket.frame({"t": 4, "y": [100, 200]})
        for _ in range(5):
            socket.text("{")
        (*frames, done), code = await socket.rest()
        assert [frame["index"] for frame in frames if "mean" in frame] == [0, 1]
        errors = [frame for frame in frames if "error" in frame]
        assert len(errors) == 2 * MOST_REFUSED - 1 and errors[-1]["error"]["code"] == "invalid_json"
        assert [error["index"] for error in errors] == [
            i for i in range(2 * MOST_REFUSED + 1) if i not in (0, MOST_REFUSED)
        ]
        assert {(error["t"], error["error"]["code"]) for error in errors[:-1]} == {(4.0, "time_not_monotonic")}
        assert (read(StreamDone, json.dumps(done)).reason, done["refused"], code) == ("refused", len(errors), 1008)
        await slots_are_free(http.app)
        ready, steps, _ = await run(http.app, [(6.0, [1, 2])], state=done["state"])
        assert (ready.index, steps[0]["mean"]) == (2, [1, 2])


async def test_refused_frames_leave_the_stream_bit_for_bit() -> None:
    """In random places between good ones; the direct path and pipelining make no difference."""
    observations, draw = random_observations(40), random.Random(5)
    async with serving("linear") as http:
        _, expected, end = await run(http.app, observations, seed=3, horizon=[0.3], model="linear")
        socket = Socket(http.app)
        await socket.start(seed=3, horizon=[0.3], model="linear")
        for t, y in observations:
            for _ in range(draw.randrange(3)):
                socket.text(draw.choice(["{", '{"t": -1, "y": [1, 2]}', '{"y": [1]}', '{"y": [1, "a"]}']))
            socket.frame({"t": t, "y": y})
        socket.frame({"close": True})
        (*frames, done), _ = await socket.rest()
        assert [frame for frame in frames if "error" not in frame] == expected
        assert done["refused"] == len(frames) - len(expected) > 20
        assert {**done, "refused": 0} == end


@pytest.mark.parametrize(
    ("request_frame", "param", "code", "closed"),
    [
        ([], None, "model_type", 1008),
        ({"y": [1, 2]}, "y", "extra_forbidden", 1008),
        ({"levels": [1.5]}, "levels[0]", "less_than", 1008),
        ({"levels": [0.77]}, "levels", "level_not_calibrated", 1008),
        ({"horizon": [0]}, "horizon[0]", "greater_than", 1008),
        ({"samples": 1.0}, "samples", "int_type", 1008),
        ({"samples": 1024}, "samples", "reply_too_large", 1008),
        ({"seed": -1}, "seed", "greater_than_equal", 1008),
        ({"model": "other"}, "model", "model_not_found", 1008),
        ({"state": "v1.forged"}, "state", "state_invalid", 1008),
        ({"state": "session:unknown"}, None, "sessions_off", 1008),
        ({"state_every": 0}, "state_every", "greater_than_equal", 1008),
    ],
)
async def test_a_bad_first_frame_is_named(
    connect: Any, request_frame: Any, param: str | None, code: str, closed: int
) -> None:
    async with connect(max_reply_numbers=1000) as http:
        socket = Socket(http.app)
        socket.frame(request_frame)
        (failure,), found = await socket.rest()
        error = read(ErrorReply, json.dumps(failure)).error
        assert (error.code, found) == (code, closed)
        assert param is None or error.param == param
        await slots_are_free(http.app)


async def test_a_silent_client_does_not_hold_a_stream(connect: Any) -> None:
    async with connect(body_timeout_seconds=0.05) as http:
        (failure,), code = await Socket(http.app).rest()
    assert (failure["error"]["code"], code) == ("request_timeout", 1008)


class SteppedLoop:
    """The clock and the timers of the running loop, as far as streams use them, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.timers: dict[int, tuple[float, Any, tuple[Any, ...]]] = {}
        real = asyncio.get_running_loop()

        class Handle:
            def __init__(handle, number: int) -> None:
                handle.number = number

            def cancel(handle) -> None:
                self.timers.pop(handle.number, None)

        def call_at(when: float, act: Any, *values: Any) -> Handle:
            number = len(self.timers) + 1000 * int(when)
            self.timers[number] = when, act, values
            return Handle(number)

        class Loop:
            time = staticmethod(lambda: self.now)

            def __getattr__(loop, name: str) -> Any:
                return getattr(real, name)

        loop = Loop()
        loop.call_at = call_at  # type: ignore[attr-defined]
        for module in ("filter_stream", "live_stream"):
            monkeypatch.setattr(f"rfa.service.routes.{module}.get_running_loop", lambda: loop)

    def advance(self, seconds: float) -> None:
        self.now += seconds
        for number, (when, act, values) in list(self.timers.items()):
            if when <= self.now:
                del self.timers[number]
                act(*values)


async def test_an_idle_stream_ends_with_its_state(connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state goes on where the stream was; an observation in between puts the end off."""
    clock = SteppedLoop(monkeypatch)
    async with connect() as http:
        socket, other = Socket(http.app), Socket(http.app)
        await socket.start(return_state=True)
        await other.start()
        for t in range(3):
            socket.frame({"t": t, "y": [t, 1]})
            await socket.reply()
            await asyncio.sleep(0)
            clock.advance(3_000)
        assert http.app.state.engine._scheduler.streams == 1  # the other one sent nothing for an hour
        (done,), code = await other.rest()
        assert (done["reason"], done["steps"], done["state"], code) == ("idle", 0, None, 1000)
        clock.advance(599)
        assert socket.received.empty()
        clock.advance(1)
        (done,), code = await socket.rest()
        assert (read(StreamDone, json.dumps(done)).reason, done["steps"], code) == ("idle", 3, 1000)
        await slots_are_free(http.app)
        assert not clock.timers
        again = Socket(http.app)
        assert (await again.start(state=done["state"])).index == 3
        again.frame({"t": 3, "y": [3, 1]})
        assert (await again.reply())["mean"] == [1.5, 1.0]


async def test_a_stream_whose_answer_is_due_is_not_idle(connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, gate = SteppedLoop(monkeypatch), threading.Semaphore(0)
    async with connect(fake_models(filter=FakeFilter(gate=gate)), workers=1) as http:
        socket = Socket(http.app)
        await socket.start()
        socket.frame({"y": [1, 2]})
        await until(lambda: http.app.state.engine._scheduler.has_live_work)
        clock.advance(4_000)
        gate.release(10)
        assert (await socket.reply())["mean"] == [1, 2]
        clock.advance(3_600)
        (done,), _ = await socket.rest()
        assert (done["reason"], done["steps"]) == ("idle", 1)


async def test_one_stream_too_many_is_reported_to_come_later(connect: Any) -> None:
    async with connect(max_streams=1) as http:
        first = Socket(http.app)
        await first.start()
        second = Socket(http.app)
        second.frame({})
        (failure,), code = await second.rest()
        assert (failure["error"]["type"], code) == ("overloaded", 1013)
        await first.leave()
        await slots_are_free(http.app)
        await Socket(http.app).start()


async def test_a_row_that_breaks_the_numbers_is_refused_alone(connect: Any) -> None:
    async with connect(fake_models(filter=FakeFilter(poison=666))) as http:
        broken, healthy = Socket(http.app), Socket(http.app)
        await broken.start()
        await healthy.start()
        for socket in (broken, healthy):
            socket.frame({"y": [1, 2]})
        broken.frame({"y": [666, 2]})
        healthy.frame({"y": [3, 2]})
        broken.frame({"y": [3, 2]})
        broken.frame({"close": True})
        (step, failure, after, done), code = await broken.rest()
        assert (step["index"], after["index"], after["mean"]) == (0, 1, [2, 2])
        assert (failure["error"]["code"], failure["index"], done["refused"], code) == ("out_of_range", 1, 1, 1000)
        healthy.frame({"close": True})
        (*steps, done), code = await healthy.rest()
        assert [step["mean"] for step in steps] == [[1, 2], [2, 2]]
        assert (done["steps"], code) == (2, 1000)


async def test_a_fault_of_the_server_is_not_explained(connect: Any) -> None:
    async with connect(fake_models(filter=FakeFilter(bomb=13.0))) as http:
        socket = Socket(http.app)
        await socket.start()
        socket.frame({"y": [13, 2]})
        (failure,), code = await socket.rest()
    assert (failure["error"]["code"], code) == ("internal_error", 1011)
    assert "secret" not in json.dumps(failure)


@pytest.mark.parametrize("moment", ["before the first frame", "idle", "working", "full"])
async def test_a_client_that_leaves_frees_its_slot(connect: Any, moment: str) -> None:
    gate = threading.Semaphore(0)
    async with connect(fake_models(filter=FakeFilter(gate=gate)), workers=1, stream_buffer=4) as http:
        socket = Socket(http.app)
        if moment != "before the first frame":
            await socket.start()
        if moment == "idle":
            gate.release()
            socket.frame({"y": [1, 2]})
            await socket.reply()
            assert http.app.state.engine.pool_slots_in_use == 1
        if moment in ("working", "full"):
            for _ in range(2 if moment == "working" else 50):
                socket.frame({"y": [1, 2]})
            await until(lambda: http.app.state.engine._scheduler.has_live_work)
        if moment == "full":  # it reads no further, so it learns of the end from the socket it writes to
            gate.release(1)
        await asyncio.sleep(0.05)
        leaving = asyncio.ensure_future(socket.leave())
        gate.release(1000)
        await leaving
        await slots_are_free(http.app)


async def test_a_client_that_leaves_before_its_first_answer_frees_its_place(connect: Any) -> None:
    """A first frame and a close frame in one packet: the place was taken, and nobody is there to be told so."""
    async with connect() as http:

        async def closed(message: Any) -> None:
            if message["type"] == "websocket.send":
                raise OSError("the client has closed")

        socket = Socket(http.app, closed)
        socket.frame({})
        async with asyncio.timeout(PATIENCE):
            await socket.task
        await slots_are_free(http.app)


async def test_draining_ends_a_stream_in_an_orderly_way(connect: Any) -> None:
    async with connect() as http:
        socket = Socket(http.app)
        await socket.start(return_state=True, seed=4)
        socket.frame({"y": [1, 2]})
        await socket.reply()
        await asyncio.to_thread(http.app.state.engine.drain, 1)
        (done,), code = await socket.rest()
        assert (done["reason"], done["steps"], code) == ("drain", 1, 1012)
        assert done["state"].startswith("v1.")
        late = Socket(http.app)
        late.frame({})
        (failure,), code = await late.rest()
        assert (failure["error"]["code"], code) == ("not_ready", 1013)


# States.


async def run(app: FastAPI, observations: list[Any], **request: Any) -> tuple[StreamReady, list[Any], Any]:
    socket = Socket(app)
    ready = await socket.start(**request)
    for t, y in observations:
        socket.frame({"t": t, "y": y})
    socket.frame({"close": True})
    (*steps, done), code = await socket.rest()
    assert code == 1000, done
    return ready, steps, done


def random_observations(count: int) -> list[Any]:
    rng = random.Random(3)
    times = sorted(rng.uniform(0, 20) for _ in range(count))
    return [(t, None if rng.random() < 0.1 else [rng.gauss(0, 1), rng.gauss(0, 1)]) for t in times]


@pytest.mark.parametrize("name", ["linear", "oscillator"])
async def test_saved_and_restored_is_uninterrupted_bit_for_bit(name: str) -> None:
    """Cut at random places, across WS and POST, tokens and a session; the seed and the index go on by themselves."""
    observations, requested = random_observations(40), {"levels": [0.9], "horizon": [0.3], "samples": 2, "model": name}
    rng = random.Random(1)
    async with serving(name, sessions="memory") as http:
        app = http.app
        _, whole, _ = await run(app, observations, seed=11, **requested)
        for session in (None, "session:needle"):
            cuts = [0, *sorted(rng.sample(range(1, 40), 5)), 40]
            steps: list[Any] = []
            state: str | None = None
            for begin, end in itertools.pairwise(cuts):
                request = {"state": state} if state else {"seed": 11}
                keep = {} if state and session else {"return_state": session or True}
                ready, part, done = await run(app, observations[begin:end], **request, **keep, **requested)
                assert (ready.index, ready.seed, done["steps"]) == (begin, 11, end - begin)
                steps += [{key: step[key] for key in step if key not in ("state", "warnings")} for step in part]
                state = done["state"]
                assert state is not None
            assert steps == whole
            assert not session or state == f"{session}@40"


async def test_state_comes_with_every_so_many_th_step_and_forks(connect: Any) -> None:
    observations = [(float(i), [float(i), 1.0]) for i in range(10)]
    async with connect() as http:
        _, steps, done = await run(http.app, observations, seed=5, state_every=4)
        states = {step["index"]: step["state"] for step in steps if "state" in step}
        assert (sorted(states), done["state"]) == ([3, 7], None)
        assert [step["warnings"] for step in steps if "state" in step] == [[], []] and done["warnings"] == []
        for step in steps:
            read(StreamStepReply, json.dumps(step))
        for _ in range(2):  # the same token twice: a fork
            ready, again, _ = await run(http.app, observations[4:], state=states[3])
            assert (ready.index, ready.seed) == (4, 5)
            assert [step["mean"] for step in again] == [step["mean"] for step in steps[4:]]
        reply = await http.post("/filter", json={"observations": [[4.0, 1.0]], "state": states[3]})
        assert reply.json()["steps"][0]["mean"] == steps[4]["mean"] and reply.json()["seed"] == 5
        assert reply.json()["steps"][0]["t"] == 4.0


async def test_a_stream_that_runs_away_warns_with_each_state_and_at_its_end() -> None:
    async with serving("linear") as http:
        values = [(float(i), [1.08**i]) for i in range(300)]
        _, steps, done = await run(http.app, values, size=1, state_every=150, horizon=[12.0])
    early, late = ([warning["code"] for warning in step["warnings"]] for step in steps if "state" in step)
    assert early == late == ["many_outliers", "low_coverage"]
    late = [step["warnings"] for step in steps if "state" in step][1]
    assert late == done["warnings"]
    assert [(lead["horizon"], lead["steps"]) for lead in done["calibration"]["leads"]] == [(12.0, 12.0)]
    assert [warning["horizon"] for warning in done["warnings"]] == [None, None]


async def test_time_does_not_run_backwards_across_a_state(connect: Any) -> None:
    async with connect() as http:
        _, _, done = await run(http.app, [(7.0, [1, 2])], return_state=True)
        socket = Socket(http.app)
        await socket.start(state=done["state"])
        socket.frame({"t": 6.0, "y": None})
        failure = read(RowErrorReply, json.dumps(await socket.reply()))
        assert (failure.error.param, failure.error.code) == ("t", "time_not_monotonic")
        assert (failure.index, failure.t) == (0, 6.0)
        await socket.leave()
        body = {"observations": [None], "times": [6.0], "state": done["state"]}
        reply = await http.post("/filter", json=body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (422, "times[0]")
        reply = await http.post("/filter", json={**body, "times": None})
        assert (reply.status_code, reply.json()["error"]["param"]) == (422, "times")


async def test_a_session_is_stored_before_its_answer(connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third step cannot be stored: two answers, then the reason."""
    async with connect(sessions="memory") as http:
        keeper = http.app.state.keeper
        save, saved = keeper.save, []

        async def save_two(*arguments: Any, **more: Any) -> str:
            if len(saved) == 2:
                raise Conflict("state: the session has moved on.", param="state", code="session_moved")
            saved.append(await save(*arguments, **more))
            return saved[-1]

        monkeypatch.setattr(keeper, "save", save_two)
        socket = Socket(http.app)
        await socket.start(return_state="session:one")
        for i in range(5):
            socket.frame({"y": [float(i), 0.0]})
        (*steps, failure), code = await socket.rest()
        assert [step["state"] for step in steps] == ["session:one@1", "session:one@2"] == saved
        assert (failure["error"]["code"], code) == ("session_moved", 1008)
        await slots_are_free(http.app)
        monkeypatch.undo()
        ready, steps, _ = await run(http.app, [(2.0, [2.0, 0.0])], state="session:one")
        assert (ready.index, steps[0]["mean"]) == (2, [1.0, 0.0])


# On a real socket.


@pytest.fixture
def address() -> Iterator[tuple[str, FastAPI]]:
    """Of a server in a thread of this process."""
    with running() as live:
        yield f"ws://127.0.0.1:{live.port}/filter/stream", live.app


async def test_a_real_client_gets_replies_in_order_and_close_codes(address: tuple[str, FastAPI]) -> None:
    url, app = address
    async with connect_websocket(url, open_timeout=PATIENCE) as client:
        await client.send(json.dumps({"levels": [0.5]}))
        assert json.loads(await client.recv())["ready"] is True
        for i in range(500):
            await client.send(json.dumps({"t": i, "y": [i, 0]}))
        await client.send('{"close": true}')
        frames = [json.loads(frame) async for frame in client]
        assert [frame["index"] for frame in frames[:-1]] == list(range(500))
        assert (frames[-1]["steps"], client.close_code) == (500, 1000)
    async with connect_websocket(url, open_timeout=PATIENCE) as client:
        await client.send("{}")
        await client.recv()
        await client.send('{"y": "1"}')
        failure = json.loads(await client.recv())
        await client.send('{"close": true}')
        done = json.loads(await client.recv())
        assert (failure["error"]["param"], failure["index"], done["refused"]) == ("y", 0, 1)
    clients = [await connect_websocket(url, open_timeout=PATIENCE) for _ in range(20)]
    for client in clients:
        await client.send("{}")
        await client.recv()
        await client.send('{"y": [1, 2]}')
        await client.recv()
    assert app.state.engine.pool_slots_in_use == 20
    for client in clients:
        client.transport.abort()
    await slots_are_free(app)


# The short way, without a task for each frame.


@pytest.fixture
def long_way(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was read by ASGI."""
    found: list[Any] = []
    read_long = JsonSocket.read

    async def watched(self: JsonSocket) -> Any:
        found.append(await read_long(self))
        return found[-1]

    monkeypatch.setattr(JsonSocket, "read", watched)
    return found


LINEAR = b'{"model": "linear"}'


class RawClient:
    """A client that sends what bytes it likes."""

    def __init__(self, live: Live) -> None:
        self.socket = opened(live, path=b"/filter/stream")
        self.frames = ClientProtocol(parse_uri("ws://x/"), state=State.OPEN)

    def close(self) -> None:
        self.socket.close()

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.socket.sendall(piece)

    def reply(self) -> Any:
        while not (events := self.frames.events_received()):
            piece = self.socket.recv(1)
            assert piece, "closed early"
            self.frames.receive_data(piece)
        (frame,) = events
        assert isinstance(frame, Frame)
        return json.loads(bytes(frame.data)) if frame.opcode is Opcode.TEXT else frame

    def ask(self, *pieces: bytes) -> Any:
        self.send(*pieces)
        return self.reply()


def masked(text: bytes, opcode: Opcode = Opcode.TEXT, *, fin: bool = True) -> bytes:
    return Frame(opcode, text, fin).serialize(mask=True)


def test_observations_of_a_compiled_filter_take_the_short_way(long_way: list[Any]) -> None:
    with running(bundles=(BUNDLES / "linear",)) as live, closing(RawClient(live)) as client:
        assert client.ask(masked(LINEAR))["ready"] is True
        for index in range(20):
            assert client.ask(masked(b'{"y": [1, %d]}' % index))["index"] == index
        assert client.ask(masked(b'{"close": true}'))["steps"] == 20
    # The first may come before the application waits for it.
    assert [long_way[0], long_way[-1]] == [json.loads(LINEAR), {"close": True}] and len(long_way) <= 3


def test_frames_of_any_form_are_answered_in_order_and_alike(long_way: list[Any]) -> None:
    """Whole or in pieces of bytes or of frames, alone or together: by the one way or the other."""
    frame = masked(b'{"y": [3, 4]}')
    first, rest = masked(b'{"y":', fin=False), masked(b" [3, 4]}", Opcode.CONT)
    sent = [
        [frame], [frame[:1], frame[1:]], [frame], [first, rest], [frame], [frame + frame[:7], frame[7:]], [frame],
        [first, masked(b"", Opcode.PONG), rest], [frame + first, rest + frame], [frame],
    ]  # fmt: skip
    with (
        running(bundles=(BUNDLES / "linear",)) as live,
        closing(RawClient(live)) as client,
        closing(RawClient(live)) as plain,
    ):
        client.ask(masked(b'{"model": "linear", "seed": 1}'))
        plain.ask(masked(b'{"model": "linear", "seed": 1}'))
        replies = []
        for pieces in sent:
            for piece in pieces:
                client.send(piece)
                time.sleep(0.005)  # so that most pieces are read one by one; the replies are the same where not
        replies = [client.reply() for _ in range(13)]
        assert replies == [plain.ask(frame) for _ in range(13)]
        assert client.ask(masked(b'{"close": true}'))["steps"] == 13


@pytest.mark.parametrize(
    ("frame", "code"),
    [(b'{"y": [1]}', 1000), (b'{"y": [1, 2], "t": -1}', 1000), (b"{", 1000), (b'{"y": "\xff"}', 1007)],
)
def test_a_bad_frame_is_refused_behind_the_answers_of_the_short_way(frame: bytes, code: int) -> None:
    with running(bundles=(BUNDLES / "linear",)) as live, closing(RawClient(live)) as client:
        client.ask(masked(LINEAR))
        for index in range(3):
            assert client.ask(masked(b'{"y": [1, 2]}'))["index"] == index
        reply = client.ask(masked(frame))
        if code == 1000:
            assert "error" in reply and reply["index"] == 3
            assert client.ask(masked(b'{"y": [1, 2]}'))["index"] == 3
            assert client.ask(masked(b'{"close": true}'))["refused"] == 1
            reply = client.reply()
        assert reply.opcode is Opcode.CLOSE and int.from_bytes(reply.data[:2], "big") == code


def test_a_rate_of_alarms_per_time_needs_times() -> None:
    """Else steps would count as seconds, in silence. The first frame goes by ASGI, others may go the short way."""
    with running(bundles=(BUNDLES / "linear",)) as live:
        for before in range(3):
            with closing(RawClient(live)) as client:
                client.ask(masked(b'{"model": "linear", "alarm": {"rate": "1/day"}}'))
                for index in range(before):
                    assert client.ask(masked(b'{"t": %d, "y": [1, 2]}' % index))["index"] == index
                error = read(RowErrorReply, json.dumps(client.ask(masked(b'{"y": [1, 2]}')))).error
                assert (error.param, error.code) == ("t", "no_times")


def test_frames_beyond_the_space_wait_and_are_all_answered(
    monkeypatch: pytest.MonkeyPatch, long_way: list[Any]
) -> None:
    """Nothing is taken by the short way while there is no room, or while what came before is still under way."""
    unanswered: list[int] = []
    push = StreamJob.push

    def watched(self: StreamJob, observed: Any) -> None:
        push(self, observed)
        unanswered.append(self.unanswered)

    monkeypatch.setattr(StreamJob, "push", watched)
    with running(bundles=(BUNDLES / "linear",), stream_buffer=4) as live, closing(RawClient(live)) as client:
        client.ask(masked(LINEAR))
        for start in range(0, 400, 40):
            client.send(*[masked(b'{"t": %d, "y": [1, 2]}' % t) for t in range(start, start + 40)])
            assert [client.reply()["t"] for _ in range(40)] == list(range(start, start + 40))
    assert max(unanswered) <= 4


# The fast path of frames.

numbers = st.one_of(
    st.floats(), st.integers(), st.booleans(), st.none(), st.text(max_size=2), st.sampled_from([1e12, -1e15, 1e-6, 1e6])
)
values = st.one_of(numbers, st.lists(numbers, max_size=3), st.lists(st.lists(numbers, max_size=1), max_size=2))
frames = st.one_of(values, st.dictionaries(st.sampled_from(["t", "y", "noise", "close", "Y", ""]), values, max_size=4))


@given(frames)
def test_frames_are_read_by_the_rules_of_their_schema(document: Any) -> None:
    try:
        slow = StreamObservation.model_validate(document)
        expected: Any = (slow.t, slow.y, slow.noise, slow.input, slow.bias)
    except ValidationError:
        expected = None
    try:
        found: Any = parse_observation(document)
    except InvalidRequest:
        found = None
    assert found == expected


@given(st.lists(st.one_of(st.none(), st.floats(-1e12, 1e12)), min_size=1, max_size=3), st.floats(-1e15, 1e15))
def test_good_frames_take_the_fast_path(y: list[float | None], t: float) -> None:
    document = orjson.loads(orjson.dumps({"y": y, "t": t, "noise": 2}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rfa.service.routes.stream_frames.validated", None)
        assert parse_observation(document) == (t, y, 2.0, None, None, None)


def test_a_stream_of_any_columns_says_how_many() -> None:
    with running(bundles=(BUNDLES / "linear",)) as live, closing(RawClient(live)) as client:
        ready = client.ask(masked(b'{"size": 3}'))
        assert (ready["model"], ready["observation_size"]) == ("auto", 3)
        assert len(client.ask(masked(b'{"y": [1, null, 3]}'))["mean"]) == 3
        error = client.ask(masked(b'{"y": [1, 2]}'))["error"]
        assert (error["param"], error["code"]) == ("y", "shape_mismatch") and '"size": 2' in error["message"]
