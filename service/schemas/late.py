"""Late rows of a stream."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from rfa.runtime.errors import InvalidInput
from rfa.runtime.uncertainty.input import LARGEST_HORIZON, window_of
from rfa.service.schemas.base import FieldError, Request


class LateRequest(Request):
    """Late rows of a stream, taken exactly: from then on the numbers are those of the rows in the order of time."""

    window: Annotated[float, Field(gt=0, le=LARGEST_HORIZON)] | Annotated[str, Field(max_length=32)] = Field(
        description='how far a row may be before the newest time: in units of the times, or such as "5min" for times '
        "in seconds; at most 512 rows"
    )

    @model_validator(mode="after")
    def check_window(self) -> Self:
        """The window is a time."""
        _ = self.length
        return self

    @property
    def length(self) -> float:
        """The window in units of the times."""
        try:
            return window_of(self.window)
        except InvalidInput as error:
            raise FieldError(str(error.param), error.message, error.code) from None


Late = Annotated[
    LateRequest | None,
    Field(
        description="take late rows of a stream; their steps have `late` and `recomputed`. An exact repeat of a row of "
        "the window is refused; a state has the window. null: late rows are refused"
    ),
]
