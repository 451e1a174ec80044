"""A system in a request: `rfa.runtime.filters.system` says what it means, and refuses what cannot be filtered."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from rfa.runtime.filters.calendar import MOST_COLUMNS, MOST_DATES, MOST_SLOTS, WEEKDAYS
from rfa.runtime.filters.system import LARGEST, MOST_COMPONENTS, MOST_PASSES, MOST_STATES
from rfa.service.neutral import OneOf
from rfa.service.schemas.base import Request

Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
NotNegative = Annotated[float, Field(ge=0, le=LARGEST)]
Row = Annotated[list[Number], Field(min_length=1, max_length=MOST_STATES)]
Matrix = Annotated[list[Row], Field(min_length=1, max_length=max(MOST_STATES, MOST_COMPONENTS))]
Square = Annotated[
    Number | Matrix, OneOf("a number, which is that times the identity, or a matrix: a list of its rows")
]


class CalendarRequest(Request):
    """What measurements have beside by the time of the week, as a fit found it: straight lines between nodes of a day.
    Times are then seconds since 1970."""

    zone: str = Field(max_length=64, description="time zone of its days, such as Europe/Berlin, or UTC")
    slots: int = Field(ge=1, le=MOST_SLOTS, description="nodes of a day, from midnight on, evenly apart")
    holidays: list[Annotated[str, Field(max_length=10)]] = Field(
        default=[], max_length=MOST_DATES, description="dates such as 2026-12-25 that are days of the eighth type"
    )
    pattern: list[
        Annotated[
            list[Annotated[list[Number], Field(min_length=1, max_length=MOST_SLOTS)]],
            Field(min_length=WEEKDAYS, max_length=WEEKDAYS + 1),
        ]
    ] = Field(
        min_length=1,
        max_length=MOST_COLUMNS,
        description="values [P, types of days, slots]: Monday to Sunday, and where there are holidays theirs",
    )


class SystemRequest(Request):
    """A linear system by its matrices, A, Q, C, R or F, dt, Q, C, R, or a preset with its parameters.

    dx = A x dt + dw with E[dw dw^T] = Q dt; y = C x + offset + e with E[e e^T] = R.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"preset": "constant_velocity", "dimensions": 2, "process_noise": 0.1, "measurement_noise": 0.25},
                {"A": [[0, 1], [0, 0]], "Q": [[0, 0], [0, 0.1]], "C": [[1, 0]], "R": 0.25, "P0": 1e6},
            ]
        }
    )

    A: Matrix | None = Field(
        default=None, description=f"drift [n, n] per unit of time, of up to {MOST_STATES} states; stable or undamped"
    )
    F: Matrix | None = Field(
        default=None, description="in the place of A: transition [n, n] over `dt`; it must have a real logarithm"
    )
    dt: Annotated[float, Field(gt=0, le=LARGEST)] | None = Field(
        default=None, description="the time that F, and with it Q, is of"
    )
    Q: Square | None = Field(
        default=None,
        description="process noise [n, n]: covariance per unit of time beside A, over `dt` beside F; a number is that "
        "times the identity",
    )
    C: Matrix | None = Field(
        default=None,
        description=f"observation [P, n], of up to {MOST_COMPONENTS} components; null is the identity",
    )
    H: Matrix | None = Field(default=None, description="another name of C")
    R: Square | None = Field(
        default=None, description="measurement noise [P, P], a covariance; a number is that times the identity"
    )
    preset: Literal["level", "trend", "constant_velocity", "constant_acceleration", "oscillator", "seasonal"] | None = (
        Field(
            default=None,
            description="in the place of matrices: `level` wanders; `trend` is a level and its slope; "
            "`constant_velocity` and `constant_acceleration` are moved by noise in their last derivative; `oscillator` "
            "turns once a `period`; `seasonal` is a level and the harmonics of a `period`",
        )
    )
    dimensions: int = Field(
        default=1, ge=1, le=MOST_COMPONENTS, description="of a preset: as many of it side by side, each seen"
    )
    process_noise: NotNegative | None = Field(
        default=None,
        description="of a preset: variance per unit of time of what moves it, for motion of its last derivative",
    )
    measurement_noise: Annotated[float, Field(gt=0, le=LARGEST)] | None = Field(
        default=None, description="of a preset: variance of a measurement"
    )
    slope_noise: NotNegative | None = Field(
        default=None, description="of `trend`: variance per unit of time of what moves the slope"
    )
    season_noise: NotNegative | None = Field(
        default=None, description="of `seasonal`: as process_noise, of each phase; null is 0, a season that stays"
    )
    period: Annotated[float, Field(gt=0, le=LARGEST)] | None = Field(
        default=None, description="of `oscillator` and `seasonal`, in units of time"
    )
    harmonics: Annotated[int, Field(ge=1, le=MOST_STATES // 2)] | None = Field(
        default=None, description="of `seasonal`: how many shape the season; null is 3"
    )
    damping: NotNegative | None = Field(
        default=None,
        description="of `oscillator`, and of the slope of `trend`: rate of decay per unit of time; null is 0",
    )
    x0: Row | None = Field(default=None, description="mean of the state at the first observation [n]; null is 0")
    P0: Square | None = Field(
        default=None,
        description="its covariance [n, n]; a number is that times the identity. Null is the stationary covariance, "
        "which matrices must have; a preset without one knows nothing at first",
    )
    offset: Row | None = Field(default=None, description="of the measurements [P]; null is 0")
    bias: Row | None = Field(default=None, description="another name of offset")
    nu: Annotated[float, Field(gt=2, le=LARGEST)] | None = Field(
        default=7.0, description="degrees of freedom of the robust weights; null is the Kalman filter"
    )
    passes: int = Field(default=3, ge=1, le=MOST_PASSES, description="reweighting passes K of an observation")
    contamination: float = Field(
        default=0.0, ge=0, lt=1, description="share of outliers that the log-likelihood allows for"
    )
    outlier_scale: float = Field(default=10.0, gt=1, le=1e6, description="how much wider they are")
    reacquire: Annotated[int, Field(ge=2, le=1_000_000)] | None = Field(
        default=6,
        description="after so many rejected observations in a row that agree the state is taken to have jumped; null "
        "is never",
    )

    calendar: CalendarRequest | None = Field(
        default=None, description="what measurements have beside by the time of the week; null is nothing"
    )

    def document(self) -> dict[str, Any]:
        """As `rfa.runtime.filters.system` takes it: what was given."""
        return self.model_dump(exclude_unset=True)
