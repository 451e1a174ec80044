"""Streams that forgive: late rows taken exactly, refused rows answered, over WebSocket and HTTP."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from rfa.service.engine.filter.recurrent_job import MOST_REFUSED
from rfa.service.errors import RowErrorReply
from rfa.service.schemas.filter_replies import FilterDone, LateStep
from tests.service.live import refusal, serving
from tests.service.replies import read
from tests.service.stream_socket import Socket, random_observations, run, slots_are_free

pytestmark = pytest.mark.anyio
WINDOW = {"late": {"window": 6.0}}


def shuffled(draw: random.Random, rows: Sequence[Any], length: float) -> list[Any]:
    """In an order in which each comes at most `length` after it is due."""
    return sorted(rows, key=lambda row: row[0] + (draw.uniform(0, length) if draw.random() < 0.4 else 0.0))


def of_order(step: dict[str, Any]) -> dict[str, Any]:
    """A step without the marks of a late row and without its state."""
    return {name: step[name] for name in step if name not in ("late", "recomputed", "state", "warnings", "weights")}


def summary(done: dict[str, Any]) -> dict[str, Any]:
    return {name: done[name] for name in done if name not in ("state", "refused", "timings", "seed")}


async def posted(http: httpx.AsyncClient, rows: Sequence[Any], **request: Any) -> tuple[list[Any], dict[str, Any]]:
    """The lines of an NDJSON stream, and its last one."""
    body = {"times": [t for t, _ in rows], "observations": [y for _, y in rows], "stream": True, "seed": 3, **request}
    reply = await http.post("/filter", json=body)
    assert reply.status_code == 200, reply.text
    *lines, done = map(json.loads, reply.text.splitlines())
    read(FilterDone, json.dumps(done))
    return lines, done


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
async def test_a_live_stream_in_any_order_is_the_ordered_one(seed: int) -> None:
    """Cut in between, with bad frames in between: the last state and the summary are those of the ordered stream."""
    rows, draw = random_observations(40), random.Random(seed)
    options: dict[str, Any] = {"model": "linear", "horizon": [0.3], "samples": 2, "alarm": {"rate": 0.1}}
    async with serving("linear") as http:
        _, expected, end = await run(http.app, rows, seed=3, return_state=True, **options)
        came, cut = shuffled(draw, rows, 6.0), draw.randrange(1, 39)
        ready, first, done = await run(http.app, came[:cut], seed=3, return_state=True, **options, **WINDOW)
        socket = Socket(http.app)
        ready = await socket.start(state=done["state"], return_state=True, **options, **WINDOW)
        assert ready.index == cut
        for t, y in came[cut:]:
            socket.text(draw.choice(["{", '{"t": -100, "y": null}', '{"y": [1]}']))
            socket.frame({"t": t, "y": y})
        socket.frame({"close": True})
        (*second, last), _ = await socket.rest()
        steps = first + [frame for frame in second if "error" not in frame]
        assert last["refused"] == 40 - cut and any("late" in step for step in steps)
        for number, ((t, _), step) in enumerate(zip(came, steps, strict=True)):
            before = sum(other <= t for other, _ in came[:number])
            assert (step["t"], step["index"], step.get("recomputed", 0)) == (t, before, number - before)
            if "late" in step:
                read(LateStep, json.dumps(step))
            if {other for other, _ in came[: number + 1]} >= {other for other, _ in rows if other <= t}:
                assert of_order(step) == expected[before]
        _, after, _ = await run(http.app, [(30.0, [1.0, 1.0])], state=last["state"], **options)
        _, same, _ = await run(http.app, [(30.0, [1.0, 1.0])], state=end["state"], **options)
        assert after == same
        _, steps, whole = await run(http.app, came, seed=3, **options, **WINDOW)
        assert summary(whole) == summary(end)
        await slots_are_free(http.app)


async def test_http_takes_late_rows_as_the_live_stream_does() -> None:
    rows, draw = random_observations(60), random.Random(4)
    came = shuffled(draw, rows, 6.0)
    async with serving("linear") as http:
        lines, done = await posted(http, came, model="linear", return_state=True, **WINDOW)
        _, steps, _ = await run(http.app, came, seed=3, model="linear", **WINDOW)
        assert lines == steps and sum("late" in line for line in lines) > 5
        _, ordered = await posted(http, rows, model="linear", return_state=True)
        assert summary(done) == summary(ordered)
        for fields in (["mean"], ["anomaly", "std"]):
            selected, _ = await posted(http, came, model="linear", fields=fields, **WINDOW)
            names = {"index", "t", "late", "recomputed", *fields}
            assert selected == [{name: line[name] for name in line if name in names} for line in lines]
        again, _ = await posted(http, [(20.1, [0.0, 0.0]), (19.9, None)], model="linear", state=done["state"], **WINDOW)
        assert again[0]["index"] == 60 and again[1]["late"]


async def test_a_recorded_stream_goes_on_after_bad_rows(connect: Any) -> None:
    rows: list[Any] = [
        (0, [1, 2]), (2, [3, 4]), (1, [90, 90]), ("3", [90, 90]), (3, [90]), (4, [90, "off"]), (5, None), (6, [5, 6]),
    ]  # fmt: skip
    async with connect() as http:
        lines, done = await posted(http, rows)
        errors = [read(RowErrorReply, json.dumps(line)) for line in lines if "error" in line]
        assert [(error.index, error.t, error.error.code, error.error.param) for error in errors] == [
            (2, 1.0, "time_not_monotonic", "times[2]"), (3, None, "float_type", "times[3]"),
            (4, 3.0, "shape_mismatch", "observations[4]"), (5, 4.0, "float_type", "observations[5][1]"),
        ]  # fmt: skip
        steps = [line for line in lines if "error" not in line]
        assert [line["index"] for line in lines] == [0, 1, 2, 3, 4, 5, 2, 3]
        good = [row for row in rows if row[0] in (0, 2, 5, 6)]
        assert (steps, done["refused"]) == ((await posted(http, good))[0], 4)
        biased = [(0, [1, 2]), (1, [-1e12, 0]), (2, [3, 4]), (3, [5, 6])]
        lines, _ = await posted(http, biased, bias=[None, [1e12, 0.0], [1.0], [1.0, 1.0]])
        errors = [read(RowErrorReply, json.dumps(line)) for line in lines if "error" in line]
        assert [(error.index, error.error.param) for error in errors] == [(1, "bias[1]"), (2, "bias[2]")]
        assert [line["mean"] for line in lines if "mean" in line] == [[1, 2], [2.5, 3.5]]
        bad = [(0, [1, 2]), *[(-1, None)] * 150, (9, [1, 2])]
        lines, done = await posted(http, bad, return_state=True)
        assert (len(lines), done["finish_reason"], done["refused"]) == (1 + MOST_REFUSED, "refused", MOST_REFUSED)
        assert done["state"] is not None
        body = {"times": [t for t, _ in rows], "observations": [y for _, y in rows]}
        assert (await refusal(http, body))[0] == 422
        assert (await refusal(http, {**body, "stream": True, "smooth": True}))[0] == 422
        assert (await refusal(http, {**body, "stream": True, "noise": [1.0]}))[0] == 422


@pytest.mark.parametrize(
    ("request_fields", "param", "code"),
    [
        ({"late": {"window": 0}}, "late.window", None), ({"late": {"window": "soon"}}, "late.window", "invalid_window"),
        ({"late": {}}, "late.window", "missing"), ({"late": {"window": 1.0}, "stream": False}, "late", "needs_stream"),
        ({"late": {"window": 1.0}, "smooth": True}, "late", "needs_stream"), ({"late": 5}, "late", "model_type"),
    ],
)  # fmt: skip
async def test_wrong_windows_are_named(
    connect: Any, request_fields: dict[str, Any], param: str, code: str | None
) -> None:
    async with connect() as http:
        body = {"observations": [[1, 2]], "stream": True, **request_fields}
        status, error = await refusal(http, body)
        assert status == 422 and error["param"] == param and code in (None, error["code"])


async def test_draining_ends_a_stream_behind_its_late_row(connect: Any) -> None:
    """Its state is that after the late row."""
    async with connect() as http:
        socket = Socket(http.app)
        await socket.start(return_state=True, late={"window": "5min"})
        for t in range(100):
            socket.frame({"t": t, "y": [t, 1]})
            await socket.reply()
        socket.frame({"t": 1.5, "y": [1000, 1]})
        late = await socket.reply()
        assert (late["index"], late["late"], late["recomputed"]) == (2, True, 98)
        await asyncio.to_thread(http.app.state.engine.drain, 1)
        (done,), _ = await socket.rest()
        assert (done["reason"], done["steps"], done["state"][:3]) == ("drain", 101, "v1.")
