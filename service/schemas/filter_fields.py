"""Types, limits and descriptions of the fields of requests to /filter and /filter/stream."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from rfa.data.clock import get_zone
from rfa.runtime.uncertainty.input import (
    LARGEST_HORIZON,
    LARGEST_OBSERVATION,
    LARGEST_TIME,
    LEAST_NOISE,
    MOST_COMPONENTS,
    MOST_HORIZONS,
    MOST_LEVELS,
    MOST_NOISE,
    MOST_SAMPLES,
)
from rfa.service.schemas.arrays import takes_arrays
from rfa.service.schemas.fields import MAX_ITEMS, ModelName
from rfa.service.schemas.system import SystemRequest

# Largest value of `ahead`, and the default for a list of numbers without times.
MAX_AHEAD = 1024
USUAL_AHEAD = 16
# Name of the column for `values` that are a list of numbers.
ONLY_COLUMN = "y"

Component = Annotated[float, Field(ge=-LARGEST_OBSERVATION, le=LARGEST_OBSERVATION)]
Observation = Annotated[list[Component | None], Field(min_length=1, max_length=MOST_COMPONENTS, fail_fast=True)]
Time = Annotated[float, Field(ge=-LARGEST_TIME, le=LARGEST_TIME)]
NoiseScale = Annotated[float, Field(ge=LEAST_NOISE, le=MOST_NOISE)]
# Lists in JSON; float64 arrays in Arrow, where NaN marks a missing value.
Times = Annotated[list[Time], Field(max_length=MAX_ITEMS, fail_fast=True), takes_arrays(LARGEST_TIME, may_miss=False)]
Column = Annotated[
    list[Component | None],
    Field(max_length=MAX_ITEMS, fail_fast=True),
    takes_arrays(LARGEST_OBSERVATION, may_miss=True),
]
SeriesName = Annotated[str, Field(max_length=256)]
ColumnName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[^\x00-\x1f\x7f]+$")]
Input = Annotated[list[Component], Field(min_length=1, max_length=MOST_COMPONENTS)]
INPUT = (
    "control input since the previous observation, with one number per state component and unit of time. It requires a "
    "linear filter with up to 16 state components. Forecasts assume that the last input continues."
)
COVARIATES = (
    "values of columns that are known in advance, such as a price, a promotion or a holiday (0 or 1); null means "
    "unknown. Only `default` and `series` use them, and only if they have improved the forecasts so far."
)
BIAS = "offset of the measurement, with one number per component, which is subtracted from the observation."
# Fields that have a value for each row.
ROW_FIELDS = {
    "times": Time, "observations": Observation | None, "noise": NoiseScale | None, "input": Input | None,
    "bias": Input | None,
}  # fmt: skip

Level = Annotated[float, Field(gt=0, lt=1)]
Levels = Annotated[
    list[Level] | None,
    Field(
        max_length=MOST_LEVELS,
        fail_fast=True,
        description="Levels of the intervals, such as 0.9; null selects the levels for which the model is calibrated.",
    ),
]
Horizons = Annotated[
    list[Annotated[float, Field(gt=0, le=LARGEST_HORIZON)]],
    Field(
        max_length=MOST_HORIZONS,
        fail_fast=True,
        description="Horizons of the forecasts after each observation, in units of the times.",
    ),
]
StepField = Literal[
    "mean", "std", "precision", "confidence", "weight", "innovation", "nis", "anomaly", "alarm", "raised", "interval",
    "forecast", "samples", "weights",
]  # fmt: skip
StepFields = Annotated[
    list[StepField] | None,
    Field(
        min_length=1,
        max_length=14,
        description=(
            "Fields to return for each step, in addition to `index` and `t`; null selects all fields except "
            "`weights`. Requests with fewer fields are faster."
        ),
    ),
]
FilterModel = Annotated[
    ModelName | None,
    Field(
        description=(
            "Name of the model. If it is null, `default` is used, which combines the forecasts of the network `series` "
            "with simple ones, or `auto` if the server has no such network. `auto-joint` uses the correlation between "
            "the columns."
        )
    ),
]
ValueRange = Annotated[
    Annotated[list[Component | None], Field(min_length=2, max_length=2)] | None,
    Field(
        description=(
            "Lowest and highest possible value; null means no limit. Estimates, forecasts, bounds and samples are "
            "always inside this range. For alarms about values outside a range, use `alarm.range`."
        )
    ),
]
System = Annotated[
    SystemRequest | None,
    Field(
        description=(
            "Linear system with which to filter, instead of a `model`. A state can only be continued with the same "
            "system."
        )
    ),
]
Samples = Annotated[
    int, Field(ge=0, le=MOST_SAMPLES, description="Number of samples to return from the posterior of each step.")
]
PassesChoice = Annotated[
    int | None,
    Field(
        ge=1,
        le=64,
        description=(
            "Number K of reweighting passes per observation. Each pass updates the robust weight of the observation. "
            "The default is the largest number that the model supports (see `passes` in /info)."
        ),
    ),
]


def _checked_zone(name: str) -> str:
    get_zone(name)
    return name


Zone = Annotated[
    str,
    AfterValidator(_checked_zone),
    Field(
        max_length=64,
        description=(
            "Time zone, such as Europe/Berlin. The model `default` uses it to compute local days and weeks, including "
            "changes of daylight saving time. Times must be seconds since 1970. A request that continues a stream "
            "must contain the time zone again."
        ),
    ),
]


def _named(values: Any) -> Any:
    """Convert a list of numbers to one named column."""
    return {ONLY_COLUMN: values} if isinstance(values, list) else values


NamedColumns = Annotated[
    dict[ColumnName, Column], BeforeValidator(_named, json_schema_input_type=dict[ColumnName, Column] | Column)
]
