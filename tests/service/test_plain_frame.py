"""Plain frames: read and written as the parser of RFC 6455 does, and nothing but them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from rfa.service.http.plain_frame import frame_size, lone_text, text_frame

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
