"""What is known of one request or one WebSocket connection while it runs: numbers and names, never what was sent."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

from starlette.requests import HTTPConnection

# Of the request that the running code works for; "" outside of one. Log lines take it from here.
request_id: ContextVar[str] = ContextVar("request_id", default="")


@dataclass(slots=True, kw_only=True)
class Record:
    """Filled in by the boundary; `model` and what follows it by the routes, as soon as they know."""

    id: str
    method: str
    route: str = "other"
    status: int | None = None
    is_complete: bool = False
    is_streamed: bool = False
    tenant: str = ""
    trace_id: str | None = None
    started: float = field(default_factory=time.perf_counter)
    seconds_to_first_body: float | None = None
    bytes_in: int = 0
    bytes_out: int = 0
    frames_in: int = 0
    frames_out: int = 0
    close_code: int | None = None

    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    finish_reasons: tuple[str, ...] = ()
    observations: int | None = None

    @property
    def seconds(self) -> float:
        """Since the request came."""
        return time.perf_counter() - self.started

    def generated(self, *, input_tokens: int, output_tokens: int, finish_reasons: Sequence[str]) -> None:
        """A generation ended."""
        self.input_tokens = input_tokens
        self.output_tokens = output_tokens
        self.finish_reasons = tuple(finish_reasons)

    def filtered(self, model: str, observations: int) -> None:
        """A filter took so many observations; on a live stream call it again with each further count."""
        self.model = model
        self.observations = (self.observations or 0) + observations


def record_of(connection: HTTPConnection) -> Record:
    """The record of a request or WebSocket; one that nobody reads where no boundary stands around the application."""
    record = connection.scope.get("state", {}).get("record")
    return record if isinstance(record, Record) else Record(id="", method=connection.scope.get("method", "other"))
