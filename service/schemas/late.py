"""Options for late rows of a stream."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from rfa.runtime.errors import InvalidInput
from rfa.runtime.uncertainty.input import LARGEST_HORIZON, window_of
from rfa.service.schemas.base import FieldError, Request


class LateRequest(Request):
    """Options for late rows. From a late row on, the results equal those of the rows in the order of time."""

    window: Annotated[float, Field(gt=0, le=LARGEST_HORIZON)] | Annotated[str, Field(max_length=32)] = Field(
        description="how much earlier than the newest time a row may be, in units of the times, or as a duration "
        'such as "5min" for times in seconds; at most 512 rows are kept'
    )

    @model_validator(mode="after")
    def check_window(self) -> Self:
        """Check that the window is a duration."""
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
        description="accept late rows of a stream; their steps have `late` and `recomputed`. An exact repeat of a "
        "row in the window is rejected. A state includes the window. null rejects late rows"
    ),
]
