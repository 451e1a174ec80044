"""Frames that clients send to /filter/stream."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from rfa.runtime.uncertainty.input import MOST_COMPONENTS, MOST_COVARIATES
from rfa.service.schemas.alarm_requests import Alarms
from rfa.service.schemas.base import FieldError, Request
from rfa.service.schemas.fields import InitialState, ReturnState, Seed
from rfa.service.schemas.filter_requests import (
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
    check_system,
)
from rfa.service.schemas.late import Late


class FilterStreamRequest(Request):
    """First frame of a live stream: what to return for each observation."""

    model: FilterModel = None
    system: System = None
    size: int = Field(
        default=1,
        ge=1,
        le=MOST_COMPONENTS,
        description="columns of an observation, for models of any number",
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
    seed: Seed | None = Field(default=None, description="null: the state's seed, or random; the reply has it")
    known: list[ColumnName] | None = Field(
        default=None,
        min_length=1,
        max_length=MOST_COVARIATES,
        description=f"names of {COVARIATES}; frames then have `known`",
    )
    state: InitialState = None
    return_state: ReturnState = False
    state_every: int | None = Field(default=None, ge=1, le=1_000_000, description="also return the state every n steps")

    @model_validator(mode="after")
    def check_model(self) -> Self:
        """A system replaces a model."""
        check_system(self.system, self.model)
        if self.known is not None and (self.system is not None or len(set(self.known)) < len(self.known)):
            raise FieldError("known", "known must name each column once, and does not go with `system`", "no_known")
        return self


class StreamObservation(Request):
    """A frame with one observation."""

    t: Time | None = Field(
        default=None, description="not before the previous time, or in the window of `late`; null: the step's index"
    )
    y: Observation | None = Field(description="null only predicts; a null component is missing")
    noise: NoiseScale | None = Field(default=None, description="scale of the measurement noise; null is 1")
    input: Input | None = Field(default=None, description=INPUT)
    bias: Input | None = Field(default=None, description=BIAS)
    known: dict[ColumnName, Column] | None = Field(
        default=None,
        max_length=MOST_COVARIATES,
        description="of each column of the first frame's `known` the value at this time and at each `horizon`; what is "
        "left out or null is unknown",
    )


class StreamClose(Request):
    """The last frame of a live stream."""

    close: bool = Field(description="must be true")

    @model_validator(mode="after")
    def check_close(self) -> Self:
        """Only true is allowed."""
        if not self.close:
            raise FieldError("close", "close must be true", "literal_error")
        return self
