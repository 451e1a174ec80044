"""Frames of live streams on a real socket: the short way, without a task for each, answers as the long one does."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.sync.client import connect
from websockets.uri import parse_uri

from rfa.service.engine.filter.stream import StreamJob
from rfa.service.errors import InvalidRequest, RowErrorReply, ServiceError
from rfa.service.http.plain_frame import frame_size, lone_text, text_frame
from rfa.service.routes.stream_frames import parse_observation
from rfa.service.schemas.stream_requests import StreamObservation
from rfa.service.websocket import JsonSocket
from tests.service.live import Live, opened, running
from tests.service.replies import read
from tests.waiting import PATIENCE, wait_until

BUNDLES = Path(__file__).parents[2] / "bundles"


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
        for start in range(0, 160, 40):
            client.send(*[masked(b'{"t": %d, "y": [1, 2]}' % t) for t in range(start, start + 40)])
            assert [client.reply()["t"] for _ in range(40)] == list(range(start, start + 40))
    assert max(unanswered) <= 4


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


CLOSE = '{"close": true}'


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with running() as live:
        yield live


def test_a_crowd_of_real_clients_gets_replies_in_order_and_leaves_nothing(server: Live) -> None:
    url = f"ws://127.0.0.1:{server.port}/filter/stream"
    with connect(url, open_timeout=PATIENCE) as client:
        for frame in ("{}", *(json.dumps({"t": i, "y": [i, 0]}) for i in range(200)), CLOSE):
            client.send(frame)
        _, *steps, done = map(json.loads, client)
        assert [step["index"] for step in steps] == list(range(200)) and done["steps"] == 200
        assert client.protocol.close_code == 1000
    crowd = [RawClient(server) for _ in range(20)]
    for one in crowd:
        assert one.ask(masked(b"{}"))["ready"] and one.ask(masked(b'{"y": [1, 2]}'))["index"] == 0
    engine = server.app.state.engine
    wait_until(lambda: engine.pool_slots_in_use == 20)
    for one in crowd:
        one.close()
    wait_until(lambda: not engine.pool_slots_in_use and not engine._scheduler.streams)


def errors() -> list[object]:
    """Every refusal that lives."""
    return [thing for thing in gc.get_objects() if issubclass(type(thing), ServiceError)]


@pytest.mark.parametrize(
    "frames", [['{"levels":["a"]}'], ["{"], ["{}", '{"y":["a"]}', CLOSE], ["{}", "{", CLOSE], ['{"model":"no"}']]
)
def test_a_refused_frame_is_gone_with_its_stream(server: Live, frames: list[str]) -> None:
    """And not only once the collector comes by: it counts objects, of which a document of megabytes may be one."""
    gc.collect()
    gc.disable()
    before = {id(error) for error in errors()}  # examples in the interface's document
    try:
        with connect(f"ws://127.0.0.1:{server.port}/filter/stream", open_timeout=PATIENCE) as client:
            for frame in frames:
                client.send(frame)
            answers = []
            with suppress(ConnectionClosed):
                answers.extend(json.loads(answer) for answer in client)
        assert any("error" in answer for answer in answers)
        wait_until(lambda: {id(error) for error in errors()} <= before)
    finally:
        gc.enable()


def test_a_frame_that_was_taken_is_not_kept(server: Live) -> None:
    """Else each idle stream held as much as its last frame had, whatever that was worth to the server."""
    with connect(f"ws://127.0.0.1:{server.port}/filter/stream", compression=None, open_timeout=PATIENCE) as client:
        client.send("{}" + " " * 10_000)
        assert json.loads(client.recv())["ready"]
        frames = [thing for thing in gc.get_objects() if type(thing) is Frame]
        assert frames and not any(len(frame.data) >= 10_000 for frame in frames)


# Plain frames: read and written as the parser of RFC 6455 does, and nothing but them.


LENGTHS = [0, 1, 125, 126, 127, 65_535]


@given(st.one_of(st.binary(max_size=300), st.sampled_from(LENGTHS).map(bytes)))
def test_a_text_frame_is_read_and_written_as_the_parser_does(payload: bytes) -> None:
    frame = Frame(Opcode.TEXT, payload)
    sent = frame.serialize(mask=True)
    assert lone_text(sent) == payload
    assert len(sent) == frame_size(len(payload))
    assert text_frame(payload) == frame.serialize(mask=False)


def test_a_long_frame_is_written_but_not_read() -> None:
    payload = bytes(65_536)
    sent = Frame(Opcode.TEXT, payload).serialize(mask=True)
    assert lone_text(sent) is None and len(sent) == frame_size(len(payload))
    assert text_frame(payload) == Frame(Opcode.TEXT, payload).serialize(mask=False)


@pytest.mark.parametrize("length", LENGTHS)
def test_anything_else_is_the_parser_s(length: int) -> None:
    text = Frame(Opcode.TEXT, bytes(length)).serialize(mask=True)
    others = [text[:-1], text + b"\x81", text + text, b""]
    others += [bytes([first]) + text[1:] for first in range(256) if first != 0x81]  # other kinds, parts, reserved bits
    others.append(text_frame(bytes(length)))  # not masked
    assert [lone_text(other) for other in others] == [None] * len(others)


def test_a_length_longer_than_it_need_be_is_the_parser_s() -> None:
    assert lone_text(b"\x81\xfe\x00\x05" + bytes(4) + b"hello") is None
    assert lone_text(b"\x81\xff" + (5).to_bytes(8, "big") + bytes(4) + b"hello") is None


@given(st.binary(max_size=20))
def test_any_bytes_are_read_or_left(data: bytes) -> None:
    text = lone_text(data)
    assert text is None or len(data) == frame_size(len(text))
