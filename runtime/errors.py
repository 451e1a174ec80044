"""Errors of the runtime. The service maps them to HTTP statuses in one table.

Errors about a file or a document are defined in the module that reads it: `BundleError` in bundle/documents.py and
`InvalidSystem` in filters/system.py.
"""

from __future__ import annotations


class InvalidInput(ValueError):
    """Raised if an argument, an observation or a state is not valid for the model.

    Attributes:
        message: Text that names the field and what was expected.
        param: Path of the invalid field, such as `observations[3][0]`. None if the error does not concern a single
            field.
        code: Reason as an identifier, such as `shape_mismatch`.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class RefusedRow(InvalidInput):
    """Raised if a live stream rejects a row. The stream is not changed and can continue.

    Attributes:
        index: Index of the row among the rows passed to this stream.
        t: Time of the row. None if it is invalid.
    """

    def __init__(self, error: InvalidInput, t: float | None, index: int = 0) -> None:
        super().__init__(error.message, param=error.param, code=error.code)
        self.t = t
        self.index = index


def not_monotonic(param: str) -> InvalidInput:
    """Return the error for a row whose time is before that of the previous row.

    Args:
        param: Name of the field that contains the time.
    """
    message = f"{param} must not be smaller than the previous time"
    return InvalidInput(message, param=param, code="time_not_monotonic")


class CapacityError(RuntimeError):
    """Raised if the memory of the device is currently exhausted. The same call may succeed later.

    Attributes:
        message: Text that names the capacity that is exhausted.
        retry_after_seconds: Seconds to wait before the next attempt.
    """

    def __init__(self, message: str, *, retry_after_seconds: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_seconds = retry_after_seconds


class UnsupportedError(ValueError):
    """Raised if the selected device or runtime does not support the bundle. The message states what to change."""


def invalid_state() -> InvalidInput:
    """Return the error for an invalid state. Its message is constant, because a reason could help a forger."""
    message = "state: not a state that this server issued for this model and API key, or it has expired."
    return InvalidInput(message, param="state", code="state_invalid")
