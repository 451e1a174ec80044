"""WS /filter/stream: one reply per observation in order, one terminal frame, states that continue bit for bit."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import threading
from typing import Any

import pytest

from rfa.service.engine.filter.recurrent_job import MOST_REFUSED
from rfa.service.errors import Conflict, ErrorReply, RowErrorReply
from rfa.service.schemas.filter_replies import FilterStepReply, StreamDone, StreamStepReply
from tests.service.live import serving
from tests.service.models import FakeFilter, fake_models
from tests.service.replies import read
from tests.service.stream_socket import Socket, SteppedLoop, random_observations, run, slots_are_free
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.anyio


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
        ('{"y": [NaN, 1]}', None, "invalid_json"),
        ('{"y": ["\\ud800", 1]}', None, "invalid_json"),
        ("[" * 2000 + "]" * 2000, None, "too_deep"),
        ("[1, 2]", None, "model_type"),
        ("null", None, "model_type"),
        ("{}", "y", "missing"),
        ('{"y": [1, 2], "what": 1}', "what", "extra_forbidden"),
        ('{"y": [1, 2], "close": true}', "y", "extra_forbidden"),
        ('{"y": null, "t": 1, "t": 2}', "t", "duplicate"),
        ('{"y": [-1e12, 0], "bias": [1e12, 0]}', "bias", "out_of_range"),
        ('{"close": false}', "close", "literal_error"),
        ('{"y": []}', "y", "too_short"),
        ('{"y": 1}', "y", "list_type"),
        ('{"y": [1, "2"]}', "y[1]", "float_type"),
        ('{"y": [1, 1e13]}', "y[1]", "less_than_equal"),
        ('{"y": [1, 2, 3]}', "y", "shape_mismatch"),
        ('{"y": null, "t": "1"}', "t", "float_type"),
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


@pytest.mark.parametrize(
    ("request_frame", "param", "code"),
    [
        ([], None, "model_type"),
        ({"levels": [1.5]}, "levels[0]", "less_than"),
        ({"levels": [0.77]}, "levels", "level_not_calibrated"),
        ({"horizon": [0]}, "horizon[0]", "greater_than"),
        ({"samples": 1.0}, "samples", "int_type"),
        ({"samples": 1024}, "samples", "reply_too_large"),
        ({"model": "other"}, "model", "model_not_found"),
        ({"state": "v1.forged"}, "state", "state_invalid"),
        ({"state": "session:unknown"}, None, "sessions_off"),
        ({"state_every": 0}, "state_every", "greater_than_equal"),
    ],
)
async def test_a_bad_first_frame_is_named(connect: Any, request_frame: Any, param: str | None, code: str) -> None:
    async with connect(max_reply_numbers=1000) as http:
        socket = Socket(http.app)
        socket.frame(request_frame)
        (failure,), found = await socket.rest()
        error = read(ErrorReply, json.dumps(failure)).error
        assert (error.code, found) == (code, 1008)
        assert param is None or error.param == param
        await slots_are_free(http.app)


async def test_a_silent_client_does_not_hold_a_stream(connect: Any) -> None:
    async with connect(body_timeout_seconds=0.05) as http:
        (failure,), code = await Socket(http.app).rest()
    assert (failure["error"]["code"], code) == ("request_timeout", 1008)


async def test_an_idle_stream_ends_with_its_state(connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its state; an observation in between puts the end off."""
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
        assert not clock.timers and done["state"].startswith("v1.")


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
        broken = Socket(http.app)
        await broken.start()
        for y in ([1, 2], [666, 2], [3, 2]):
            broken.frame({"y": y})
        broken.frame({"close": True})
        (step, failure, after, done), code = await broken.rest()
        assert (step["index"], after["index"], after["mean"]) == (0, 1, [2, 2])
        assert (failure["error"]["code"], failure["index"], done["refused"], code) == ("out_of_range", 1, 1, 1000)


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


@pytest.mark.parametrize("name", ["linear", "oscillator"])
async def test_saved_and_restored_is_uninterrupted_bit_for_bit(name: str) -> None:
    """Cut at random places, across WS and POST, tokens and a session; the seed and the index go on by themselves."""
    observations, requested = random_observations(24), {"levels": [0.9], "horizon": [0.3], "samples": 2, "model": name}
    rng = random.Random(1)
    async with serving(name, sessions="memory") as http:
        app = http.app
        _, whole, _ = await run(app, observations, seed=11, **requested)
        for session in (None, "session:needle"):
            cuts = [0, *sorted(rng.sample(range(1, 24), 4)), 24]
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
            assert not session or state == f"{session}@24"


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


async def test_time_does_not_run_backwards_across_a_state(connect: Any) -> None:
    async with connect() as http:
        _, _, done = await run(http.app, [(7.0, [1, 2])], return_state=True)
        socket = Socket(http.app)
        await socket.start(state=done["state"])
        socket.frame({"t": 6.0, "y": None})
        failure = read(RowErrorReply, json.dumps(await socket.reply()))
        assert (failure.error.param, failure.error.code) == ("t", "time_not_monotonic")
        await socket.leave()
        body = {"observations": [None], "state": done["state"]}
        for times, param in (([6.0], "times[0]"), (None, "times")):
            reply = await http.post("/filter", json={**body, "times": times})
            assert (reply.status_code, reply.json()["error"]["param"]) == (422, param)


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
