"""Errors of the runtime. The service maps them to HTTP statuses in one table.

Errors about a file or a document are defined with its reader: `BundleError` in bundle/documents.py and `InvalidSystem`
in filters/system.py.
"""

from __future__ import annotations


class InvalidInput(ValueError):
    """An argument, an observation or a state is invalid for the model.

    Attributes:
        message: Names the field and what was expected.
        param: Path of the field, such as `observations[3][0]`, or None if no single field is at fault.
        code: Precise reason, such as `shape_mismatch`.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class RefusedRow(InvalidInput):
    """A live stream rejects a row. The stream does not change and can continue.

    Attributes:
        index: Position among the rows given to this stream, from 0.
        t: Time of the row, or None if it is invalid.
    """

    def __init__(self, error: InvalidInput, t: float | None, index: int = 0) -> None:
        super().__init__(error.message, param=error.param, code=error.code)
        self.t = t
        self.index = index


def not_monotonic(param: str) -> InvalidInput:
    """Return the error for a row whose time is before that of the previous row. `param` is the field of its time."""
    message = f"{param} must not be smaller than the time before it"
    return InvalidInput(message, param=param, code="time_not_monotonic")


class CapacityError(RuntimeError):
    """Memory of the device is exhausted at the moment. The same call may succeed later.

    Attributes:
        message: The capacity that is exhausted.
        retry_after_seconds: Time to wait before another try.
    """

    def __init__(self, message: str, *, retry_after_seconds: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_seconds = retry_after_seconds


class UnsupportedError(ValueError):
    """The bundle cannot run on the chosen device or runtime. The message says what to change."""


def invalid_state() -> InvalidInput:
    """Return the error for an invalid state. Its message is constant, because a reason could help a forger."""
    message = "state: not a state that this server issued for this model and API key, or it has expired."
    return InvalidInput(message, param="state", code="state_invalid")
