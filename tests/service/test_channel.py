"""What a supervisor and its processes say to each other has a bounded size, and what is no message is noticed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rfa.service.process.channel import LONGEST_MESSAGE, LONGEST_REASON, Channel, ChannelError, error_reason

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def conversation() -> AsyncIterator[tuple[Channel, Channel]]:
    ours, theirs = socket.socketpair()
    ends = await Channel.open(ours), await Channel.open(theirs)
    yield ends
    for end in ends:
        end.close()


async def test_the_longest_message_arrives_and_a_longer_one_is_refused_where_it_is_sent() -> None:
    async with conversation() as (ours, theirs):
        frame = len(b'{"kind": "hello", "text": ""}\n')
        longest = "x" * (LONGEST_MESSAGE - frame)
        with pytest.raises(ChannelError):
            await ours.send("hello", text=longest + "x")
        reading = asyncio.create_task(theirs.receive())
        await ours.send("hello", text=longest)
        message = await reading
        assert message is not None and message["text"] == longest
        # Nothing of the one that was refused is on the way.
        await ours.send("serve")
        assert await theirs.receive() == {"kind": "serve"}


@pytest.mark.parametrize(
    "sent",
    [
        b"{\n",
        b"[]\n",
        b"null\n",
        b"{}\n",
        b'{"kind": 1}\n',
        b"\xff\n",
        b"[" * 100_000 + b"\n",
        b"x" * 1_100_000 + b"\n",
    ],
)
async def test_what_is_no_message_is_an_error_of_its_own(sent: bytes) -> None:
    async with conversation() as (ours, theirs):
        ours._writer.write(sent)
        with pytest.raises(ChannelError):
            await theirs.receive()


async def test_the_end_of_the_channel_is_reported() -> None:
    async with conversation() as (ours, theirs):
        ours._writer.write(b'{"kind"')
        ours.close()
        assert await theirs.receive() is None


def test_a_reason_is_one_line_that_fits_into_a_message() -> None:
    assert error_reason(ValueError("a\n  b")) == "a b"
    assert error_reason(KeyError()) == "KeyError"
    assert len(error_reason(ValueError("long " * 1_000_000))) == LONGEST_REASON
