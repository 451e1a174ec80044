"""Refusals of the server itself, before or beside the application: as whole, as numbered and as logged as its own."""

from __future__ import annotations

import uuid
from http import HTTPStatus

import orjson

from rfa.service.access.record import Record, log_exchange
from rfa.service.errors import STATUS, ServiceError
from rfa.service.wire.connection import Wire


def refuse(wire: Wire, error: ServiceError, client: tuple[str, int] | None) -> bytes:
    """A whole HTTP/1.1 response in the one error shape, after which the connection closes; counted and logged."""
    status = HTTPStatus(STATUS[type(error)])
    record = Record(id=uuid.uuid4().hex, method="other", status=status.value, client=client, is_complete=True)
    body = orjson.dumps(error.payload())
    record.bytes_out, record.reason = len(body), error.code
    wire.count(error.code)
    wire.metrics.http_requests.labels(record.route, record.method, str(record.status)).inc()
    log_exchange(record)
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "x-request-id": record.id,
        "x-content-type-options": "nosniff",
        "cache-control": "no-store",
        **{name.lower(): value for name, value in error.headers().items()},
        "connection": "close",
    }
    lines = [f"HTTP/1.1 {status} {status.phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
