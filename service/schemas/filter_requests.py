"""Requests to /filter."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from pydantic import (
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    SkipValidation,
    ValidationError,
    model_validator,
)

from rfa.runtime.choices import Mode
from rfa.runtime.errors import InvalidInput
from rfa.runtime.uncertainty.input import MOST_COMPONENTS, MOST_COVARIATES
from rfa.service.schemas.alarm_requests import Alarms
from rfa.service.schemas.base import FieldError, Request
from rfa.service.schemas.fields import MAX_ITEMS, SEED, InitialState, Milliseconds, ReturnState, Seed
from rfa.service.schemas.filter_fields import (
    BIAS,
    COVARIATES,
    INPUT,
    MAX_AHEAD,
    ONLY_COLUMN,
    ROW_FIELDS,
    USUAL_AHEAD,
    Column,
    ColumnName,
    FilterModel,
    Horizons,
    Input,
    Levels,
    NamedColumns,
    NoiseScale,
    Observation,
    PassesChoice,
    Samples,
    SeriesName,
    StepFields,
    System,
    Times,
    ValueRange,
    Zone,
)
from rfa.service.schemas.late import Late
from rfa.service.schemas.stream_rows import refuse_rows
from rfa.service.schemas.system import SystemRequest

# Fields of a series that may also be set for all series of a request.
SHARED_FIELDS = frozenset({"return_state", "system"})


class FilterSeries(Request):
    """One series, and the state from which it continues."""

    times: Times | None = Field(
        default=None,
        description=(
            "Times of the observations in the time unit of the model, which must not decrease; null means 0, 1, 2, …."
        ),
    )
    observations: list[Observation | None] | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_ITEMS,
        fail_fast=True,
        description=(
            "Observations, one list of numbers per row. The maximum number of rows is `max_observations` in the reply "
            "of /info. A null row is a missing observation, and a null number is a missing component. Set either this "
            "field or `values`."
        ),
    )
    values: NamedColumns | None = Field(
        default=None,
        min_length=1,
        max_length=MOST_COMPONENTS,
        description=(
            "Observations as columns by name, in the order of the components of the model; null marks a missing value. "
            f"A list of numbers is one column named {ONLY_COLUMN}. The reply also contains columns."
        ),
    )
    noise: list[NoiseScale | None] | None = Field(
        default=None,
        max_length=MAX_ITEMS,
        fail_fast=True,
        description="Scale of the measurement noise, with one number per observation; null means 1.",
    )
    input: list[Input | None] | None = Field(
        default=None,
        max_length=MAX_ITEMS,
        fail_fast=True,
        description=f"List with one entry per observation, where null means no input. An entry is the {INPUT}.",
    )
    bias: list[Input | None] | None = Field(
        default=None,
        max_length=MAX_ITEMS,
        fail_fast=True,
        description=f"List with one entry per observation, where null means no offset. An entry is the {BIAS}.",
    )
    known: dict[ColumnName, Column] | None = Field(
        default=None,
        min_length=1,
        max_length=MOST_COVARIATES,
        description=(
            f"The {COVARIATES} Each column has one value per observation, followed by future values at the usual time "
            f"step: at least one for each row of `ahead`, and at most {MAX_AHEAD}."
        ),
    )
    system: System = None
    state: InitialState = None
    return_state: ReturnState = False


class FilterRequest(FilterSeries):
    """Observations to filter, as one series or several series."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "times": [0.0, 0.1, 0.25],
                    "observations": [[1.0, 0.2], None, [0.7, None]],
                    "levels": [0.5, 0.9],
                    "horizon": [0.1],
                },
                {
                    "series": {
                        "kitchen": {"times": [0, 60, 120], "values": {"celsius": [21.0, 21.2, None]}},
                        "hall": {"times": [0, 60], "values": {"celsius": [18.1, 18.0], "percent": [50, 51]}},
                    },
                    "levels": [0.9],
                },
            ]
        }
    )

    model: FilterModel = None
    series: dict[SeriesName, SkipValidation[FilterSeries]] | None = Field(
        default=None,
        min_length=1,
        description=(
            "Several series by name. The limits on their number and on the total number of observations are "
            "`max_series` and `max_series_observations` in the reply of /info. The other fields of the request apply "
            "to each series. The reply for each series is that of a request with this series alone. If a series fails, "
            "its reply is an error, and the other series are not affected."
        ),
    )
    levels: Levels = None
    horizon: Horizons = Field(default_factory=list)
    ahead: int | None = Field(
        default=None,
        ge=0,
        le=MAX_AHEAD,
        description=(
            "Number of rows to forecast after the last observation, at the usual time step. Requires `values`. The "
            "reply contains the forecasts in `ahead`. If a series is sent in several requests, its intervals "
            "are those of a single request only if all requests have the same `ahead`. The default is "
            f"{USUAL_AHEAD} if `values` is a list without `times` and `horizon`, and 0 otherwise."
        ),
    )
    samples: Samples = 0
    alarm: Alarms = None
    range: ValueRange = None
    fields: StepFields = None
    passes: PassesChoice = None
    tz: Zone = "UTC"
    seed: Seed | None = Field(default=None, description=SEED)
    mode: Mode = Field(
        default="recurrent",
        description=(
            "Mode of the model. `attention` computes each step from all earlier observations of the request; "
            "`recurrent` updates a state of constant size."
        ),
    )
    smooth: bool = Field(
        default=False, description="Whether to also return smoothed states, which use all observations."
    )
    deadline_ms: Milliseconds | None = Field(
        default=None,
        description=(
            "Time limit in milliseconds. After this time, the reply ends with the observations that were processed, "
            'and finish_reason is "deadline".'
        ),
    )
    stream: bool = Field(
        default=False,
        description=(
            "Whether to send each step as soon as it is final. For a late or invalid observation, an error is sent, "
            "and the stream continues."
        ),
    )
    late: Late = None
    _refused: dict[int, InvalidInput] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def forgive_rows(cls, document: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        """Validate a request. If `stream` is set, only the invalid rows are rejected, instead of the whole request (see
        `refused`)."""
        try:
            return validate(document)
        except ValidationError:
            cleaned, refused = refuse_rows(document, ROW_FIELDS)
            if not refused:
                raise
        found = validate(cleaned)
        found._refused.update(refused)
        return found

    @property
    def refused(self) -> dict[int, InvalidInput]:
        """Errors of invalid rows, by position. In the fields of the request, these rows are None, and invalid times are
        0."""
        return self._refused

    @property
    def is_forgiving(self) -> bool:
        """Whether the other rows are filtered if a row is rejected."""
        return self.stream and not self.smooth and self.mode == "recurrent"

    @property
    def rows_ahead(self) -> int:
        """Number of rows to forecast after the last observation."""
        if self.ahead is not None:
            return self.ahead
        is_list = self.values is not None and list(self.values) == [ONLY_COLUMN] and self.times is None
        return USUAL_AHEAD if is_list and not self.horizon and self.mode == "recurrent" else 0

    @model_validator(mode="after")
    def check_ahead(self) -> Self:
        """Check that `ahead` is only used with `values` and in recurrent mode."""
        if self.ahead and self.values is None and self.series is None:
            raise FieldError("ahead", "ahead requires `values`; with observations, use `horizon`", "no_values")
        if self.ahead and self.mode != "recurrent":
            raise FieldError("mode", 'mode must be "recurrent" if ahead is set', "no_state")
        return self

    @model_validator(mode="after")
    def check_late(self) -> Self:
        """Check that `late` is only used with `stream`, in recurrent mode and for rows."""
        if self.late is not None and (self.series is not None or not self.is_forgiving):
            raise FieldError(
                "late", "late requires `stream` with observations, and does not support `smooth`", "needs_stream"
            )
        if self.late is not None and self.known is not None:
            raise FieldError(
                "late",
                "late does not support `known` in this request; use /filter/stream, where each row has its own "
                "`known` values",
                "no_late",
            )
        return self

    @model_validator(mode="after")
    def check_state(self) -> Self:
        """Check that states and systems are only used in recurrent mode."""
        check_system(self.system, self.model, self.mode)
        if self.mode != "recurrent" and (self.state is not None or self.return_state is not False):
            raise FieldError("mode", 'mode must be "recurrent" to continue or return a state', "no_state")
        return self

    @model_validator(mode="after")
    def check_lengths_and_order(self) -> Self:
        """Check that all lists have one value per observation, and that times do not decrease."""
        if self.series is not None:
            return self.check_series()
        count = self.check_form()
        if self.times is None and self.alarm is not None and (needs := self.alarm.options(self.tz).needs_times):
            raise FieldError(f"alarm.{needs}", f"alarm.{needs} requires `times` in seconds", "no_times")
        for name in ("times", "noise", "input", "bias"):
            values = getattr(self, name)
            if values is not None and len(values) != count:
                raise FieldError(
                    name, f"{name} must have one value for each of the {count} observations", "length_mismatch"
                )
        self.check_covariates(count)
        times = [] if self.times is None or self.is_forgiving else self.times
        for index in np.flatnonzero(np.diff(times) < 0)[:1].tolist():
            name = f"times[{index + 1}]"
            raise FieldError(name, f"{name} must not be smaller than the previous time", "time_not_monotonic")
        return self

    def check_covariates(self, count: int) -> None:
        """Check that each column of `known` has a value for each of `count` observations and each row of `ahead`.

        Raises:
            FieldError: If a column has a wrong length or name, or the request does not support `known`.
        """
        if self.known is None:
            return
        if self.input is not None or self.system is not None or self.mode != "recurrent":
            raise FieldError(
                "known",
                "known cannot be combined with `input` or `system`, and does not support the attention mode",
                "no_known",
            )
        lengths = {name: len(column) for name, column in self.known.items()}
        for name, length in lengths.items():
            field = f"known.{name}"
            if name in (self.values or ()):
                raise FieldError(field, f"{field} is also a column of values; remove one of them", "duplicate")
            if not count + self.rows_ahead <= length <= count + MAX_AHEAD:
                needed = f"at least {count + self.rows_ahead} values, one for each observation and each row of `ahead`,"
                raise FieldError(
                    field, f"{field} must have {needed} and at most {count + MAX_AHEAD}", "length_mismatch"
                )
        if len(set(lengths.values())) > 1:
            raise FieldError("known", "all columns of known must have the same number of values", "length_mismatch")

    def check_series(self) -> Self:
        """Check that fields of a single series are not set next to `series`.

        Raises:
            FieldError: If such a field is set.
        """
        for name in FilterSeries.model_fields:
            if name not in SHARED_FIELDS and getattr(self, name) is not None:
                raise FieldError(name, f"{name} must be set in each series, not next to `series`", "of_each_series")
        if isinstance(self.return_state, str):
            message = (
                "return_state names one session, but a session stores the state of one series; set it in each series"
            )
            raise FieldError("return_state", message, "of_each_series")
        return self

    def check_form(self) -> int:
        """Check that the request contains either rows or columns of equal length. Return the number of observations.

        Raises:
            FieldError: If it does not.
        """
        if (self.observations is None) == (self.values is None):
            message = "set exactly one of observations, values and series"
            raise FieldError("observations", message, "rows_or_columns")
        if self.values is None:
            return len(self.observations or ())
        counts = {name: len(column) for name, column in self.values.items()}
        count = next(iter(counts.values()))
        for name, length in counts.items():
            if length != count or not length:
                field = f"values.{name}"
                expected = (
                    "at least one value" if not length else f"as many values as each of the other columns ({count})"
                )
                raise FieldError(field, f"{field} must have {expected}", "length_mismatch")
        if self.stream or self.samples:
            field = "stream" if self.stream else "samples"
            raise FieldError(field, f"{field} requires `observations` instead of `values`", "rows_only")
        return count


def check_system(system: SystemRequest | None, model: str | None, mode: Mode = "recurrent") -> None:
    """Check that a request with a system does not select a model or the attention mode.

    Raises:
        FieldError: If a model or the attention mode is requested together with a system.
    """
    if system is None:
        return
    if model is not None:
        raise FieldError("system", "system replaces the model; remove one of them", "model_and_system")
    if mode != "recurrent":
        message = 'mode must be "recurrent" if a system is set, because the attention mode needs a bundle'
        raise FieldError("mode", message, "no_such_mode")
