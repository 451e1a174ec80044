"""Error responses that the server sends without calling the application. As in the application, they have a request id,
and are logged and counted."""

from __future__ import annotations

import uuid
from http import HTTPStatus

import orjson

from rfa.service.access.request_log import Record, log_request
from rfa.service.errors import STATUS, ServiceError
from rfa.service.http.connection import ConnectionManager


def error_response(manager: ConnectionManager, error: ServiceError, client: tuple[str, int] | None) -> bytes:
    """Count and log an error, and return the bytes of its HTTP/1.1 response. The connection must be closed
    afterwards."""
    status = HTTPStatus(STATUS[type(error)])
    record = Record(id=uuid.uuid4().hex, method="other", status=status.value, client=client, is_complete=True)
    body = orjson.dumps(error.payload())
    record.bytes_out, record.reason = len(body), error.code
    manager.count(error.code)
    manager.metrics.http_requests.labels(record.route, record.method, str(record.status)).inc()
    log_request(record)
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
