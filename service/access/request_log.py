"""Write one log line for each request or WebSocket. It contains numbers and names, but not the content of requests."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import HTTPConnection

access_logger = logging.getLogger("rfa.access")
# Id of the current request for log lines. It is "" outside of a request.
request_id: ContextVar[str] = ContextVar("request_id", default="")


@dataclass(slots=True, kw_only=True)
class Record:
    """Properties of a request or WebSocket for the log. `Boundary` sets the first fields, and the routes set the fields
    from `model` on.

    Attributes:
        id: Id of the request.
        method: HTTP method.
        client: Address and port of the client.
        reason: Error code of a request that no route handled.
        route: Path of the route that handles the request, or "other".
        status: HTTP status of the reply. None before it is sent.
        is_complete: Whether the reply has been sent completely.
        is_streamed: Whether the body of the reply was sent in several parts.
        tenant: Stable id of the API key, or "" without a key.
        trace_id: Id of the trace. None if tracing is disabled.
        started: Value of `time.perf_counter` at the start of the request.
        seconds_to_first_body: Time from the start to the first byte of the body of the reply.
        bytes_in, bytes_out: Number of bytes in the bodies of the request and the reply, or in WebSocket messages.
        frames_in, frames_out: Number of WebSocket messages that were received and sent.
        close_code: Code with which the WebSocket was closed.
        model: Name of the model.
        input_tokens, output_tokens: Number of tokens in the prompts and in the generated texts.
        finish_reasons: Reasons why the texts or series ended.
        observations: Number of observations in the request.
    """

    id: str
    method: str
    client: tuple[str, int] | None = None
    reason: str | None = None
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
        """Seconds since the request started."""
        return time.perf_counter() - self.started

    def generated(self, *, input_tokens: int, output_tokens: int, finish_reasons: Sequence[str]) -> None:
        """Record the numbers of tokens and the finish reasons of a completed generation."""
        self.input_tokens = input_tokens
        self.output_tokens = output_tokens
        self.finish_reasons = tuple(finish_reasons)

    def filtered(self, model: str, observations: int) -> None:
        """Add to the number of filtered observations."""
        self.model = model
        self.observations = (self.observations or 0) + observations


def log_request(record: Record, path: str | None = None) -> None:
    """Write the log line of a finished request.

    Args:
        path: Path of the request. It is only set for requests without a route.
    """
    if not access_logger.isEnabledFor(logging.INFO):
        return
    fields: dict[str, Any] = {
        "id": record.id,
        "method": record.method,
        "route": record.route,
        "path": path,
        "status": record.status,
        "reason": record.reason,
        "complete": record.is_complete,
        "ms": round(record.seconds * 1000, 3),
        "bytes_in": record.bytes_in,
        "bytes_out": record.bytes_out,
        "client": record.client[0] if record.client else None,
        "tenant": record.tenant or None,
        "trace": record.trace_id,
        "model": record.model,
        "input_tokens": record.input_tokens,
        "output_tokens": record.output_tokens,
        "finish_reason": ",".join(record.finish_reasons) or None,
        "observations": record.observations,
    }
    if record.method == "WEBSOCKET":
        fields |= {"frames_in": record.frames_in, "frames_out": record.frames_out, "close_code": record.close_code}
    access_logger.info("request", extra={"fields": {**without_nulls(fields), "status": record.status}})


def without_nulls(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields whose value is not None."""
    return {name: value for name, value in fields.items() if value is not None}


def record_of(connection: HTTPConnection) -> Record:
    """Return the record of a request or WebSocket. If the application has no `Boundary`, return a new record that is
    not logged."""
    record = connection.scope.get("state", {}).get("record")
    return record if isinstance(record, Record) else Record(id="", method=connection.scope.get("method", "other"))
