"""Linear system in a request. `rfa.runtime.filters.system` builds the system, and rejects invalid ones."""

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
    """Offset of the measurements that depends on the day of the week and the time of day. Between the nodes of a day,
    it is interpolated linearly. Times must be seconds since 1970."""

    zone: str = Field(max_length=64, description="Time zone that defines the days, such as Europe/Berlin.")
    slots: int = Field(
        ge=1, le=MOST_SLOTS, description="Number of equally spaced nodes in a day, starting at midnight."
    )
    holidays: list[Annotated[str, Field(max_length=10)]] = Field(
        default=[],
        max_length=MOST_DATES,
        description="Dates of holidays, such as 2026-12-25. On these dates, the eighth day in `pattern` is used.",
    )
    pattern: list[
        Annotated[
            list[Annotated[list[Number], Field(min_length=1, max_length=MOST_SLOTS)]],
            Field(min_length=WEEKDAYS, max_length=WEEKDAYS + 1),
        ]
    ] = Field(
        min_length=1,
        max_length=MOST_COLUMNS,
        description=(
            "Offset of each component at the nodes of each day [P, days, slots]. The days are Monday to Sunday, "
            "optionally followed by holidays."
        ),
    )


class SystemRequest(Request):
    """A linear system. It is defined by A, Q, C and R, by F, dt, Q, C and R, or by a preset and its parameters.

    The state is dx = A x dt + dw with E[dw dw^T] = Q dt. The observation is y = C x + offset + e with E[e e^T] = R.
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
        default=None, description="Drift matrix [n, n] per unit of time, which must be stable or undamped."
    )
    F: Matrix | None = Field(default=None, description="Transition matrix [n, n] over `dt`, as an alternative to A.")
    dt: Annotated[float, Field(gt=0, le=LARGEST)] | None = Field(
        default=None, description="Time step to which F and Q refer."
    )
    Q: Square | None = Field(
        default=None, description="Covariance of the process noise [n, n]: per unit of time with A, over `dt` with F."
    )
    C: Matrix | None = Field(default=None, description="Observation matrix [P, n]; the default is the identity.")
    H: Matrix | None = Field(default=None, description="Alternative name of C.")
    R: Square | None = Field(default=None, description="Covariance of the measurement noise [P, P].")
    preset: Literal["level", "trend", "constant_velocity", "constant_acceleration", "oscillator", "seasonal"] | None = (
        Field(
            default=None,
            description=(
                "Preset to use instead of matrices. `level` is a random walk, and `trend` is a level with a slope. "
                "`constant_velocity` and `constant_acceleration` are motions with noise in the highest derivative. "
                "`oscillator` is an oscillation with a `period`, and `seasonal` is a level plus harmonics of a "
                "`period`."
            ),
        )
    )
    dimensions: int = Field(
        default=1,
        ge=1,
        le=MOST_COMPONENTS,
        description="Number of independent copies of a preset, each of which is observed.",
    )
    process_noise: NotNegative | None = Field(
        default=None,
        description=(
            "Variance of the process noise of a preset, per unit of time. For motion models, it applies to the "
            "highest derivative."
        ),
    )
    measurement_noise: Annotated[float, Field(gt=0, le=LARGEST)] | None = Field(
        default=None, description="Variance of the measurement noise of a preset."
    )
    slope_noise: NotNegative | None = Field(
        default=None, description="For `trend`: variance of the noise of the slope, per unit of time."
    )
    season_noise: NotNegative | None = Field(
        default=None,
        description=(
            "For `seasonal`: variance of the process noise of the harmonics, per unit of time; null means 0, for a "
            "constant season."
        ),
    )
    period: Annotated[float, Field(gt=0, le=LARGEST)] | None = Field(
        default=None, description="For `oscillator` and `seasonal`: period in units of time."
    )
    harmonics: Annotated[int, Field(ge=1, le=MOST_STATES // 2)] | None = Field(
        default=None, description="For `seasonal`: number of harmonics; null means 3."
    )
    damping: NotNegative | None = Field(
        default=None,
        description="For `oscillator` and the slope of `trend`: decay rate per unit of time; null means 0.",
    )
    x0: Row | None = Field(default=None, description="Mean of the state [n] at the first observation; null means 0.")
    P0: Square | None = Field(
        default=None,
        description=(
            "Covariance of x0 [n, n], or a number by which the identity matrix is multiplied. The default is the "
            "stationary covariance. If there is none, P0 is required for a system that is defined by matrices, and a "
            "preset starts with a diffuse prior."
        ),
    )
    offset: Row | None = Field(default=None, description="Offset of the measurements [P]; null means 0.")
    bias: Row | None = Field(default=None, description="Alternative name of offset.")
    nu: Annotated[float, Field(gt=2, le=LARGEST)] | None = Field(
        default=7.0,
        description="Degrees of freedom of the robust weights; null means infinity, which is the Kalman filter.",
    )
    passes: int = Field(
        default=3, ge=1, le=MOST_PASSES, description="Number K of reweighting passes for each observation."
    )
    contamination: float = Field(
        default=0.0, ge=0, lt=1, description="Assumed fraction of outliers, for the log-likelihood."
    )
    outlier_scale: float = Field(
        default=10.0, gt=1, le=1e6, description="Scale of outliers relative to the measurement noise."
    )
    reacquire: Annotated[int, Field(ge=2, le=1_000_000)] | None = Field(
        default=6,
        description=(
            "Number of consecutive observations after which the state jumps to them, if they have small robust weights "
            "but agree with each other; null disables jumps."
        ),
    )

    calendar: CalendarRequest | None = Field(
        default=None, description="Offset of the measurements that depends on the day and time; null means none."
    )

    def document(self) -> dict[str, Any]:
        """Return the fields that the request sets, as a document for `rfa.runtime.filters.system`."""
        return self.model_dump(exclude_unset=True)
