"""Clients of all kinds; each tells the history what it was answered with, and counts what it must not see."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import orjson
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage

from rfa.benchmarks.load.check import DIGEST_BYTES, SeriesTruth, step_digest
from rfa.benchmarks.load.series import STEP
from tests.soak.connection import Connection, request_bytes
from tests.soak.faults.findings import Findings
from tests.soak.reloads.history import History
from tests.soak.reloads.versions import NAME
from tests.waiting import PATIENCE

# Longer than the supervisor looks at a stopped process before it kills it.
LOSSES = (ConnectionClosed, InvalidHandshake, InvalidMessage, OSError, EOFError)
# Pauses, so that the clients leave the machine to the server.
ONE_SHOT_SECONDS, KEPT_SECONDS, TOKEN_SECONDS, STREAM_SECONDS = 0.02, 0.02, 0.05, 0.05
# Requests on a kept connection, and steps of a token.
KEPT_REQUESTS, TOKEN_STEPS = 100, 40


@dataclass
class Cast:
    """What all clients share.

    Attributes:
        truths: by version.
        ids: versions by what the server calls them in /info.
    """

    port: int
    truths: Mapping[str, SeriesTruth]
    ids: Mapping[str, str]
    history: History
    findings: Findings = field(default_factory=Findings)
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    def see(self, kind: str, version: str | None, began: float) -> None:
        """Take note of a reply."""
        ended = time.monotonic()
        self.findings.counts[kind] += 1
        if version is None:
            self.findings.mistake("number", f"{kind}: an answer of no version")
        elif not self.history.see(version, began, ended):
            self.findings.mistake("version", f"{kind}: {version} at {began:.3f} to {ended:.3f}, out of force")

    def lose(self, kind: str, error: BaseException) -> None:
        """A connection ended without a word: that is a mistake unless a process was harmed."""
        if self.history.may_lose(time.monotonic()):
            self.findings.counts[f"{kind}: lost with its process"] += 1
        else:
            self.findings.mistake("lost", f"{kind}: {type(error).__name__}: {error}")

    def version_of(self, step: Mapping[str, Any], index: int) -> str | None:
        """Which version says so of this step of the series."""
        reported = step_digest(dict(step))
        place = slice(DIGEST_BYTES * index, DIGEST_BYTES * (index + 1))
        return next((version for version, truth in self.truths.items() if truth.digests[place] == reported), None)

    def question(self, begin: int, count: int, **fields: Any) -> dict[str, Any]:
        """A request about a piece of the series."""
        truth = next(iter(self.truths.values()))
        return {
            "model": NAME,
            "levels": [0.9],
            "seed": truth.seed,
            "times": [STEP * index for index in range(begin, begin + count)],
            "observations": list(truth.observations[begin : begin + count]),
            **fields,
        }


def connect_to(cast: Cast) -> Connection:
    """A connection that is opened with its first request."""
    return Connection(f"http://127.0.0.1:{cast.port}")


async def ask(
    connection: Connection, method: str, path: str, document: Any = None, *, last: bool = False
) -> tuple[int, Any]:
    """Status and document of the answer.

    Raises:
        OSError, EOFError: the connection ended first.
    """
    body = b"" if document is None else orjson.dumps(document)
    headers = "Connection: close\r\n" if last else ""
    answer = await connection.ask(request_bytes(method, path, body, headers))
    return answer.status, orjson.loads(answer.body)


async def one_shots(cast: Cast) -> None:
    """A connection for every request."""
    while not cast.stop.is_set():
        connection, began = connect_to(cast), time.monotonic()
        try:
            status, reply = await ask(connection, "POST", "/filter", cast.question(0, 1), last=True)
            take_filtered(cast, "one-shot", status, reply, began)
        except TimeoutError:
            cast.findings.mistake("silence", "one-shot")
        except LOSSES as error:
            cast.lose("one-shot", error)
        finally:
            connection.drop()
        await asyncio.sleep(ONE_SHOT_SECONDS)


async def kept(cast: Cast) -> None:
    """Many requests on a connection, of what is served and of what it answers, in turn."""
    while not cast.stop.is_set():
        connection = connect_to(cast)
        for number in range(KEPT_REQUESTS):
            began = time.monotonic()
            try:
                if number % 2:
                    status, reply = await ask(connection, "GET", "/info")
                    take_info(cast, status, reply, began)
                else:
                    status, reply = await ask(connection, "POST", "/filter", cast.question(0, 1))
                    take_filtered(cast, "kept", status, reply, began)
            except TimeoutError:
                cast.findings.mistake("silence", "kept")
                break
            except LOSSES as error:
                cast.lose("kept", error)
                break
            await asyncio.sleep(KEPT_SECONDS)
        connection.drop()


async def tokens(cast: Cast) -> None:
    """A state that the client holds, continued with each request: by the version that made it, or refused."""
    token, version, position = None, "", 0
    while not cast.stop.is_set():
        connection, began = connect_to(cast), time.monotonic()
        question = cast.question(position, 1, state=token, return_state=True)
        try:
            status, reply = await ask(connection, "POST", "/filter", question, last=True)
            if token is not None and status == 422 and reply["error"]["code"] == "state_invalid":
                (other,) = set(cast.truths) - {version}
                cast.see("token of another version", other, began)
                token, position = None, 0
                continue
            found = take_filtered(cast, "token", status, reply, began, position)
            if token is not None and found != version:
                cast.findings.mistake("mixture", f"a token of {version} was continued by {found}")
            token, version, position = reply.get("state"), found or "", position + 1
            if position == TOKEN_STEPS or token is None:
                token, position = None, 0
        except TimeoutError:
            cast.findings.mistake("silence", "token")
        except LOSSES as error:
            cast.lose("token", error)
        finally:
            connection.drop()
        await asyncio.sleep(TOKEN_SECONDS)


def take_filtered(cast: Cast, kind: str, status: int, reply: Any, began: float, position: int = 0) -> str | None:
    """Judge an answer of /filter with one step; its version."""
    if status != 200:
        cast.findings.mistake(f"status {status}", f"{kind}: {reply.get('error', {}).get('code')}")
        return None
    version = cast.version_of(reply["steps"][0], position)
    cast.see(kind, version, began)
    return version


def take_info(cast: Cast, status: int, reply: Any, began: float) -> None:
    """Judge an answer of /info."""
    if status != 200:
        cast.findings.mistake(f"status {status}", "info")
        return
    cast.see("info", cast.ids.get(reply["bundle_version"]), began)


async def streams(cast: Cast) -> None:
    """Live streams, each over several reloads: it ends with the version that it began with."""
    while not cast.stop.is_set():
        try:
            async with connect(
                f"ws://127.0.0.1:{cast.port}/filter/stream",
                compression=None,
                proxy=None,
                open_timeout=PATIENCE,
                close_timeout=1,
                ping_interval=None,
            ) as socket:
                await _stream(cast, socket)
        except TimeoutError:
            cast.findings.mistake("silence", "stream")
        except LOSSES as error:
            cast.lose("stream", error)


async def _stream(cast: Cast, socket: Any) -> None:
    question = cast.question(0, len(next(iter(cast.truths.values()))))
    began, version = time.monotonic(), None
    await socket.send(orjson.dumps({name: question[name] for name in ("model", "levels", "seed")}).decode())
    await _read(socket)
    for index, (t, y) in enumerate(zip(question["times"], question["observations"], strict=True)):
        if cast.stop.is_set():
            break
        await socket.send(orjson.dumps({"t": t, "y": y}).decode())
        step = await _read(socket)
        found = None if "error" in step else cast.version_of(step, index)
        if index == 0:
            version = found
            cast.see("stream", version, began)
        elif found != version:
            cast.findings.mistake("mixture", f"a stream of {version} went on with {found}: {str(step)[:200]}")
            return
        cast.findings.counts["stream steps"] += 1
        await asyncio.sleep(STREAM_SECONDS)
    await socket.send('{"close": true}')
    last = await _read(socket)
    if not last.get("done"):
        cast.findings.mistake("terminal", str(last)[:200])
    cast.findings.counts["streams ended in order"] += 1
    with suppress(ConnectionClosed):
        await socket.recv()


async def _read(socket: Any) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        document: dict[str, Any] = orjson.loads(await socket.recv())
    return document
