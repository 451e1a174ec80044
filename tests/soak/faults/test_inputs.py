"""NaN, giant, deep and broken inputs, one after the other, while a good client of the same process goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.soak.faults.cast import BUNDLES, Truths, stream_clients
from tests.soak.faults.detect import leaked
from tests.soak.faults.findings import Findings
from tests.soak.faults.server import Server
from tests.waiting import PATIENCE

MAX_BODY, MAX_MESSAGE, MAX_DEPTH = 100_000, 20_000, 32
DIGITS = 4_000

# What is wrong with an observation, whichever way it comes.
VALUES: Mapping[str, str] = {
    "NaN": "NaN",
    "infinity": "-Infinity",
    "beyond every float": "1e999",
    "beyond every filter": "1e308",
    "a number of thousands of digits": "9" * DIGITS,
    "text": '"nan"',
    "true": "true",
    "deep": "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
    "deeper than any stack": "[" * 9_000,
    "many components": json.dumps([0.0] * 1_000)[1:-1],
    "a lone surrogate": '"\\ud800"',
    "a NUL": '"\\u0000"',
    "not UTF-8": "\udcff",
}


def body_of(value: str) -> bytes:
    return f'{{"observations": [[0.5, {value}]]}}'.encode(errors="surrogateescape")


def frame_of(value: str) -> str | bytes:
    text = f'{{"y": [0.5, {value}]}}'
    # websockets itself would not send the text: as bytes it is a frame that the server does not take either.
    return text if text.isascii() else text.encode(errors="surrogateescape")


BODIES: Mapping[str, bytes] = {
    **{name: body_of(value) for name, value in VALUES.items()},
    "empty": b"",
    "giant": b'{"observations": [' + b"null, " * MAX_BODY,
}
FRAMES: Mapping[str, str | bytes] = {
    **{name: frame_of(value) for name, value in VALUES.items()},
    "empty": "",
    "binary": b'{"y": null}',
    "giant": " " * (MAX_MESSAGE + 1),
    "time backwards": '{"t": -1e12, "y": null}',
}
POLICY = 1008


def check_error(document: dict) -> None:
    assert set(document) == {"error"} and set(document["error"]) == {"message", "type", "param", "code"}
    assert len(json.dumps(document)) < 1_000  # nothing of the input comes back


async def offer_bodies(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
        for name, body in BODIES.items():
            reply = await client.post("/filter", content=body, headers={"content-type": "application/json"})
            assert 400 <= reply.status_code < 500, (name, reply.status_code)
            check_error(reply.json())


async def offer_frames(url: str) -> None:
    """Each as the third frame of a stream: the two before it were right, and were answered."""
    address = f"ws{url.removeprefix('http')}/filter/stream"
    for name, frame in FRAMES.items():
        async with connect(address, compression=None, proxy=None, open_timeout=PATIENCE, close_timeout=1) as socket:
            for text in ('{"model": "linear"}', '{"y": [0.5, 0.5]}'):
                await socket.send(text)
                assert "error" not in json.loads(await socket.recv()), name
            await socket.send(frame)
            check_error(json.loads(await socket.recv()))
            with pytest.raises(ConnectionClosed) as closed:
                await socket.recv()
            assert closed.value.rcvd is not None and closed.value.rcvd.code == POLICY, name


@pytest.fixture
def truths(filter_truths: Truths) -> Truths:
    return Truths({"linear": filter_truths.series["linear"]}, [])


@pytest.mark.slow
def test_bad_inputs_are_refused_and_cost_nobody(tmp_path: Path, truths: Truths) -> None:
    findings = Findings()
    stop = asyncio.Event()

    async def run(url: str) -> None:
        (good,) = stream_clients(1, ["token"], lambda: url, truths, findings)
        going_on = asyncio.create_task(good.survive(stop))
        await asyncio.gather(offer_bodies(url), offer_frames(url))
        stop.set()
        await going_on

    limits: dict[str, Any] = {"max_body_bytes": MAX_BODY, "max_message_bytes": MAX_MESSAGE, "max_json_depth": MAX_DEPTH}
    with Server(tmp_path, bundles=BUNDLES[0], processes=1, **limits) as server:
        asyncio.run(run(server.url))
        assert leaked(server) == {}
        statuses = server.labelled("http_requests_total", "status")
        assert not [status for status in statuses if status.startswith("5")], statuses
        assert server.end() == 0
        assert "Traceback" not in server.log and " ERROR " not in server.log, server.log
    assert not findings.mistakes and "connections lost" not in findings.counts, findings
    assert findings.counts["steps"] > 0
