"""Generations in pieces, each from the state of the previous one. A lost piece is requested again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import orjson

from rfa.benchmarks.load.check import TextTruth, digest
from tests.soak.faults.findings import Findings
from tests.soak.faults.streams import RETRY_SECONDS
from tests.waiting import PATIENCE

PIECE_TOKENS = 12
JSON = {"Content-Type": "application/json"}
LOSSES = (aiohttp.ClientError, OSError)


class TextClient:
    """A client that generates a text over as many requests as necessary, and repeats.

    truth: The text in one piece. Its request body has the other options.
    """

    def __init__(self, number: int, url: Callable[[], str], truth: TextTruth, findings: Findings) -> None:
        self.name = f"text-{number}"
        self.is_live = asyncio.Event()
        self._url = url
        self._truth = truth
        self._findings = findings
        self._begin_life()

    def _begin_life(self) -> None:
        self._position = 0
        self._reference: str | None = None

    async def survive(self, stop: asyncio.Event) -> None:
        """Continue, request after request, until stopped."""
        while not stop.is_set():
            if not await self.converse():
                await asyncio.sleep(RETRY_SECONDS)

    async def drain(self, stop: asyncio.Event) -> None:
        """Continue until stopped, and read the current request to its end."""
        while not stop.is_set() and await self.converse():
            pass

    async def converse(self) -> bool:
        """Send one request, and return whether its terminal event arrived."""
        events: list[dict[str, Any]] = []
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(PATIENCE)) as session,
                session.post(f"{self._url()}/generate", data=self._body(), headers=JSON) as response,
            ):
                if response.status != 200:
                    self._note_error((await response.json())["error"])
                    return False
                self.is_live.set()
                # An event is one line; empty lines are ignored.
                async for line in response.content:
                    if line.strip():
                        events.append(orjson.loads(line.removeprefix(b"data:")))
        except TimeoutError:
            self._findings.mistake("silence", f"{self.name} waited {PATIENCE:g} s for an answer")
            return False
        except LOSSES:
            self._findings.counts["texts lost" if events else "texts refused"] += 1
            self._check_tokens(events)
            return False
        finally:
            self.is_live.clear()
        return self._conclude(events)

    def _body(self) -> bytes:
        body = orjson.loads(self._truth.body)
        left = len(self._truth.tokens) - self._position
        body["parameters"]["max_new_tokens"] = min(PIECE_TOKENS, left)
        body["return_state"] = True
        if self._reference is not None:
            body["inputs"] = ""
            body["state"] = self._reference
            del body["parameters"]["truncate"]
        return orjson.dumps(body)

    def _conclude(self, events: list[dict[str, Any]]) -> bool:
        *_, last = events or [{}]
        if "error" in last:
            self._check_tokens(events[:-1])
            self._note_error(last["error"])
            return False
        ended = [event for event in events if event.get("details") is not None]
        if len(ended) != 1 or ended[0] is not last:
            self._findings.mistake("terminal", f"{self.name} got {len(ended)} terminal events")
            return False
        self._findings.counts["terminal events"] += 1
        self._position += self._check_tokens(events)
        self._reference = last.get("state")
        if self._position == len(self._truth.tokens):
            self._findings.counts["texts finished"] += 1
            self._begin_life()
        elif self._reference is None and self._position:
            # A text interrupted before its first token starts again.
            self._findings.mistake("state", f"{self.name} ended at {self._position} without a state")
            self._begin_life()
        return True

    def _check_tokens(self, events: list[dict[str, Any]]) -> int:
        """Check the tokens and return their number."""
        tokens = [event["token"] for event in events if event.get("token") is not None]
        expected = self._truth.tokens[self._position : self._position + len(tokens)]
        if [digest(token) for token in tokens] != list(expected):
            self._findings.mistake("token", f"{self.name} has other tokens from {self._position} on than alone")
        self._findings.counts["tokens"] += len(tokens)
        return len(tokens)

    def _note_error(self, error: dict[str, Any]) -> None:
        if not self._findings.is_transient(self.name, error):
            self._begin_life()
