"""A system in a request; `rfa.runtime.filters.system` interprets it and refuses what cannot be filtered."""

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
Square = Annotated[Number | Matrix, OneOf("a number (times the identity), or a matrix: a list of its rows")]


class CalendarRequest(Request):
    """Offset of the measurements by time of the week, linear between nodes of a day. Times are seconds since 1970."""

    zone: str = Field(max_length=64, description="time zone of the days, such as Europe/Berlin")
    slots: int = Field(ge=1, le=MOST_SLOTS, description="evenly spaced nodes of a day, from midnight on")
    holidays: list[Annotated[str, Field(max_length=10)]] = Field(
        default=[], max_length=MOST_DATES, description="dates such as 2026-12-25 with the eighth pattern"
    )
    pattern: list[
        Annotated[
            list[Annotated[list[Number], Field(min_length=1, max_length=MOST_SLOTS)]],
            Field(min_length=WEEKDAYS, max_length=WEEKDAYS + 1),
        ]
    ] = Field(
        min_length=1,
        max_length=MOST_COLUMNS,
        description="values [P, days, slots]; days are Monday to Sunday and, optionally, an eighth for holidays",
    )


class SystemRequest(Request):
    """A linear system: matrices A, Q, C, R or F, dt, Q, C, R, or a preset with its parameters.

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

    A: Matrix | None = Field(default=None, description="drift [n, n] per unit of time; stable or undamped")
    F: Matrix | None = Field(default=None, description="instead of A: transition [n, n] over `dt`")
    dt: Annotated[float, Field(gt=0, le=LARGEST)] | None = Field(default=None, description="time step of F and Q")
    Q: Square | None = Field(
        default=None, description="process noise [n, n]: covariance per unit of time with A, over `dt` with F"
    )
    C: Matrix | None = Field(default=None, description="observation [P, n]; null: the identity")
    H: Matrix | None = Field(default=None, description="alias of C")
    R: Square | None = Field(default=None, description="covariance of the measurement noise [P, P]")
    preset: Literal["level", "trend", "constant_velocity", "constant_acceleration", "oscillator", "seasonal"] | None = (
        Field(
            default=None,
            description="instead of matrices: `level` is a random walk; `trend` is a level with a slope; "
            "`constant_velocity` and `constant_acceleration` have noise in their last derivative; `oscillator` has a "
            "`period`; `seasonal` is a level with the harmonics of a `period`",
        )
    )
    dimensions: int = Field(
        default=1, ge=1, le=MOST_COMPONENTS, description="of a preset: number of independent copies, each observed"
    )
    process_noise: NotNegative | None = Field(
        default=None,
        description="of a preset: variance of its noise per unit of time; for motion, of the last derivative",
    )
    measurement_noise: Annotated[float, Field(gt=0, le=LARGEST)] | None = Field(
        default=None, description="of a preset: variance of a measurement"
    )
    slope_noise: NotNegative | None = Field(
        default=None, description="of `trend`: variance of the slope's noise per unit of time"
    )
    season_noise: NotNegative | None = Field(
        default=None, description="of `seasonal`: process noise of each phase; null is 0, a constant season"
    )
    period: Annotated[float, Field(gt=0, le=LARGEST)] | None = Field(
        default=None, description="of `oscillator` and `seasonal`, in units of time"
    )
    harmonics: Annotated[int, Field(ge=1, le=MOST_STATES // 2)] | None = Field(
        default=None, description="of `seasonal`: number of harmonics; null is 3"
    )
    damping: NotNegative | None = Field(
        default=None,
        description="of `oscillator`, and of the slope of `trend`: rate of decay per unit of time; null is 0",
    )
    x0: Row | None = Field(default=None, description="mean of the state at the first observation [n]; null is 0")
    P0: Square | None = Field(
        default=None,
        description="covariance of x0 [n, n]; a number is times the identity. null: the stationary covariance, which "
        "matrices must have; a preset without one starts diffuse",
    )
    offset: Row | None = Field(default=None, description="of the measurements [P]; null is 0")
    bias: Row | None = Field(default=None, description="alias of offset")
    nu: Annotated[float, Field(gt=2, le=LARGEST)] | None = Field(
        default=7.0, description="degrees of freedom of the robust weights; null is the Kalman filter"
    )
    passes: int = Field(default=3, ge=1, le=MOST_PASSES, description="reweighting passes K of an observation")
    contamination: float = Field(
        default=0.0, ge=0, lt=1, description="share of outliers that the log-likelihood allows for"
    )
    outlier_scale: float = Field(default=10.0, gt=1, le=1e6, description="scale of the outliers")
    reacquire: Annotated[int, Field(ge=2, le=1_000_000)] | None = Field(
        default=6,
        description="number of consistent rejected observations in a row after which the state jumps to them; null: "
        "never",
    )

    calendar: CalendarRequest | None = Field(
        default=None, description="offset of the measurements by time of the week; null: none"
    )

    def document(self) -> dict[str, Any]:
        """The given fields, for `rfa.runtime.filters.system`."""
        return self.model_dump(exclude_unset=True)
