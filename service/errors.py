"""Errors that are reported to clients. One table defines their HTTP statuses, and all have the same JSON format.

    {"error": {"message": "...", "type": "invalid_request", "param": "parameters.top_p", "code": "less_than_equal"}}

`message` names the field and says what was expected. It does not repeat values that the client sent. `type` is the
class of the error and determines the status. `code` is the precise reason, and `param` is the path of the field or
null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from rfa.runtime.errors import CapacityError, InvalidInput
from rfa.service.schemas.base import Reply, says


@dataclass(frozen=True)
class ErrorBody(Reply):
    """Description of an error."""

    message: Annotated[str, says("Description of the error, which names the field and says what was expected.")]
    type: Annotated[str, says("Class of the error, which determines the HTTP status.")]
    param: Annotated[str | None, says("Path of the request field that caused the error; null if there is none.")]
    code: Annotated[str, says("Precise reason for the error, as an identifier.")]


@dataclass(frozen=True)
class ErrorReply(Reply):
    """JSON format of errors, which is also used in streams."""

    error: Annotated[ErrorBody, says("Description of the error and of its cause.")]


@dataclass(frozen=True)
class RowErrorReply(ErrorReply):
    """Reply of a stream to a rejected row. The state is not changed, and the stream continues."""

    index: Annotated[int, says("Position of the row in this request or stream, counted from 0.")]
    t: Annotated[float | None, says("Time of the row; null if the row has no valid time.")]


class ServiceError(Exception):
    """Base class of errors that are reported to the client.

    Args:
        message: Description of the error. It names the field and says what was expected.
        param: Path of the request field that caused the error.
        code: Precise reason for the error. The default is `default_code` or the type of the error.
    """

    default_code: ClassVar[str | None] = None
    extra_headers: ClassVar[Mapping[str, str]] = {}

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.default_code or ERROR_TYPES[type(self)]

    def payload(self) -> ErrorReply:
        """Return the error in its JSON format."""
        return ErrorReply(ErrorBody(self.message, ERROR_TYPES[type(self)], self.param, self.code))

    def headers(self) -> dict[str, str]:
        """Return additional response headers."""
        return dict(self.extra_headers)


class InvalidRequest(ServiceError):
    """The body is not valid, or a field has an invalid value."""

    default_code = "invalid_value"


class Unauthorized(ServiceError):
    """The API key is missing or unknown."""

    default_code = "invalid_api_key"

    extra_headers: ClassVar[Mapping[str, str]] = {"WWW-Authenticate": "Bearer"}


class Forbidden(ServiceError):
    """Pages of this origin are not allowed to send requests to the server."""


class NotFound(ServiceError):
    """The path or the model does not exist."""


class MethodNotAllowed(ServiceError):
    """The path does not accept this method."""

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow

    def headers(self) -> dict[str, str]:
        return {"Allow": self.allow}


class RequestTimeout(ServiceError):
    """The headers or the body arrived too slowly."""

    extra_headers: ClassVar[Mapping[str, str]] = {"Connection": "close"}


class Conflict(ServiceError):
    """The session already exists, is not at the step that the request expects, or cannot be decrypted."""

    default_code = "state_conflict"


class MalformedRequest(ServiceError):
    """The request is not valid HTTP."""


class UpgradeRequired(ServiceError):
    """The WebSocket version is not supported."""

    extra_headers: ClassVar[Mapping[str, str]] = {"Upgrade": "websocket", "Sec-WebSocket-Version": "13"}


class HeadersTooLarge(ServiceError):
    """The request line and headers are too large, or there are too many headers."""


class PayloadTooLarge(ServiceError):
    """The body is too large, or needs too much memory."""

    # The rest of the body is not read, so the connection cannot carry another request.
    extra_headers: ClassVar[Mapping[str, str]] = {"Connection": "close"}


class UnsupportedMediaType(ServiceError):
    """The path does not accept the Content-Type or Content-Encoding of the body."""


class MisdirectedRequest(ServiceError):
    """The server does not accept the host name in the Host header."""

    default_code = "host_not_allowed"


class Overloaded(ServiceError):
    """The queue or the memory for requests is full, or a quota is exhausted. The client can try again later."""

    def __init__(self, message: str, *, retry_after_seconds: int, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after_seconds = retry_after_seconds

    def headers(self) -> dict[str, str]:
        return {"Retry-After": str(self.retry_after_seconds)}


class NotReady(ServiceError):
    """The bundles are not loaded yet, the engine is stalled, or the server is shutting down."""

    extra_headers: ClassVar[Mapping[str, str]] = {"Retry-After": "1"}


class EngineFailure(ServiceError):
    """The output of the model for this request cannot be used. Other requests are not affected."""

    # Without this header, OpenAI's clients would send the request two more times, and it would fail again.
    extra_headers: ClassVar[Mapping[str, str]] = {"x-should-retry": "false"}


class InternalError(ServiceError):
    """The server failed unexpectedly."""


# HTTP status and `type` of each class.
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


# Conversion of the errors of the runtime.
_RUNTIME_ERRORS: dict[type[Exception], Callable[[Any], ServiceError]] = {
    InvalidInput: lambda error: InvalidRequest(error.message, param=error.param, code=error.code),
    CapacityError: lambda error: Overloaded(error.message, retry_after_seconds=error.retry_after_seconds),
}
# Exceptions that have a status. All others are failures of the server; they are logged and reported with status 500.
NAMED: tuple[type[Exception], ...] = (ServiceError, *_RUNTIME_ERRORS)


def as_service_error(error: BaseException) -> ServiceError:
    """Return the error to report for an exception. Unexpected exceptions become an `InternalError` without details."""
    if isinstance(error, ServiceError):
        return error
    for kind, convert in _RUNTIME_ERRORS.items():
        if isinstance(error, kind):
            return convert(error)
    return InternalError("The server failed to process this request; see the log of the server for the cause.")
