"""Frames that clients send to /filter/stream."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from rfa.runtime.uncertainty.input import MOST_COMPONENTS, MOST_COVARIATES
from rfa.service.schemas.alarm_requests import Alarms
from rfa.service.schemas.base import FieldError, Request
from rfa.service.schemas.fields import InitialState, ReturnState, Seed
from rfa.service.schemas.filter_fields import (
    BIAS,
    COVARIATES,
    INPUT,
    Column,
    ColumnName,
    FilterModel,
    Horizons,
    Input,
    Levels,
    NoiseScale,
    Observation,
    PassesChoice,
    Samples,
    StepFields,
    System,
    Time,
    ValueRange,
    Zone,
)
from rfa.service.schemas.filter_requests import check_system
from rfa.service.schemas.late import Late


class FilterStreamRequest(Request):
    """First frame of a live stream. It selects what is returned for each observation."""

    model: FilterModel = None
    system: System = None
    size: int = Field(
        default=1,
        ge=1,
        le=MOST_COMPONENTS,
        description="columns of each observation, for models that accept any number of columns",
    )
    levels: Levels = None
    horizon: Horizons = Field(default_factory=list)
    samples: Samples = 0
    alarm: Alarms = None
    range: ValueRange = None
    late: Late = None
    fields: StepFields = None
    passes: PassesChoice = None
    tz: Zone = "UTC"
    seed: Seed | None = Field(
        default=None,
        description=(
            "random seed. null uses the seed of the state, or chooses one at random. The reply contains the seed"
        ),
    )
    known: list[ColumnName] | None = Field(
        default=None,
        min_length=1,
        max_length=MOST_COVARIATES,
        description=f"names of {COVARIATES}. Later frames then contain `known`",
    )
    state: InitialState = None
    return_state: ReturnState = False
    state_every: int | None = Field(
        default=None, ge=1, le=1_000_000, description="number of steps after which the state is returned again"
    )

    @model_validator(mode="after")
    def check_model(self) -> Self:
        """Check that not both `system` and `model` are given, and that the names in `known` are unique."""
        check_system(self.system, self.model)
        if self.known is not None and (self.system is not None or len(set(self.known)) < len(self.known)):
            raise FieldError(
                "known", "known must name each column once, and is not supported with `system`", "no_known"
            )
        return self


class StreamObservation(Request):
    """A frame with one observation."""

    t: Time | None = Field(
        default=None,
        description=(
            "time of the observation. It must not be before the previous time, or before the window of `late`; null "
            "uses the index of the step"
        ),
    )
    y: Observation | None = Field(
        description="observation; null makes a prediction without an observation, and a null component is missing"
    )
    noise: NoiseScale | None = Field(default=None, description="scale of the measurement noise; null means 1")
    input: Input | None = Field(default=None, description=INPUT)
    bias: Input | None = Field(default=None, description=BIAS)
    known: dict[ColumnName, Column] | None = Field(
        default=None,
        max_length=MOST_COVARIATES,
        description=(
            "value of each column named in `known` of the first frame, at this time and at each `horizon`. A value "
            "that is null or left out is unknown"
        ),
    )


class StreamClose(Request):
    """The last frame of a live stream."""

    close: bool = Field(description="must be true")

    @model_validator(mode="after")
    def check_close(self) -> Self:
        """Check that `close` is true."""
        if not self.close:
            raise FieldError("close", "close must be true", "literal_error")
        return self
