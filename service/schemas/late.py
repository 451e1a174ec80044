"""Options for late rows of a stream."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from rfa.runtime.errors import InvalidInput
from rfa.runtime.uncertainty.input import LARGEST_HORIZON, window_of
from rfa.service.schemas.base import FieldError, Request


class LateRequest(Request):
    """Options for late rows. After a late row, the results are identical to those of rows that arrive in order."""

    window: Annotated[float, Field(gt=0, le=LARGEST_HORIZON)] | Annotated[str, Field(max_length=32)] = Field(
        description=(
            "Maximum time by which an observation may be older than the newest one, in units of the times, or as a "
            'duration such as "5min" if the times are seconds. At most 512 observations are stored.'
        )
    )

    @model_validator(mode="after")
    def check_window(self) -> Self:
        """Check that the window is a number or a valid duration."""
        _ = self.length
        return self

    @property
    def length(self) -> float:
        """Length of the window in units of the times."""
        try:
            return window_of(self.window)
        except InvalidInput as error:
            raise FieldError(str(error.param), error.message, error.code) from None


Late = Annotated[
    LateRequest | None,
    Field(
        description=(
            "Options for observations that arrive late in a stream. Their steps contain `late` and `recomputed`. If an "
            "observation and its time are equal to those of another one in the window, it is rejected. The state "
            "contains the window. If this field is null, late observations are rejected."
        )
    ),
]
