"""Errors of the runtime. The service maps them to HTTP statuses in one table.

Errors of a file or a document are defined with their readers: `BundleError` (bundle/documents.py) and `InvalidSystem`
(filters/system.py).
"""

from __future__ import annotations


class InvalidInput(ValueError):
    """An argument, an observation or a state that a model cannot take.

    Attributes:
        message: names the field and what was expected.
        param: path of the field, such as `observations[3][0]`; None if no single field is at fault.
        code: the precise reason, such as `shape_mismatch`.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class RefusedRow(InvalidInput):
    """A row that a live stream refuses. It does not change the stream, which goes on.

    Attributes:
        index: position among the rows given to this stream, from 0.
        t: its time; None if it has no valid one.
    """

    def __init__(self, error: InvalidInput, t: float | None, index: int = 0) -> None:
        super().__init__(error.message, param=error.param, code=error.code)
        self.t = t
        self.index = index


def not_monotonic(param: str) -> InvalidInput:
    """The error for a row whose time is before that of the row before it; `param` is the field of its time."""
    message = f"{param} must not be smaller than the time before it"
    return InvalidInput(message, param=param, code="time_not_monotonic")


class CapacityError(RuntimeError):
    """Memory of the device is taken at this moment: the same call may succeed later.

    Attributes:
        message: the capacity that is exhausted.
        retry_after_seconds: when to try again.
    """

    def __init__(self, message: str, *, retry_after_seconds: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_seconds = retry_after_seconds


class UnsupportedError(ValueError):
    """A bundle that cannot run on the device or runtime that was chosen for it; the message says what to change."""


def invalid_state() -> InvalidInput:
    """The error for an invalid state. It gives no reason, which could help a forger."""
    message = "state: not a state that this server gave out for this model and API key, or it has expired."
    return InvalidInput(message, param="state", code="state_invalid")
