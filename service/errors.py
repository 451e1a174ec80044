"""Every way a request can fail: one status table, one shape on the wire.

    {"error": {"message": "...", "type": "invalid_request", "param": "parameters.top_p", "code": "less_than_equal"}}

`message` names the field and what was expected; it never repeats what the client sent. `type` is the class of the
failure and decides the status, `code` the precise reason, `param` the field as a path or null.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from rfa.runtime.errors import CapacityError, InvalidInput
from rfa.service.schemas.base import Reply, says


@dataclass(frozen=True)
class ErrorBody(Reply):
    """What went wrong."""

    message: Annotated[str, says("names the field and what was expected")]
    type: Annotated[str, says("class of the failure, one per status")]
    param: Annotated[str | None, says("the field, as a path")]
    code: Annotated[str, says("the precise reason")]


@dataclass(frozen=True)
class ErrorReply(Reply):
    """The one error shape, of every status and in streams."""

    error: Annotated[ErrorBody, says("what is wrong, and with which field")]


class ServiceError(Exception):
    """A failure with a name, told to the client as it is."""

    default_code = "internal_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.default_code

    def payload(self) -> ErrorReply:
        """The one error shape."""
        return ErrorReply(ErrorBody(self.message, ERROR_TYPES[type(self)], self.param, self.code))

    def headers(self) -> dict[str, str]:
        """Extra response headers of this failure."""
        return {}


class InvalidRequest(ServiceError):
    """The body is not JSON, or a field is not what it must be."""

    default_code = "invalid_value"


class Unauthorized(ServiceError):
    """No API key of this server."""

    default_code = "invalid_api_key"

    def headers(self) -> dict[str, str]:
        return {"WWW-Authenticate": "Bearer"}


class Forbidden(ServiceError):
    """A page of another origin asks for something that is not its to ask for."""

    default_code = "forbidden"


class NotFound(ServiceError):
    """No such path, or no such model."""

    default_code = "not_found"


class MethodNotAllowed(ServiceError):
    """The path exists, the method does not."""

    default_code = "method_not_allowed"

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow

    def headers(self) -> dict[str, str]:
        return {"Allow": self.allow}


class RequestTimeout(ServiceError):
    """The headers or the body came too slowly."""

    default_code = "request_timeout"

    def headers(self) -> dict[str, str]:
        return {"Connection": "close"}


class Conflict(ServiceError):
    """The named session is at another step than this request continues from."""

    default_code = "state_conflict"


class MalformedRequest(ServiceError):
    """The bytes are not HTTP."""

    default_code = "malformed_request"


class UpgradeRequired(ServiceError):
    """A WebSocket of a version that this server does not speak."""

    default_code = "upgrade_required"

    def headers(self) -> dict[str, str]:
        return {"Upgrade": "websocket", "Sec-WebSocket-Version": "13"}


class HeadersTooLarge(ServiceError):
    """The request line and headers are larger than the server reads."""

    default_code = "headers_too_large"


class PayloadTooLarge(ServiceError):
    """The body is larger than the server reads."""

    default_code = "payload_too_large"

    def headers(self) -> dict[str, str]:
        # The rest of the body is never read, so the connection cannot carry another request.
        return {"Connection": "close"}


class UnsupportedMediaType(ServiceError):
    """The body is not declared as what is read: JSON, or a file as it is."""

    default_code = "unsupported_media_type"


class MisdirectedRequest(ServiceError):
    """The Host header has a name that is not this server's."""

    default_code = "host_not_allowed"


class Overloaded(ServiceError):
    """The queue or the memory for requests is full, or a quota is used up; the same request is welcome later."""

    default_code = "overloaded"

    def __init__(self, message: str, *, retry_after_seconds: int, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after_seconds = retry_after_seconds

    def headers(self) -> dict[str, str]:
        return {"Retry-After": str(self.retry_after_seconds)}


class NotReady(ServiceError):
    """Bundles are not loaded, the engine is stalled, or the server is going down."""

    default_code = "not_ready"

    def headers(self) -> dict[str, str]:
        return {"Retry-After": "1"}


class EngineFailure(ServiceError):
    """The model produced something unusable for this request; other requests are untouched."""

    default_code = "engine_error"

    def headers(self) -> dict[str, str]:
        # The same request fails again; OpenAI's clients would send it twice more.
        return {"x-should-retry": "false"}


class InternalError(ServiceError):
    """A fault of the server that has no better name."""


# The one status table: class → (HTTP status, `type` on the wire).
_TABLE: dict[type[ServiceError], tuple[int, str]] = {
    MalformedRequest: (400, "malformed_request"),
    Unauthorized: (401, "unauthorized"),
    Forbidden: (403, "forbidden"),
    NotFound: (404, "not_found"),
    MethodNotAllowed: (405, "method_not_allowed"),
    RequestTimeout: (408, "request_timeout"),
    Conflict: (409, "conflict"),
    PayloadTooLarge: (413, "payload_too_large"),
    UnsupportedMediaType: (415, "unsupported_media_type"),
    MisdirectedRequest: (421, "misdirected_request"),
    InvalidRequest: (422, "invalid_request"),
    UpgradeRequired: (426, "upgrade_required"),
    Overloaded: (429, "overloaded"),
    HeadersTooLarge: (431, "headers_too_large"),
    EngineFailure: (500, "engine_error"),
    InternalError: (500, "internal_error"),
    NotReady: (503, "not_ready"),
}
STATUS: dict[type[ServiceError], int] = {kind: status for kind, (status, _) in _TABLE.items()}
ERROR_TYPES: dict[type[ServiceError], str] = {kind: name for kind, (_, name) in _TABLE.items()}


# Errors of the runtime, as the failures of a request that they are.
_OF_RUNTIME: dict[type[Exception], Callable[[Any], ServiceError]] = {
    InvalidInput: lambda error: InvalidRequest(error.message, param=error.param, code=error.code),
    CapacityError: lambda error: Overloaded(error.message, retry_after_seconds=error.retry_after_seconds),
}
# Exceptions with a status of their own. All others are faults of the server: they are logged, and answered with 500.
NAMED: tuple[type[Exception], ...] = (ServiceError, *_OF_RUNTIME)


def as_service_error(error: BaseException) -> ServiceError:
    """The failure that a client is told of: a bare internal error for an exception without a status."""
    if isinstance(error, ServiceError):
        return error
    for kind, convert in _OF_RUNTIME.items():
        if isinstance(error, kind):
            return convert(error)
    return InternalError("The server failed on this request; the cause is in its log.")
