"""Alarm options in requests to /filter and /filter/stream."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from rfa.runtime.errors import InvalidInput
from rfa.runtime.uncertainty.alarms import (
    LARGEST_RATE,
    MOST_QUIET,
    RATE_FORM,
    RATE_PATTERN,
    Alarm,
    Direction,
    Rule,
    alarm_of,
)
from rfa.runtime.uncertainty.input import LARGEST_OBSERVATION, LARGEST_TIME
from rfa.runtime.uncertainty.mute import MOST_WINDOWS
from rfa.service.neutral import OneOf
from rfa.service.schemas.base import FieldError, Request

Limit = Annotated[float, Field(ge=-LARGEST_OBSERVATION, le=LARGEST_OBSERVATION)]
Moment = Annotated[float, Field(ge=-LARGEST_TIME, le=LARGEST_TIME)]


class AlarmRequest(Request):
    """Options for alarms: the rate, and conditions on the observations.

    An observation raises an alarm if its tail probability, estimated from the earlier observations of its stream, is at
    most the rate. Alarms have the requested rate if the stream does not change.
    """

    rate: Annotated[
        Annotated[float, Field(gt=0, le=LARGEST_RATE)] | Annotated[str, Field(pattern=RATE_PATTERN, max_length=32)],
        OneOf(RATE_FORM),
    ] = Field(
        description=(
            "Requested alarm rate: a fraction of the observations, such as 0.001, or a number per second, minute, "
            'hour, day, week or month (30.44 days), such as "1/day". A rate per unit of time requires times in seconds.'
        )
    )
    direction: Direction = Field(
        default="both", description="Direction of the deviations from the forecast that may raise an alarm."
    )
    min_deviation: float = Field(
        default=0.0,
        ge=0,
        le=LARGEST_OBSERVATION,
        description="Minimum distance between the observed value and the forecast for an alarm.",
    )
    range: Annotated[list[Limit | None], Field(min_length=2, max_length=2)] | None = Field(
        default=None,
        description=(
            "Lowest and highest ordinary value; null means no limit. Every value outside this range raises an alarm. "
            "Cannot be combined with `input`."
        ),
    )
    quiet: int = Field(
        default=0,
        ge=0,
        le=MOST_QUIET,
        description=(
            "Number of observations after an alarm during which only a much rarer observation raises another alarm: "
            "the logarithm of its tail probability must be more than 1.1 times that of the last alarm."
        ),
    )

    rules: list[Rule] = Field(
        default=["value", "stretch", "standstill", "gap"],
        min_length=1,
        max_length=4,
        description=(
            "Rules that may raise an alarm. The requested rate is divided among them. `value` reports unusual values, "
            "`stretch` a level or spread that has changed for some time, and `standstill` a value that no longer "
            "changes. `gap` reports a long time without values, at the next observation. If `direction` or "
            "`min_deviation` is set, `standstill` and `gap` raise no alarms."
        ),
    )
    mute: list[str | Annotated[list[Moment], Field(min_length=2, max_length=2)]] = Field(
        default=[],
        max_length=MOST_WINDOWS,
        description=(
            "Maintenance windows in the time zone `tz` of the request. Observations inside them count as missing. "
            "Examples: `sat 22:00-23:30`, `mon-fri 02:00-03:00`, `daily 03:00-03:10`, "
            "`2026-03-01T22:00/2026-03-02T01:00`, or a pair of times."
        ),
    )

    @model_validator(mode="after")
    def check_options(self) -> Self:
        """Check that the options are valid."""
        try:
            self.options("UTC")
        except InvalidInput as error:
            raise FieldError(error.param or "alarm", error.message, error.code) from None
        return self

    def options(self, tz: str) -> Alarm:
        """Convert the options to the form that the runtime uses. `tz` is the time zone of maintenance windows."""
        return alarm_of(self.model_dump(), tz)


Alarms = Annotated[AlarmRequest | None, Field(description="Options for alarms; null disables alarms.")]
