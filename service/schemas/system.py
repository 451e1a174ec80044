"""Linear system in a request. `rfa.runtime.filters.system` builds it, and rejects systems that cannot be filtered."""

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
Square = Annotated[Number | Matrix, OneOf("a number (times the identity matrix), or a matrix as a list of rows")]


class CalendarRequest(Request):
    """Offset of the measurements that depends on the time of the week. It is interpolated linearly between the nodes of
    a day. Times must be seconds since 1970."""

    zone: str = Field(max_length=64, description="time zone that defines the days, such as Europe/Berlin")
    slots: int = Field(ge=1, le=MOST_SLOTS, description="number of equally spaced nodes in a day, starting at midnight")
    holidays: list[Annotated[str, Field(max_length=10)]] = Field(
        default=[], max_length=MOST_DATES, description="dates such as 2026-12-25 on which the eighth pattern applies"
    )
    pattern: list[
        Annotated[
            list[Annotated[list[Number], Field(min_length=1, max_length=MOST_SLOTS)]],
            Field(min_length=WEEKDAYS, max_length=WEEKDAYS + 1),
        ]
    ] = Field(
        min_length=1,
        max_length=MOST_COLUMNS,
        description="values [P, days, slots], where the days are Monday to Sunday, optionally followed by holidays",
    )


class SystemRequest(Request):
    """A linear system, given by A, Q, C, R, by F, dt, Q, C, R, or by a preset and its parameters.

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
        default=None, description="drift matrix [n, n] per unit of time; must be stable or undamped"
    )
    F: Matrix | None = Field(default=None, description="transition matrix [n, n] over `dt`, as an alternative to A")
    dt: Annotated[float, Field(gt=0, le=LARGEST)] | None = Field(
        default=None, description="time step that F and Q refer to"
    )
    Q: Square | None = Field(
        default=None, description="covariance of the process noise [n, n], per unit of time with A and over `dt` with F"
    )
    C: Matrix | None = Field(default=None, description="observation matrix [P, n]; the default is the identity")
    H: Matrix | None = Field(default=None, description="alternative name of C")
    R: Square | None = Field(default=None, description="covariance of the measurement noise [P, P]")
    preset: Literal["level", "trend", "constant_velocity", "constant_acceleration", "oscillator", "seasonal"] | None = (
        Field(
            default=None,
            description=(
                "preset to use instead of matrices. `level` is a random walk; `trend` is a level with a slope; "
                "`constant_velocity` and `constant_acceleration` have noise in their highest derivative; "
                "`oscillator` has a `period`; `seasonal` is a level plus harmonics of a `period`"
            ),
        )
    )
    dimensions: int = Field(
        default=1,
        ge=1,
        le=MOST_COMPONENTS,
        description="number of independent copies of a preset, each of which is observed",
    )
    process_noise: NotNegative | None = Field(
        default=None,
        description=(
            "variance of the process noise of a preset, per unit of time. For motion models, it applies to the "
            "highest derivative"
        ),
    )
    measurement_noise: Annotated[float, Field(gt=0, le=LARGEST)] | None = Field(
        default=None, description="variance of the measurement noise of a preset"
    )
    slope_noise: NotNegative | None = Field(
        default=None, description="for `trend`: variance of the noise of the slope, per unit of time"
    )
    season_noise: NotNegative | None = Field(
        default=None,
        description="for `seasonal`: process noise of each phase; null means 0, which gives a constant season",
    )
    period: Annotated[float, Field(gt=0, le=LARGEST)] | None = Field(
        default=None, description="for `oscillator` and `seasonal`: period in units of time"
    )
    harmonics: Annotated[int, Field(ge=1, le=MOST_STATES // 2)] | None = Field(
        default=None, description="for `seasonal`: number of harmonics; null means 3"
    )
    damping: NotNegative | None = Field(
        default=None,
        description="for `oscillator` and the slope of `trend`: decay rate per unit of time; null means 0",
    )
    x0: Row | None = Field(default=None, description="mean of the state [n] at the first observation; null means 0")
    P0: Square | None = Field(
        default=None,
        description=(
            "covariance of x0 [n, n], or a number times the identity. The default is the stationary covariance. A "
            "system defined by matrices must have one; a preset without one starts with a diffuse prior"
        ),
    )
    offset: Row | None = Field(default=None, description="offset of the measurements [P]; null means 0")
    bias: Row | None = Field(default=None, description="alternative name of offset")
    nu: Annotated[float, Field(gt=2, le=LARGEST)] | None = Field(
        default=7.0,
        description="degrees of freedom of the robust weights; null means infinity, which is the Kalman filter",
    )
    passes: int = Field(
        default=3, ge=1, le=MOST_PASSES, description="number K of reweighting passes for each observation"
    )
    contamination: float = Field(
        default=0.0, ge=0, lt=1, description="share of outliers that is assumed in the log likelihood"
    )
    outlier_scale: float = Field(
        default=10.0, gt=1, le=1e6, description="scale of the outliers, relative to the measurement noise"
    )
    reacquire: Annotated[int, Field(ge=2, le=1_000_000)] | None = Field(
        default=6,
        description=(
            "number of consecutive observations that are rejected but agree with each other, after which the state "
            "jumps to them; null disables jumps"
        ),
    )

    calendar: CalendarRequest | None = Field(
        default=None, description="offset of the measurements that depends on the time of the week; null means none"
    )

    def document(self) -> dict[str, Any]:
        """Return the given fields as a document for `rfa.runtime.filters.system`."""
        return self.model_dump(exclude_unset=True)
