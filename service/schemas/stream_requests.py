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
    """First frame of a live stream. It selects the model, and the fields of the replies to observations."""

    model: FilterModel = None
    system: System = None
    size: int = Field(
        default=1,
        ge=1,
        le=MOST_COMPONENTS,
        description="Number of components of each observation, for models that accept any number.",
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
            "Random seed. If it is null, the seed of the state is used, or a random seed without a state. The reply "
            "contains the seed."
        ),
    )
    known: list[ColumnName] | None = Field(
        default=None,
        min_length=1,
        max_length=MOST_COVARIATES,
        description=f"Names of the columns for `known` in later frames, which contains the {COVARIATES}.",
    )
    state: InitialState = None
    return_state: ReturnState = False
    state_every: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Interval in steps between returned states. With 1, each step contains the state. If it is "
        "null, only the last frame contains the state, if `return_state` is set.",
    )

    @model_validator(mode="after")
    def check_model(self) -> Self:
        """Check that not both `system` and `model` are set, and that the names in `known` are distinct."""
        check_system(self.system, self.model)
        if self.known is not None and (self.system is not None or len(set(self.known)) < len(self.known)):
            raise FieldError("known", "known must not repeat a column, and is not supported with `system`", "no_known")
        return self


class StreamObservation(Request):
    """Frame with one observation."""

    t: Time | None = Field(
        default=None,
        description=(
            "Time of the observation. It must not be before the time of the previous observation or, with `late`, "
            "before the window. If it is null, the index of the step is used."
        ),
    )
    y: Observation | None = Field(
        description=(
            "Observation, with one number per component. If it is null, the observation is missing, and the "
            "state is only predicted. A null component is missing."
        )
    )
    noise: NoiseScale | None = Field(default=None, description="Scale of the measurement noise; null means 1.")
    input: Input | None = Field(default=None, description=f"The {INPUT}.")
    bias: Input | None = Field(default=None, description=f"The {BIAS}.")
    known: dict[ColumnName, Column] | None = Field(
        default=None,
        max_length=MOST_COVARIATES,
        description=(
            "Values of the columns that `known` of the first frame names, at the time of the observation and at each "
            "`horizon`. Values that are null or missing are unknown."
        ),
    )


class StreamClose(Request):
    """Frame that ends a live stream."""

    close: bool = Field(description="Must be true, which ends the stream.")

    @model_validator(mode="after")
    def check_close(self) -> Self:
        """Check that `close` is true."""
        if not self.close:
            raise FieldError("close", "close must be true", "literal_error")
        return self
